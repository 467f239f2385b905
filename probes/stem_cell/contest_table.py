"""Tables of the contest by head and by pair, and skills of heads without masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from mtl.probes.measures.groups import BY_NAME
from mtl.probes.sites import KEYS
from mtl.probes.statistics.masks import Masks
from mtl.probes.statistics.significance import student
from mtl.probes.stem_cell.contest import (
    CANNOT_TELL,
    CONTROL,
    DRAWS,
    NORMAL_SCORES,
    SKILL_BEYOND_INPUT,
    SKILL_POINTS,
    STANDARDISED_LOGS,
    STANDARDISED_POINTS,
    TWIN,
    ContestCells,
    ContestEstimate,
    TaskBlock,
    WorthUnit,
    contest,
    estimate_contest,
    in_unit,
)
from mtl.probes.stem_cell.wording import beside_learned
from mtl.probes.tables.heads_table import in_texts, label_scores, weighted_mean
from mtl.probes.tables.table_files import ColumnUnit, types_of
from mtl.tasks.in_words import counted

COLUMNS = (
    ColumnUnit.TEXT.of("group", "estimate")
    | ColumnUnit.FLAG.of("primary")
    | ColumnUnit.TEXT.of("unit", "tasks")
    | ColumnUnit.COUNT.of("seeds", "heads")
    | ColumnUnit.OF_ROW.of("beta", "low", "high")
    | ColumnUnit.P.of("p")
    | ColumnUnit.SHARE.of("share", "share_low", "share_high")
    | ColumnUnit.NUMBER.of("reliability")
    | ColumnUnit.SHARE.of("corrected", "corrected_low", "corrected_high")
    | ColumnUnit.TEXT.of("word", "reason")
)
SCHEMA = pl.Schema(types_of(COLUMNS))
IMPORTANCE = "importance"
ABLATION = "ablation"
UNITS: tuple[tuple[str, str, WorthUnit], ...] = (
    ("importance, logs", IMPORTANCE, STANDARDISED_LOGS),
    ("importance, normal scores", IMPORTANCE, NORMAL_SCORES),
    ("ablation, normal scores", ABLATION, NORMAL_SCORES),
    ("ablation, standardised points", ABLATION, STANDARDISED_POINTS),
)
"""Name, measure and unit of each estimate; the first is primary."""
BY_LEARNING = "learned claims alone"


@dataclass(frozen=True)
class Estimates:
    """The primary estimate, and all in one table."""

    primary: ContestEstimate
    table: pl.DataFrame
    notes: tuple[str, ...]
    beside_learned: str = ""
    """What the primary statement adds on learned claims alone; empty if no head was forced."""


def worth_table(values: pl.DataFrame, pairs: pl.DataFrame, measure: str) -> pl.DataFrame:
    """What heads are worth in pair runs, as `contest` takes it; halves of a twin run are averaged.

    `values` as `head_values` gives them, `pairs` with the columns `run`, `seed`, `task`, `of`, `partner`.
    """
    return (
        values.filter(pl.col("measure") == measure)
        .drop("seed")
        .join(pairs.select("run", "seed", "task", "of", "partner"), on=["run", "task"])
        .group_by("of", "partner", "seed", *KEYS, maintain_order=True)
        .agg(worth=pl.col("value").mean())
        .rename({"of": "task"})
    )


def estimates(
    values: pl.DataFrame,
    pairs: pl.DataFrame,
    claims: pl.DataFrame,
    others: Mapping[str, pl.DataFrame],
    extra: Sequence[tuple[str, pl.DataFrame, pl.DataFrame, WorthUnit]] = (),
    draws: int = DRAWS,
    learned: pl.DataFrame | None = None,
) -> Estimates:
    """The contest in every unit, by every other set of claims (by name), and for each task alone.

    `learned`: the claims that no target forced, if some are forced. `extra`: further measures as name, worth,
    claims, unit. If an estimate cannot be made, a note says why; for the primary one, this is a `ValueError`.
    """
    rows: list[dict[str, object]] = []
    notes: list[str] = []
    worth = worth_table(values, pairs, IMPORTANCE)
    primary, remarks = contest(worth, claims, draws=draws)
    notes += remarks

    def add(
        group: str, name: str, table: pl.DataFrame, of: pl.DataFrame, unit: WorthUnit, tasks: str = ""
    ) -> None:
        try:
            found, _ = contest(table, of, unit, tasks=(tasks,) if tasks else (), draws=draws)
        except ValueError as error:
            notes.append(f"no estimate of the contest by {name}: {error}")
            return
        rows.append(_row(group, name, found, unit, tasks, not rows))

    measured = set(values["measure"])
    for name, measure, unit in UNITS:
        if measure in measured:
            add("unit", name, worth_table(values, pairs, measure), claims, unit)
    for name, table, of, unit in extra:
        add("unit", name, table, of, unit)
    beside = ""
    if learned is not None:
        add("claims", BY_LEARNING, worth, learned, STANDARDISED_LOGS)
        row = next((row for row in rows if row["estimate"] == BY_LEARNING), None)
        word, reason = (CANNOT_TELL, "no estimate") if row is None else (row["word"], row["reason"])
        beside = beside_learned((primary.word, primary.reason), (str(word), str(reason)))
    for name, of in others.items():
        add("claims", f"claims of {name}", worth, of, STANDARDISED_LOGS)
    for task in dict.fromkeys(claims["task"]):
        if task in set(worth["task"]):
            add("task", f"{task} alone", worth, claims, STANDARDISED_LOGS, task)
    return Estimates(
        primary, pl.DataFrame(rows, schema=SCHEMA).fill_nan(None), tuple(dict.fromkeys(notes)), beside
    )


def _row(
    group: str, name: str, found: ContestEstimate, unit: WorthUnit, tasks: str, primary: bool
) -> dict[str, object]:
    return {
        "group": group, "estimate": name, "primary": primary, "unit": unit.name, "tasks": tasks,
        "seeds": len(found.seeds), "heads": found.heads, "beta": found.beta, "low": found.low,
        "high": found.high, "p": found.p, "share": found.share, "share_low": found.share_low,
        "share_high": found.share_high, "reliability": found.reliability, "corrected": found.corrected,
        "corrected_low": found.corrected_low, "corrected_high": found.corrected_high, "word": found.word,
        "reason": found.reason,
    }  # fmt: skip


def claims_table(masks: Masks) -> pl.DataFrame:
    """The heads that each task claims by these masks, as `contest` takes them; without control tasks."""
    masks = masks.of_real_labels()
    task, site, head = (axis.ravel() for axis in np.indices(masks.claimed().shape))
    return pl.DataFrame(
        {
            "task": [masks.tasks[number] for number in task],
            "attention": [masks.sites[number].attention for number in site],
            "layer": [masks.sites[number].layer for number in site],
            "head": head,
            "claimed": masks.claimed().ravel(),
            "of_seeds": np.moveaxis(masks.opened, 1, -1).reshape(len(task), -1).tolist(),
        },
        schema_overrides={"layer": pl.Int32, "head": pl.Int32},
    )


def learned_claims(masks: Masks) -> pl.DataFrame | None:
    """`claims_table` of the claims that no target forced; `None` if none is forced."""
    return claims_table(masks.learned_alone()) if masks.forced().any() else None


LINE_UNITS = {
    "heads": ColumnUnit.NUMBER.of("apart", "beside"),
    "tasks": ColumnUnit.NUMBER.of("apart", "beta", "low", "high") | ColumnUnit.SHARE.of("share"),
    "sides": ColumnUnit.NUMBER.of("mean", "low", "high"),
}
"""The units of the tables of `head_lines`, `task_means` and `side_means`; numbers are standardised logs."""


def head_lines(cells: ContestCells, unit: WorthUnit = STANDARDISED_LOGS) -> pl.DataFrame:
    """Per task and own head the mean worth beside partners that do not claim it, and beside those that do.

    The effects of partners on whole layers are taken out (partial residuals of the task's own fit), since
    they would move lines for other reasons. Only heads with both kinds of partners have a row. Columns: task,
    attention, layer, head, apart, beside.
    """
    rows = []
    for of in cells.tasks:
        values = in_unit(of, unit).mean(0)
        block = TaskBlock(cells, of, values)
        square = block.with_claims(block.claim[None]).item()
        beta = -block.with_worth(block.claim, values[None]).item() / square if square > 1e-9 else 0.0
        level = values[:, block.own] + beta * block.claim
        of_partner = level @ (np.eye(len(block.own)) - block.within)
        adjusted = values[:, block.own] - of_partner + of_partner.mean(0)
        for number, cell in enumerate(block.own):
            claims = block.claim[:, number] > 0
            if claims.any() and not claims.all():
                site = cells.sites[cells.strata[cell]]
                rows.append(
                    {
                        "task": of.task, "attention": site.attention, "layer": site.layer,
                        "head": int(cell) % cells.heads,
                        "apart": float(adjusted[~claims, number].mean()),
                        "beside": float(adjusted[claims, number].mean()),
                    }
                )  # fmt: skip
    schema = {"task": pl.String, "attention": pl.String, "layer": pl.Int32, "head": pl.Int32}
    return pl.DataFrame(rows, schema=schema | {"apart": pl.Float64, "beside": pl.Float64})


def task_means(
    cells: ContestCells, unit: WorthUnit = STANDARDISED_LOGS, level: float = 0.05, draws: int = 1999
) -> pl.DataFrame:
    """Per task the mean of the column `apart` of `head_lines`, and beta with its interval for the task alone.

    Columns: task, heads, apart, beta, low, high, share, word. A task without a head to compare has no row.
    """
    lines = head_lines(cells, unit)
    rows = []
    for of in cells.tasks:
        of_task = lines.filter(pl.col("task") == of.task)
        if of_task.is_empty():
            continue
        found = estimate_contest(replace(cells, tasks=(of,)), unit, level=level, draws=draws)
        rows.append(
            {
                "task": of.task, "heads": found.heads, "apart": of_task["apart"].mean(), "beta": found.beta,
                "low": found.low, "high": found.high, "share": found.share, "word": found.word,
            }
        )  # fmt: skip
    schema = {"task": pl.String, "heads": pl.Int64, "apart": pl.Float64, "beta": pl.Float64}
    return pl.DataFrame(
        rows, schema=schema | {"low": pl.Float64, "high": pl.Float64, "share": pl.Float64, "word": pl.String}
    )


def side_means(worth: pl.DataFrame, heads: pl.DataFrame, unit: WorthUnit = STANDARDISED_LOGS) -> pl.DataFrame:
    """What heads are worth on average to a task beside its twin and beside the control task.

    The mean is over `heads` (task, attention, layer, head: those of `head_lines`); before that, worth is put
    into the unit over all heads of the run. `mean` is over seeds, with Student's 95 % interval (null for one
    seed). Effects on whole layers are not taken out: a twin claims every head of the task, so its effect on
    layers cannot be separated. `worth` as `contest_cells` takes it. Columns: task, partner, seeds, mean, low,
    high.
    """
    rows = []
    beside = worth.filter(pl.col("partner").is_in([TWIN, CONTROL]))
    for (task, partner), runs in beside.group_by("task", "partner", maintain_order=True):
        means = []
        for _, run in runs.group_by("seed", maintain_order=True):
            scaled = run.with_columns(scaled=unit.scaled(run["worth"].to_numpy()))
            chosen = scaled.join(heads.filter(pl.col("task") == task), on=["task", *KEYS], how="semi")
            if chosen.height:
                means.append(chosen["scaled"].to_numpy().mean())
        if means:
            low, high = student(np.array(means))
            rows.append((str(task), str(partner), len(means), float(np.mean(means)), low, high))
    schema = {"task": pl.String, "partner": pl.String, "seeds": pl.Int64}
    return pl.DataFrame(
        rows, schema=schema | dict.fromkeys(("mean", "low", "high"), pl.Float64), orient="row"
    ).fill_nan(None)


SKILL_UNITS: tuple[tuple[str, str, WorthUnit], ...] = (
    ("skill of attention, uncut", "attention", SKILL_POINTS),
    ("skill of clustering, uncut, beyond the layer's input", "clustering", SKILL_BEYOND_INPUT),
)
"""Name, measure and unit of each secondary estimate by probes."""


def uncut_skill(heads: pl.DataFrame, pairs: pl.DataFrame, measure: str = "attention") -> pl.DataFrame:
    """Per task, partner, seed and head what its probe scores above the baseline, as `contest` takes worth.

    The baseline of attention is the best fixed offset. That of clustering is the score of random projections
    of the layer's input, since most of what clustering finds is there before any head reads it. A projection
    has as many dimensions as a head, so the level of shuffled labels is the same for both and cancels.

    Skill is averaged over labels that count (`label_scores`), weighted by items. For attention, these are the
    labels on which the head is above the offset in single-task runs. So labels are chosen on runs that have
    no part in the estimate, and a fall below the offset counts; a head without such a label has 0 beside
    every partner. For clustering, all labels are taken, since nearly all heads are below the projections
    (heads mix the words that they attend to), and a choice would leave rare labels that are above by chance.

    `heads` is as `skills` takes it, `pairs` has run, task, of, partner. The table is empty without probes of
    single tasks and of pairs. Raises `ValueError` if one of their runs has no baseline.
    """
    by = ["task", "label", *KEYS]
    baseline = BY_NAME[measure].projection or BY_NAME[measure].chance
    above = in_texts(label_scores(heads, {measure: baseline or ""}).filter("counted"))
    alone = above.filter(pl.col("regime") == "stl")
    measured = above.join(pairs.select("run", "task", "of", "partner"), on=["run", "task"])
    measured = measured.filter(pl.col("of").is_in(set(alone["task"])))
    if measured.is_empty():
        alone = alone.clear()
    lacking = pl.concat([table.filter(pl.col("above").is_null())["run"] for table in (alone, measured)])
    if len(lacking):
        raise ValueError(
            f"{counted(lacking.n_unique(), 'run')}, such as {lacking[0]}, probed without {baseline}: "
            "'mtl probe RUN' measures it"
        )
    means = alone.group_by(by).agg(pl.col("above").mean())
    beyond = pl.lit(BY_NAME[measure].projection is not None) | (pl.col("above") > 0)
    chosen = means.filter(beyond).select(by)
    all_cells = measured.select("of", "partner", "seed", *KEYS).unique(maintain_order=True)
    skill = (
        measured.with_columns(task=pl.col("of"))
        .join(chosen, on=by, how="semi")
        .group_by("of", "partner", "seed", *KEYS)
        .agg(worth=weighted_mean("above"))
    )
    joined = all_cells.join(skill, on=["of", "partner", "seed", *KEYS], how="left", maintain_order="left")
    return joined.with_columns(pl.col("worth").fill_null(0.0)).rename({"of": "task"})

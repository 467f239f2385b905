"""How much less each task scores in one way of training than in another: by default, jointly than alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from jaxtyping import Float

from mtl.probes.signed_words import SignedWords
from mtl.probes.statistics.corrections import holm
from mtl.probes.statistics.spread_of_runs import Runs, difference, seed_effect
from mtl.probes.stem_cell.statistics.task_losses import paired
from mtl.probes.stem_cell.statistics.wanted import CANNOT_TELL, FEWEST_SEEDS, NO, YES, Word
from mtl.tasks.in_words import counted

MARGIN = 1.0
"""Points of a score below which a loss needs no remedy; fixed before any run."""
SCHEMA = pl.Schema(
    {"setup": pl.String, "task": pl.String, "seeds": pl.Int64}
    | dict.fromkeys(("loss", "low", "high", "p", "p_holm"), pl.Float64)
    | {"pooled": pl.Boolean, "seed_p": pl.Float64}
    | dict.fromkeys(("paired_low", "paired_high", "paired_p"), pl.Float64)
)
ALL = "mean"
"""The row of the mean over tasks."""


@dataclass(frozen=True)
class Wording:
    """What the two ways of training are called."""

    way: str
    """The way that may cost something, as the start of a sentence: `trained jointly`."""
    than: str
    """The other way: `alone`."""
    both: str
    """How a task was trained that has both ways: `alone and jointly`."""


JOINTLY = Wording("trained jointly", "alone", "alone and jointly")


@dataclass(frozen=True)
class Sharing:
    """What joint training, or another way of training, costs."""

    table: pl.DataFrame
    """setup, task (or `mean`: over tasks), seeds, loss in points, low, high, p, p_holm (over the tasks of the
    setup), pooled, seed_p (of `seed_effect`), and the comparison paired by seed: paired_low, paired_high,
    paired_p."""
    word: Word
    reason: str


def sharing(
    scores: pl.DataFrame,
    setups: Mapping[str, Mapping[str, str]],
    level: float = 0.05,
    wording: Wording = JOINTLY,
) -> Sharing:
    """The loss of each group of setups: alone less jointly, in points, positive where sharing hurts.

    `scores`: setup, task, seed, score (per cent), of all setups from whose runs the spread of scores is
    taken. `setups`: by the name of a group its setups, each with the setup of single-task runs to compare
    with (the pairs of five tasks are ten setups of one group, whose losses are averaged per task). Interval
    and p of a task are those of `difference` with an error of `level`, and p is corrected over the group's
    tasks by Holm. Beside them are those paired by seed (Student's interval, p by exchanging signs). The mean
    over tasks has only these: one task with a wide spread would decide it.

    The word is on the tasks of the first group that have three runs of each setup: *yes* if one of them loses
    (its corrected p is at most `level`), else *no* if all intervals end below `MARGIN`, else *cannot tell*.
    """
    rows = [row for group, members in setups.items() for row in _rows(scores, group, members, level)]
    table = pl.DataFrame(rows, schema=SCHEMA, orient="row").fill_nan(None)
    first = table.filter((pl.col("setup") == next(iter(setups), "")) & (pl.col("task") != ALL))
    return Sharing(table, *word_on(first, level, wording))


def _rows(
    scores: pl.DataFrame, group: str, members: Mapping[str, str], level: float
) -> list[dict[str, object]]:
    differences = _differences(scores, members)
    by_task = differences.pivot("task", index="seed", values="loss").sort("seed")
    rows = [
        _row(_runs(scores, task), members, {"setup": group, "task": task}, by_task[task], level)
        for task in by_task.columns[1:]
    ]
    corrected = holm(np.array([row["p"] for row in rows], dtype=float))
    for row, p in zip(rows, corrected, strict=True):
        row["p_holm"] = float(p)
    complete = by_task.drop_nulls()
    if len(rows) > 1 and complete.height:
        means = complete.select(by_task.columns[1:]).to_numpy().mean(1)
        rows.append(
            {"setup": group, "task": ALL, "seeds": len(means), "loss": means.mean()} | _pairs(means, level)
        )
    return rows


def _row(
    runs: Mapping[str, Runs],
    members: Mapping[str, str],
    names: dict[str, object],
    losses: pl.Series,
    level: float,
) -> dict[str, object]:
    """A task's row: the mean over the group's setups that have the task, each less its single-task runs."""
    there = {setup: alone for setup, alone in members.items() if setup in runs and alone in runs}
    weights = dict.fromkeys((*there, *there.values()), 0.0)
    for setup, alone in there.items():
        weights[alone] += 1 / len(there)
        weights[setup] -= 1 / len(there)
    found = difference(runs, weights, 1 - level)
    return names | {
        "seeds": min(len(runs[setup]) for setup in weights), "loss": found.value, "low": found.low,
        "high": found.high, "p": found.p, "pooled": found.pooled, "seed_p": seed_effect(runs).p,
    } | _pairs(losses.drop_nulls().to_numpy(), level)  # fmt: skip


def _pairs(losses: Float[np.ndarray, " seed"], level: float) -> dict[str, object]:
    return dict(zip(("paired_low", "paired_high", "paired_p"), paired(losses, 1 - level), strict=True))


def _runs(scores: pl.DataFrame, task: str) -> dict[str, Runs]:
    """By setup and seed the scores of a task."""
    by_seed = (
        scores.filter(task=task).group_by("setup", "seed", maintain_order=True).agg(pl.col("score").mean())
    )
    return {
        str(setup): dict(of_setup.select("seed", "score").iter_rows())
        for (setup,), of_setup in by_seed.group_by("setup", maintain_order=True)
    }


def _differences(scores: pl.DataFrame, members: Mapping[str, str]) -> pl.DataFrame:
    """Per task and seed the mean loss over the setups of a group: task, seed, loss."""
    parts = [pl.DataFrame(schema={"task": pl.String, "seed": pl.Int64, "loss": pl.Float64})]
    for setup, baseline in members.items():
        ours, alone = (scores.filter(pl.col("setup") == name) for name in (setup, baseline))
        both = ours.join(alone, on=["task", "seed"], suffix="_alone", maintain_order="left")
        parts.append(both.select("task", "seed", loss=pl.col("score_alone") - pl.col("score")))
    return pl.concat(parts).group_by("task", "seed", maintain_order=True).agg(pl.col("loss").mean())


SCORED = SignedWords("less", "more", "points")
"""The wording of lost points."""


def word_on(table: pl.DataFrame, level: float = 0.05, wording: Wording = JOINTLY) -> tuple[Word, str]:
    """The word on the tasks of one group, each with a row of the table, and its reason."""
    if table.is_empty():
        return CANNOT_TELL, f"no seed with which a task was trained {wording.both}"
    enough = table.filter(pl.col("seeds") >= FEWEST_SEEDS)
    known = enough.filter(pl.col("p").is_not_null())
    if known.is_empty():
        most = int(table["seeds"].to_numpy().max())
        why = f"at most {counted(most, 'seed')} of a task {wording.both}, and {FEWEST_SEEDS} are needed"
        if not enough.is_empty():
            why = "all runs of a setup have the same score, so their spread is not known"
        mean = SCORED.of(float(table["loss"].to_numpy().mean()))
        return CANNOT_TELL, f"{why}; {wording.way}, tasks score {mean} than {wording.than} on average"
    certain = known.filter(pl.col("p_holm") <= level)
    words = [
        f"{row['task']} scores {SCORED.of(row['loss'])} than {wording.than} ({1 - level:.0%} interval "
        f"{SCORED.interval(row['low'], row['high'])})"
        for row in certain.sort("loss", descending=True).iter_rows(named=True)
    ]
    open_tasks = known.filter(pl.col("p_holm") > level)
    small = open_tasks.filter(pl.col("high") < MARGIN)["task"].to_list()
    wide = open_tasks.filter(pl.col("high") >= MARGIN)["task"].to_list()
    if small:
        words.append(
            f"{_list(small)} {'lose' if len(small) > 1 else 'loses'} less than {MARGIN:g} point, if anything"
        )
    if wide:
        words.append(f"for {_list(wide)}, no loss and a loss of {MARGIN:g} point are both possible")
    word: Word = CANNOT_TELL if wide else NO
    if certain.filter(pl.col("loss") > 0).height:
        word = YES
        if known.filter(pl.col("high") >= MARGIN).is_empty():
            words.append(f"no task loses {MARGIN:g} point")
    return word, f"{wording.way}, {'; '.join(words)}"


def _list(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)

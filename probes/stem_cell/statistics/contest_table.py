"""All estimates of the contest: the primary one, and those by other units, claims and tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from mtl.probes.sites import KEYS
from mtl.probes.statistics.masks import Masks
from mtl.probes.stem_cell.statistics.competition import beside_learned
from mtl.probes.stem_cell.statistics.contest import CANNOT_TELL, DRAWS, ContestEstimate, contest
from mtl.probes.stem_cell.statistics.worth_units import (
    NORMAL_SCORES,
    STANDARDISED_LOGS,
    STANDARDISED_POINTS,
    Unit,
)

SCHEMA = pl.Schema(
    {
        "group": pl.String, "estimate": pl.String, "primary": pl.Boolean, "unit": pl.String,
        "tasks": pl.String, "seeds": pl.Int64, "heads": pl.Int64,
    }
    | dict.fromkeys(
        (
            "beta", "low", "high", "p", "share", "share_low", "share_high", "reliability", "corrected",
            "corrected_low", "corrected_high",
        ),
        pl.Float64,
    )
    | {"word": pl.String, "reason": pl.String}
)  # fmt: skip
IMPORTANCE = "importance"
ABLATION = "ablation"
UNITS: tuple[tuple[str, str, Unit], ...] = (
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
    extra: Sequence[tuple[str, pl.DataFrame, pl.DataFrame, Unit]] = (),
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
        group: str, name: str, table: pl.DataFrame, of: pl.DataFrame, unit: Unit, tasks: str = ""
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
    group: str, name: str, found: ContestEstimate, unit: Unit, tasks: str, primary: bool
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

"""Does sharing hurt? What tasks score less trained jointly than alone, paired over seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from mtl.probes.signed_words import SignedWords
from mtl.probes.stem_cell.statistics.task_losses import paired
from mtl.probes.stem_cell.statistics.wanted import CANNOT_TELL, FEWEST_SEEDS, NO, YES, Word

MARGIN = 1.0
"""Points of a score below which a loss needs no remedy; fixed before any run."""
SCHEMA = pl.Schema(
    {"setup": pl.String, "task": pl.String, "seeds": pl.Int64}
    | dict.fromkeys(("loss", "low", "high", "p"), pl.Float64)
)
ALL = "mean"
"""The row of the mean over tasks."""


@dataclass(frozen=True)
class Sharing:
    """What joint training costs."""

    table: pl.DataFrame
    """setup, task (and `mean`: over tasks), seeds, loss in points, low, high, p."""
    word: Word
    reason: str


def sharing(scores: pl.DataFrame, setups: Mapping[str, Mapping[str, str]], level: float = 0.05) -> Sharing:
    """The loss of each group of setups: alone less jointly, in points, positive where sharing hurts.

    `scores`: setup, task, seed, score (per cent). `setups`: by the name of a group its setups, each with that
    of the single-task runs to compare with (the pairs of five tasks are ten setups of one group, averaged per
    task and seed). The run is the unit: seeds that both have are paired, the interval is Student's over seeds
    with an error of `level`, p by exchanging signs. The word is on the first group's mean over tasks: *yes*
    where the interval is above 0 (the reason adds if it is also below `MARGIN`), else *no* where it is below
    `MARGIN`, else *cannot tell*.
    """
    rows = []
    for group, members in setups.items():
        differences = _differences(scores, members)
        by_task = differences.pivot("task", index="seed", values="loss").sort("seed")
        tasks = [name for name in by_task.columns if name != "seed"]
        complete = by_task.drop_nulls()
        rows += [_row(group, task, by_task[task].drop_nulls().to_numpy(), level) for task in tasks]
        if len(tasks) > 1 and complete.height:
            rows.append(_row(group, ALL, complete.select(tasks).to_numpy().mean(1), level))
    table = pl.DataFrame(rows, schema=SCHEMA, orient="row").fill_nan(None)
    first = next(iter(setups), "")
    mean = table.filter((pl.col("setup") == first) & (pl.col("task") == ALL))
    if mean.is_empty():
        return Sharing(table, CANNOT_TELL, "no seed of which all tasks were trained alone and jointly")
    row = mean.row(0, named=True)
    return Sharing(table, *_word(row["seeds"], row["loss"], row["low"], row["high"], level))


def _differences(scores: pl.DataFrame, members: Mapping[str, str]) -> pl.DataFrame:
    """Per task and seed the mean loss over the setups of a group: task, seed, loss."""
    parts = [pl.DataFrame(schema={"task": pl.String, "seed": pl.Int64, "loss": pl.Float64})]
    for setup, baseline in members.items():
        ours, alone = (scores.filter(pl.col("setup") == name) for name in (setup, baseline))
        both = ours.join(alone, on=["task", "seed"], suffix="_alone", maintain_order="left")
        parts.append(both.select("task", "seed", loss=pl.col("score_alone") - pl.col("score")))
    return pl.concat(parts).group_by("task", "seed", maintain_order=True).agg(pl.col("loss").mean())


def _row(
    setup: str, task: str, losses: np.ndarray, level: float
) -> tuple[str, str, int, float, float, float, float]:
    low, high, p = paired(losses, 1 - level)
    return setup, task, len(losses), float(losses.mean()), low, high, p


SCORED = SignedWords("less", "more", "points")
"""The wording of lost points."""


def _word(seeds: int, loss: float, low: float | None, high: float | None, level: float) -> tuple[Word, str]:
    if seeds < FEWEST_SEEDS or low is None or high is None:
        few = (
            f"{seeds} seed{'s' * (seeds != 1)} of all tasks alone and jointly, and {FEWEST_SEEDS} are needed"
        )
        return CANNOT_TELL, f"{few}; tasks score {SCORED.of(loss)} jointly than alone, on average"
    figures = (
        f"tasks score {SCORED.of(loss)} jointly than alone, on average "
        f"({1 - level:.0%} interval {SCORED.interval(low, high)}, {seeds} seeds)"
    )
    if low > 0:
        return YES, figures + (f"; that is less than {MARGIN:g}" if high < MARGIN else "")
    if high < MARGIN:
        return NO, f"less than {MARGIN:g} point is lost: {figures}"
    return CANNOT_TELL, f"no effect and a loss of {MARGIN:g} point are both possible: {figures}"

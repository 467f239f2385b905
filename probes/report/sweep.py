"""The report's section on a sweep: its trials, the best of them, and the parameters in which they differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import polars as pl
from markupsafe import Markup
from matplotlib.figure import Figure

from mtl.probes.figures.parallel_coordinates import Axis, parallel_coordinates
from mtl.probes.report.embedded import embedded


@dataclass(frozen=True)
class TrialRow:
    """The result of a trial."""

    name: str
    state: str
    score: float | None
    seconds: float


@dataclass(frozen=True)
class SweepEvidence:
    """A sweep, as its report shows it."""

    method: str
    metric: str
    goal: Literal["minimize", "maximize"]
    trials: tuple[TrialRow, ...]
    axes: tuple[Axis, ...]
    best: str | None
    """The name of the best finished trial."""

    def table(self) -> pl.DataFrame:
        """The trials, with a column for each axis; finished trials come first, then better scores."""
        rows = pl.DataFrame(
            {
                "trial": [trial.name for trial in self.trials],
                "state": [trial.state for trial in self.trials],
                self.metric: pl.Series([trial.score for trial in self.trials], dtype=pl.Float64),
                **{axis.name: pl.Series(list(axis.values), strict=False) for axis in self.axes},
                "seconds": [round(trial.seconds, 1) for trial in self.trials],
            }
        )
        descending = [False, self.goal == "maximize"]
        by = (pl.col("state") != "finished", self.metric)
        return rows.sort(by, descending=descending, nulls_last=True, maintain_order=True)

    def picture(self) -> Figure | None:
        """Parallel coordinates; `None` if no trial has a score."""
        scores = [trial.score for trial in self.trials]
        if all(score is None for score in scores):
            return None
        best = next((place for place, trial in enumerate(self.trials) if trial.name == self.best), None)
        return parallel_coordinates(self.axes, scores, self.metric, best, self.goal == "maximize")


@dataclass(frozen=True)
class SweepSection:
    """The section of the page."""

    evidence: SweepEvidence
    table: pl.DataFrame
    best: dict[str, object] | None
    """The row of the best trial."""
    picture: Markup | None


def sweep_section(evidence: SweepEvidence) -> SweepSection:
    """What the page shows of a sweep."""
    table = evidence.table()
    best = table.filter(pl.col("trial") == evidence.best).to_dicts() if evidence.best else []
    figure = evidence.picture()
    picture = None
    if figure is not None:
        picture = embedded(figure, f"parallel coordinates of the trials, coloured by {evidence.metric}")
    return SweepSection(evidence, table, best[0] if best else None, picture)

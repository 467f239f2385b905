"""The page's section on what heads are worth to each task, alone and jointly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from markupsafe import Markup

from mtl.probes.measures.groups import BY_NAME
from mtl.probes.report.data import ReportData
from mtl.probes.report.head_maps import head_map
from mtl.probes.sites import Site, grid
from mtl.probes.statistics.head_values import (
    ABLATION,
    OF_WORTH,
    SIGNIFICANT,
    agreement,
    head_means,
    prediction,
)
from mtl.probes.statistics.head_values import AGREEMENT_UNITS as AGREEMENT_UNITS
from mtl.probes.statistics.head_values import PREDICTION_UNITS as PREDICTION_UNITS
from mtl.probes.tables.table_files import OF_MEASURES, About

SHOWN = tuple(dict.fromkeys([ABLATION, *(names[0] for names in OF_WORTH.values() if names)]))
"""The measures that maps may show; the first one that was measured is drawn."""


@dataclass(frozen=True)
class WorthMap:
    """A map of a task's heads in one setup."""

    setup: str
    svg: Markup
    runs: int
    significant: int | None
    """The number of heads that are significant in most runs; `None` if this was not tested."""


@dataclass(frozen=True)
class Worth:
    """The contents of the section."""

    measure: str
    title: str
    level: str
    """The false discovery rate at which heads are marked."""
    maps: list[tuple[str, str, list[WorthMap]]]
    """For each task its name, the value of full colour, and its maps."""
    prediction: pl.DataFrame
    means: pl.DataFrame
    """The means of the measure per head (`head_means`)."""
    resampled: str
    """What the tests resample, in words; empty without tests."""
    values: pl.DataFrame
    """The values that everything is computed from: `ReportData.worth`."""

    def about(self) -> dict[str, About]:
        """What their files say of their numbers."""
        of_measure = OF_MEASURES[BY_NAME[self.measure].unit].of("value")
        return {
            "head-worth": About(
                of_measure,
                (f"value: {self.title}, the mean over runs", *((self.resampled,) if self.resampled else ())),
            ),
            "prediction": About(
                PREDICTION_UNITS, paper=("task", "setup", "measure", "runs", "spearman", "low high")
            ),
            "agreement": About(
                AGREEMENT_UNITS, paper=("measure", "first", "second", "pairs", "spearman", "low high")
            ),
        }

    def tables(self) -> dict[str, pl.DataFrame]:
        """The tables for files, with the agreement of tables of heads, which the page does not show."""
        grouped = self.values.with_columns(group=pl.format("{}, {}", "task", "setup"))
        found = agreement(grouped, self.measure)
        return {"head-worth": self.means, "prediction": self.prediction, "agreement": found}


def worth_section(evidence: ReportData, sites: Sequence[Site], heads: int) -> Worth | None:
    """The section; `None` if no run has such measures."""
    values = evidence.worth
    measured = () if values is None else [name for name in SHOWN if name in set(values["measure"].unique())]
    if values is None or not measured:
        return None
    measure = measured[0]
    means = head_means(values, measure)
    order = [setup.name for setup in evidence.setups]
    maps = []
    for (task,), of_task in means.group_by("task", maintain_order=True):
        most = max(map(abs, of_task["value"].drop_nulls().to_list()), default=0.0) or 1.0
        drawn = []
        for setup in order:
            cells = of_task.filter(pl.col("setup") == setup)
            if cells.is_empty():
                continue
            tested = cells["significant"].is_not_null().any()
            marked = grid(cells, "significant", sites, heads) == 1
            title = f"{BY_NAME[measure].title}: {task}, {setup}"
            drawn.append(
                WorthMap(
                    setup,
                    head_map(grid(cells, "value", sites, heads) / most, sites, title, marked),
                    int(np.max(cells["runs"].to_numpy())),
                    int(marked.sum()) if tested else None,
                )
            )
        unit = {"points": " points", "nats": " nats"}.get(BY_NAME[measure].unit, "")
        maps.append((str(task), f"{most:.3g}{unit}", drawn))
    title, level = BY_NAME[measure].title, f"{SIGNIFICANT:g}"
    resampled = f"The tests resample {' and '.join(evidence.resampled)}" if evidence.resampled else ""
    if "sentences" in evidence.resampled:
        resampled += ", as if sentences were independent"
    if measure != ABLATION:
        resampled = ""
    return Worth(measure, title, level, maps, prediction(values), means, resampled, values)

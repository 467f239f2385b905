"""The page's table of labels: the best head of each in every regime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from mtl.probes.measures.table import SKILLS
from mtl.probes.report.data import ReportData
from mtl.probes.sites import Site
from mtl.probes.statistics.skill import REGIMES, label_values, skills
from mtl.probes.tables.label_scores import best_of_labels


def label_skills(evidence: ReportData, notes: list[str]) -> tuple[pl.DataFrame | None, pl.DataFrame | None]:
    """The tables `skills` and `label_values`, or two `None`; a note says why, unless there are no probes."""
    if evidence.heads is None or not evidence.on_words:
        return None, None
    if not evidence.heads["measure"].is_in(list(SKILLS)).any():
        notes.append("the tables of probes have no accuracies per label")
        return None, None
    try:
        return skills(evidence.heads), label_values(evidence.heads)
    except ValueError as error:
        notes.append(str(error))
        return None, None


def label_rows(
    labels: pl.DataFrame | None, skill: pl.DataFrame | None, sites: Sequence[Site], heads: int
) -> list[dict[str, Any]]:
    """Per label the best heads' values in each regime, chance, and the head that is best on average."""
    if labels is None or skill is None:
        return []
    best = best_of_labels(skill, ("regime",))
    place = {site: number for number, site in enumerate(sites)}
    best_cell = {
        (row["regime"], row["task"], row["label"]): place[Site(row["attention"], row["layer"])] * heads
        + row["head"]
        for row in best.iter_rows(named=True)
    }
    rows = []
    for number, row in enumerate(labels.iter_rows(named=True)):
        values = {regime: row[regime] for regime in REGIMES if regime in row}
        keys = {regime: (regime, row["task"], row["label"]) for regime in values}
        joint, alone = values.get("joint"), values.get("stl")
        rows.append(
            {
                "place": number, "task": row["task"], "label": row["label"], "count": row["count"],
                "values": values, "chance": row["chance"], "counted": row["counted"],
                "heads": {regime: best_cell[key] for regime, key in keys.items() if key in best_cell},
                "change": None if joint is None or alone is None else joint - alone,
            }
        )  # fmt: skip
    return rows

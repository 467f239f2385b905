"""The laboratory's figures that a study's report draws, each with the runs that it is drawn from."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from mtl.probes.report.claims import ClaimingSetup
from mtl.probes.report.data import ReportData


def dose(data: ReportData, claiming: ClaimingSetup | None) -> dict[str, list[Path]]:
    """Scores of pairs under fixed masks."""
    return _of_table(data, "dose", "dose")


def contest(data: ReportData, claiming: ClaimingSetup | None) -> dict[str, list[Path]]:
    """The contest and all its estimates, if there are claims, pairs and the worth of their heads."""
    runs = _of_contest(data, claiming)
    return dict.fromkeys(("contest", "forest"), runs) if runs else {}


def conflict(data: ReportData, claiming: ClaimingSetup | None) -> dict[str, list[Path]]:
    """The cosines of gradients, if there are such and the contest can be drawn."""
    runs = _of_contest(data, claiming)
    return {"conflict": runs} if runs and "cosines" in data.evidence else {}


def remedies(data: ReportData, claiming: ClaimingSetup | None) -> dict[str, list[Path]]:
    """What remedies bring back."""
    return _of_table(data, "remedies", "recovery")


def _of_table(data: ReportData, name: str, figure: str) -> dict[str, list[Path]]:
    table = data.evidence.get(name)
    return {} if table is None else {figure: [Path(run) for run in table["run"].unique(maintain_order=True)]}


def _of_contest(data: ReportData, claiming: ClaimingSetup | None) -> list[Path]:
    """The runs of the contest's figures: masked runs of single tasks (those of the claims first), then pairs.

    Empty if claims, pairs or the worth of the pairs' heads are missing.
    """
    pairs = data.evidence.get("pairs")
    if data.gates is None or pairs is None or data.worth is None:
        return []
    if data.worth.filter(pl.col("run").is_in(set(pairs["run"]))).is_empty():
        return []
    alone = [setup.name for setup in data.setups if setup.single]
    masked = (
        data.gates.filter(pl.col("setup").is_in(alone)).select("run", "setup").unique(maintain_order=True)
    )
    first = masked["setup"] == (claiming.setup if claiming is not None else "")
    folders = [*masked.filter(first)["run"], *masked.filter(~first)["run"]]
    return [Path(run) for run in [*folders, *pairs["run"].unique(maintain_order=True)] if folders]

"""The page's figures of scores: in training, against the number of open heads, and along pruning curves."""

from __future__ import annotations

import polars as pl
from markupsafe import Markup

from mtl.probes.figures.heads_kept import heads_kept
from mtl.probes.figures.learning_curves import learning_curves
from mtl.probes.figures.pruning_curves import kind_curves, pruning_curves
from mtl.probes.report.data import ReportData
from mtl.probes.report.embedded import embedded


def learning_figure(evidence: ReportData) -> Markup | None:
    """Learning curves; `None` if no run has two evaluations."""
    history = evidence.history
    if history.is_empty() or history.group_by("setup", "task", "run").len()["len"].max() == 1:
        return None
    figure = learning_curves(history, evidence.metrics, evidence.names())
    return embedded(figure, "scores on dev while training, a panel for each task")


def heads_kept_figure(evidence: ReportData) -> Markup | None:
    """Scores against open heads; `None` without masks or scores."""
    if evidence.kept is None:
        return None
    kept = evidence.kept.table
    setups = [setup.name for setup in evidence.setups]
    # In the order of the table of scores; here, the names of setups do not contain penalties.
    place = {name: place for place, name in enumerate(dict.fromkeys([*setups, *kept["setup"]]))}
    kept = kept.sort(pl.col("setup").replace_strict(place), "kept", "run")
    figure = heads_kept(kept, evidence.kept.heads, evidence.metrics, evidence.names())
    return embedded(figure, "score against open heads, a panel for each task")


def pruning_figures(evidence: ReportData) -> list[tuple[str, Markup, Markup | None]]:
    """Per setup its pruning curves, and the heads kept of each kind of attention, if there are several."""
    if evidence.pruning is None:
        return []
    points, kinds = evidence.pruning.points, evidence.pruning.kinds
    figures = dict(points.select("task", "figure").unique(maintain_order=True).iter_rows())
    drawn = []
    for setup in points["setup"].unique(maintain_order=True):
        scores = pruning_curves(points.filter(setup=setup), figures)
        of_setup = None if kinds is None else kinds.filter(setup=setup)
        by_kind = None
        if of_setup is not None and of_setup.height:
            by_kind = embedded(kind_curves(of_setup), f"heads kept by kind of attention, {setup}")
        drawn.append((setup, embedded(scores, f"pruning curves, {setup}"), by_kind))
    return drawn

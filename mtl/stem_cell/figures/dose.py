"""The figure of scores against forced overlap, for pairs under fixed masks."""

from __future__ import annotations

import polars as pl

from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.probes.stem_cell.figures.dose import dose_figure
from mtl.probes.stem_cell.statistics.dose import dose
from mtl.runs.figures.drawn import FigureRequest, FigureWithTables
from mtl.stem_cell.overlap_scores import overlap_scores


def by_overlap(request: FigureRequest) -> FigureWithTables:
    """Scores of pairs with a fixed mask per task, by how many heads the masks have in common."""
    runs, left_out = request.runs()
    scores, notes = overlap_scores(runs, request.split, TrainConfig().main_scores())
    if request.tasks:
        scores = scores.filter(pl.col("task").is_in(request.tasks))
    if scores.is_empty():
        missing = "no pair with a fixed mask per task: train some with pruning=fixed and gates.masks"
        raise InputError("; ".join([*notes, missing]))
    losses = dose(scores)
    notes = (*left_out, *notes)
    return FigureWithTables(dose_figure(scores, losses), notes, {"": losses, "-scores": scores})

"""The figure of what remedies recover."""

from __future__ import annotations

import polars as pl

from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.probes.stem_cell.figures.recovery import recovery
from mtl.probes.stem_cell.statistics.remedies import contrasts, recoveries
from mtl.runs.figures.drawn import FigureRequest, FigureWithTables
from mtl.stem_cell.remedies import remedy_scores


def recovered(request: FigureRequest) -> FigureWithTables:
    """Per task, the recovery of each condition, and scores against the number of parameters."""
    score = TrainConfig().main_scores()
    runs, left_out = request.runs()
    scores, notes = remedy_scores(runs, request.split, score)
    notes = (*left_out, *notes)
    if request.tasks:
        scores = scores.filter(pl.col("task").is_in(request.tasks))
    if scores.is_empty():
        raise InputError("; ".join([*notes, f"no scores on {request.split}"]))
    tables = {"": recoveries(scores), "-contrasts": contrasts(scores), "-scores": scores}
    return FigureWithTables(recovery(scores), notes, tables)

"""Importance of a run's heads, as rows of heads.parquet."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import polars as pl

from mtl.analysis.importance.gradients import MEASURES, Per, task_importance
from mtl.analysis.probing.observe import BATCH_TOKENS
from mtl.analysis.trained import TrainedRun
from mtl.errors import InputError

Advance = Callable[[int], None]


def measure_importance(
    trained: TrainedRun,
    *,
    per: Per = "example",
    normalise: bool = False,
    steps: int = 0,
    masks: bool = True,
    progress: Callable[[int], AbstractContextManager[Advance]] = lambda total: nullcontext(lambda done: None),
) -> pl.DataFrame:
    """Measure importance, write the rows into the run's heads.parquet, and return them.

    Arguments are those of `task_importance` and `GateGradients.table`; `progress` is as in `probe_run`.
    Raises `InputError` for a negative number of steps.
    """
    if steps < 0:
        raise InputError(f"steps={steps}: give 0 (no integrated gradients) or more")
    with progress(len(trained.corpus)) as advance:
        measured = task_importance(
            trained.model, trained.batches(BATCH_TOKENS), per=per, steps=steps, masks=masks, advance=advance
        )
    heads = pl.concat([gradients.table(name, normalise) for name, gradients in measured.items()])
    trained.write(heads, "importance", MEASURES, per=per, normalised=normalise, steps=steps, masks=masks)
    return heads

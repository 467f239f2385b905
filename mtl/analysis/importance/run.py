"""Importance of a run's heads, as rows of heads.parquet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from mtl.analysis.measuring import Measured, Progress, silent
from mtl.errors import InputError

if TYPE_CHECKING:
    from mtl.analysis.trained import TrainedRun


def measure_importance(
    trained: TrainedRun,
    *,
    per: Literal["example", "token"] = "example",
    normalise: bool = False,
    steps: int = 0,
    masks: bool = True,
    progress: Progress = silent,
) -> Measured:
    """Measure what each head is worth by gradients, and write it into the run's heads.parquet.

    Args:
        trained: The run, its model and sentences.
        per: Where absolute values are taken: of a sentence's derivative (Michel et al. 2019), or at each of
            its positions, as in their code for BERT.
        normalise: Divide a layer's importances by their Euclidean norm, as the paper does.
        steps: Steps of integrated gradients; 0: none. Each costs as much as everything else together.
        masks: Whether the run's head masks are applied.
        progress: As in `mtl.analysis.measuring`.

    Raises:
        InputError: a negative number of steps.
    """
    import polars as pl

    from mtl.analysis.importance.gradients import task_importance
    from mtl.analysis.probing.observe import BATCH_TOKENS

    if steps < 0:
        raise InputError(f"steps={steps}: use 0 (no integrated gradients) or more")
    with progress(len(trained.corpus)) as advance:
        measured = task_importance(
            trained.model, trained.batches(BATCH_TOKENS), per=per, steps=steps, masks=masks, advance=advance
        )
    heads = pl.concat([gradients.table(name, normalise) for name, gradients in measured.items()])
    return Measured(heads, {"per": per, "normalised": normalise, "steps": steps, "masks": masks})

"""An example of a measure with a command of its own: the mean norm of a head's output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mtl.analysis.measuring import Progress, silent
from mtl.features import Measure, MeasureGroup

if TYPE_CHECKING:
    import polars as pl

    from mtl.analysis.trained import TrainedRun

ROW = MeasureGroup(
    "tests.mtl.analysis.norm_measure:measure_norm",
    (Measure("norm", "mean norm of the head's output", unit="number", predictor="output norm"),),
    "measure how large the outputs of heads are",
)


def measure_norm(trained: TrainedRun, *, order: int = 2, progress: Progress = silent) -> pl.DataFrame:
    """Measure how large the outputs of heads are, and write it into the run's heads.parquet.

    Args:
        trained: The run, its model and sentences.
        order: The order of the norm.
        progress: As in `mtl.analysis.measuring`.
    """
    import polars as pl
    import torch

    from mtl.probes.tables import heads_table

    model, rows = trained.model, []
    tap = model.encoder.tap
    for mask in model.scales.masks(tuple(trained.tasks)):
        total, count = torch.zeros(len(tap.sites), tap.heads), 0
        with torch.inference_mode(), progress(len(trained.corpus)) as advance:
            for batch in trained.batches(2048):
                with tap.observe() as outputs:
                    model.encoder(batch.subwords, mask.head_scale)
                read = batch.subwords.positions("self").bool()
                norms = [output[read].norm(p=order, dim=-1).sum(0) for output in outputs]
                total, count = total + torch.stack(norms), count + int(read.sum())
                advance(len(batch.sentences))
        rows += [
            {
                "measure": "norm", "task": task, "label": "", "attention": "self", "layer": site,
                "head": head, "value": float(total[site, head] / count), "count": len(trained.corpus),
                "choice": f"{order}",
            }
            for task in mask.tasks
            for site in range(len(tap.sites))
            for head in range(tap.heads)
        ]  # fmt: skip
    return heads_table.at_sites(pl.DataFrame(rows, schema=heads_table.SCHEMA), tap.sites)

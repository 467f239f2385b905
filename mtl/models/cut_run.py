"""The folder of a run whose heads were cut out of another's model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mtl.files import whole_folder
from mtl.models.evaluate import signatures_of
from mtl.models.joint import JointModel
from mtl.runs.run import Run


def write_cut_run(
    source: Run, out: Path, model: JointModel, metrics: Mapping[str, Any], heads_kept: int
) -> Run:
    """Write a cut model as a run of its own, which predicts, evaluates and trains on as any other.

    `source` is the run that it was cut from, `metrics` the figures of the cut model by split and task.
    """
    run = Run(out)
    with whole_folder(run.model) as folder:
        model.save(folder)
    run.create({**source.config(), "name": out.name, "runs": str(out.parent), "tasks": list(model.tasks)})
    run.write_metrics({**metrics, **signatures_of(model.tasks)})
    parameters = sum(parameter.numel() for parameter in model.encoder.parameters())
    cut = {"cut_from": str(source.folder), "heads_kept": heads_kept, "encoder_parameters": parameters}
    run.update_status({**source.status(), **cut})
    return run

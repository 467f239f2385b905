"""Write models whose heads were cut out or share components, as derived runs or as saved models."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mtl.files import new_folder
from mtl.models.card import Origin
from mtl.models.evaluate import signatures_of
from mtl.models.joint import JointModel
from mtl.runs.folder.run import Run


def write_cut_run(
    source: Run, out: Path, model: JointModel, metrics: Mapping[str, Any], heads_kept: int
) -> Run:
    """Write a cut model as a run of its own, which can predict, be evaluated and be trained further.

    `source` is the run that it was cut from; `metrics` has the cut model's scores by split and task.
    """
    return _write(source, out, model, metrics, {"cut_from": str(source.folder), "heads_kept": heads_kept})


def write_model(
    model: JointModel, out: Path, origin: Origin, step: str, add: Callable[[Path], object] | None = None
) -> None:
    """Write a model that was made from a saved one, without a run; its card has no scores.

    `origin` is that of the saved model, `step` what was done to it, as in `Run.derivation`. `add` writes
    further files into the new folder before it appears.
    """
    steps = filter(None, (origin.derivation, step))
    model.origin = dataclasses.replace(origin, derivation=", ".join(steps), scores={})
    with new_folder(out) as folder:
        model.save_with_card(folder, out.name)
        if add is not None:
            add(folder)


def write_collaborative_run(
    source: Run,
    out: Path,
    model: JointModel,
    metrics: Mapping[str, Any],
    components: int,
    add: Callable[[Path], object],
) -> Run:
    """As `write_cut_run`, for a model whose heads share `components`; `add` is as in `write_model`."""
    made = {"collaborated_from": str(source.folder), "components": components}
    return _write(source, out, model, metrics, made, add)


def _write(
    source: Run,
    out: Path,
    model: JointModel,
    metrics: Mapping[str, Any],
    made: Mapping[str, Any],
    add: Callable[[Path], object] | None = None,
) -> Run:
    config, status = source.config(), source.status()
    parameters = sum(parameter.numel() for parameter in model.encoder.parameters())
    with new_folder(out) as folder:
        run = Run(folder)
        run.model.mkdir()
        model.save(run.model)
        run.create({**config, "name": out.name, "runs": str(out.parent), "tasks": list(model.tasks)})
        run.write_metrics({**metrics, **signatures_of(model.tasks)})
        run.finish({**status, **made, "encoder_parameters": parameters})
        if add is not None:
            add(folder)
    return Run(out)

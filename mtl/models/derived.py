"""Cut the heads out that a mask closes, and write such models as derived runs or as saved models."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from mtl.config.schema import GateScope
from mtl.errors import InputError
from mtl.files import new_folder
from mtl.heads.gate_file import read_masks
from mtl.heads.gates import FixedGates, closed_heads
from mtl.heads.prune import prune_heads
from mtl.models.annotator import chosen_tasks
from mtl.models.evaluate import signatures_of
from mtl.models.joint import JointModel
from mtl.models.mask_file import check_masks, differ, require_shape
from mtl.models.model_files import Origin
from mtl.probes.sites import Site, attention_order, kinds_in_order
from mtl.runs.folder.run import Run
from mtl.tasks.in_words import counted


def apply_masks(
    model: JointModel,
    gates: Float[Tensor, "site head"],
    tasks: tuple[str, ...],
    *,
    keep_shape: bool = False,
) -> JointModel:
    """Cut the heads whose gates are closed out of the encoder, and scale the others by their gates.

    The new model has the given tasks and no gates. It takes over the encoder and decoders of `model`, which
    must not be used afterwards. Open gates below 1 are multiplied into the output projections. With
    `keep_shape`, closed gates are multiplied in, too, and nothing is cut out.
    """
    gates = gates.to(next(model.parameters()).device)
    prune_heads(model.encoder.transformer, closed_heads(gates), gates, keep_shape=keep_shape)
    smaller = JointModel(
        model.encoder,
        {name: model.tasks[name] for name in tasks},
        {name: model.labels[name] for name in tasks},
    )
    for name in tasks:
        smaller.decoders[name] = model.decoders[name]
    return smaller.eval()


def gates_for(
    model: JointModel, names: Sequence[str] = (), given: Float[Tensor, "site head"] | None = None
) -> tuple[Float[Tensor, "site head"], tuple[str, ...]]:
    """The evaluation gates of a model's mask, and the tasks that it serves (those named; none: all).

    `given` gates replace the model's. All heads of a model without masks are open if tasks are named, and
    heads that only other tasks have are closed. Raises `InputError` for a model without masks of which no
    task is named, for an unknown task, and for several tasks that have masks of their own.
    """
    tasks = tuple(chosen_tasks(model.tasks, names or None))
    if given is None and model.gates is None and names:
        given = torch.ones(len(model.encoder.tap.sites), model.encoder.tap.heads)
    return model.scales.of_one_mask(tasks, given), tasks


def gates_from_file(path: Path, task: str | None, shape: tuple[int, int]) -> Float[Tensor, "site head"]:
    """The last gates of a mask file, of one task or of all; raises `InputError` if they do not fit.

    Without a task, all masks of the file must be equal. `shape` is the encoder's: sites and heads.
    """
    masks = read_masks(path)
    tasks = masks["task"].unique(maintain_order=True).to_list()
    if task is not None and task not in tasks:
        raise InputError(f"{path} has no mask for {task}: it has {', '.join(tasks)}")
    if task is None and differ(masks):
        raise InputError(f"{path} has a mask per task: choose one with --task ({', '.join(tasks)})")
    return _gates_of(path, masks, task or tasks[0], shape)


def mask_in_words(path: Path, task: str | None, tasks: Iterable[str]) -> str:
    """Whose mask `gates_from_file` takes from a file, for a model with these tasks (an encoder has none)."""
    owners = [task] if task else read_masks(path)["task"].unique(maintain_order=True).to_list()
    others = ", ".join(tasks) if set(owners).isdisjoint(tasks) else ""
    return f"the mask of {', '.join(owners)} in {path}" + (f", for a model of {others}" if others else "")


def _gates_of(
    path: Path, masks: pl.DataFrame, task: str, shape: tuple[int, int]
) -> Float[Tensor, "site head"]:
    """The gates of one task from a file's masks; raises `InputError` if they do not fit the shape."""
    mask = masks.filter(pl.col("task") == task)
    require_shape(path, mask, shape, "the encoder")
    if mask.height != shape[0] * shape[1]:
        raise InputError(
            f"{path}: the mask of {task} has {mask.height} of {counted(shape[0] * shape[1], 'head')}: use a "
            "row for each"
        )
    kinds = [Site(kind, 0) for kind in kinds_in_order(mask["attention"])]
    return mask.sort(attention_order(kinds), "layer", "head")["gate"].to_torch().view(shape)


def fixed_gates(path: Path, scope: GateScope, tasks: Sequence[str], shape: tuple[int, int]) -> FixedGates:
    """The masks of a file as gates for these tasks: one mask each (scope `per_task`), or one for all.

    `shape` is the encoder's: sites and heads. Raises `InputError` for masks that do not fit it, and if the
    file lacks a task's mask or, in the scope `shared`, has different masks for these tasks.
    """
    chosen = check_masks(path, scope, tasks)
    masks = torch.stack([_gates_of(path, chosen, task, shape) for task in tasks])
    if scope == "per_task":
        return FixedGates(masks, tuple(tasks))
    return FixedGates(masks[:1])


def write_cut_run(
    source: Run, out: Path, model: JointModel, metrics: Mapping[str, Any], heads_kept: int
) -> Run:
    """Write a cut model as a run of its own, which can predict, be evaluated and be trained further.

    `source` is the run that it was cut from; `metrics` has the cut model's scores by split and task.
    """
    made = {"cut_from": str(source.folder), "heads_kept": heads_kept}
    return write_derived_run(source, out, model, metrics, made)


def write_derived(
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


def write_derived_run(
    source: Run,
    out: Path,
    model: JointModel,
    metrics: Mapping[str, Any],
    made: Mapping[str, Any],
    add: Callable[[Path], object] | None = None,
) -> Run:
    """As `write_cut_run`, for what else is made from a run's model; its status has what it was `made` from.

    `made["derivation"]` says in words what was done, if it is no cut (`derivation_in`). `add` is as in
    `write_model`.
    """
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

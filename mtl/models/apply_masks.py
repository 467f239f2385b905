"""Cut out of a model the heads that a mask closes; read masks from models and files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from mtl.config.schema import GateScope
from mtl.errors import InputError
from mtl.heads.gate_file import read_masks
from mtl.heads.gates import FixedGates
from mtl.heads.prune import prune_heads
from mtl.models.head_scales import closed_heads
from mtl.models.joint import JointModel
from mtl.models.mask_file import check_masks, differ, require_shape
from mtl.probes.sites import Site, in_order, kinds_in_order
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
    model: JointModel, task: str | None, given: Float[Tensor, "site head"] | None = None
) -> tuple[Float[Tensor, "site head"], tuple[str, ...]]:
    """The evaluation gates of a model's mask, and the tasks that it serves (`task`; `None`: all).

    `given` gates replace the model's. Heads that only other tasks have are closed. Raises `InputError` for a
    model without masks, for an unknown task, and if tasks have masks or heads of their own and no task is
    named.
    """
    if task is not None and task not in model.tasks:
        raise InputError(f"the run was not trained on {task}: its tasks are {', '.join(model.tasks)}")
    tasks = tuple(model.tasks) if task is None else (task,)
    return model.scales.of_one_mask(tasks, task is not None, given), tasks


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
    return mask.sort(in_order(kinds), "layer", "head")["gate"].to_torch().view(shape)


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

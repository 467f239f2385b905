"""Make a model without the heads that its masks close."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from mtl.errors import InputError
from mtl.heads.gate_file import read_gates
from mtl.heads.gates import OPEN
from mtl.models.joint import JointModel


def apply_masks(model: JointModel, gates: Float[Tensor, "layer head"], tasks: tuple[str, ...]) -> JointModel:
    """Cut heads with a closed gate out of the encoder, and scale the others by their gates.

    The new model has the given tasks. It takes over the encoder and decoders of `model`, which must not be
    used afterwards. Open gates below 1 are multiplied into the output projections.
    """
    gates = gates.to(next(model.parameters()).device)
    closed = {
        layer: [head for head, gate in enumerate(row) if gate <= OPEN]
        for layer, row in enumerate(gates.tolist())
    }
    model.encoder.prune({layer: heads for layer, heads in closed.items() if heads}, gates)
    smaller = JointModel(
        model.encoder,
        {name: model.tasks[name] for name in tasks},
        {name: model.labels[name] for name in tasks},
    )
    for name in tasks:
        smaller.decoders[name] = model.decoders[name]
    return smaller.eval()


def gates_for(model: JointModel, task: str | None) -> tuple[Float[Tensor, "layer head"], tuple[str, ...]]:
    """The evaluation gates of a run's mask, and the tasks that it serves.

    Raises `InputError` without masks, for an unknown task, and where masks differ and no task is named.
    """
    tasks = tasks_of(model, task)
    if model.gates is None:
        raise InputError("the run has no masks: train with --pruning=dynamic or static, or give --mask FILE")
    with torch.no_grad():
        gates = model.gates.gate()
    if len(gates) == 1:
        return gates[0], tasks
    if task is None:
        raise InputError(
            f"every task has a mask of its own: choose one with --task ({', '.join(model.tasks)})"
        )
    return gates[model.mask_index(task)], tasks


def tasks_of(model: JointModel, task: str | None) -> tuple[str, ...]:
    """The task alone if one is named, else all of the model's; raises `InputError` for an unknown one."""
    if task is None:
        return tuple(model.tasks)
    if task not in model.tasks:
        raise InputError(f"the run was not trained on {task}: its tasks are {', '.join(model.tasks)}")
    return (task,)


def gates_from_file(path: Path, task: str | None, shape: tuple[int, int]) -> Float[Tensor, "layer head"]:
    """The last gates of a `gates.parquet`; raises `InputError` if they fit no encoder of this shape."""
    if not path.is_file():
        raise InputError(f"{path}: no such mask file; give the gates.parquet of a run")
    try:
        table = read_gates(path).select("task", "step", "attention", "layer", "head", "gate")
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"{path} is not a gates.parquet: {str(error).splitlines()[0]}") from error
    tasks = table["task"].unique(maintain_order=True).to_list()
    if task is not None and task not in tasks:
        raise InputError(f"{path} has no mask for {task}: it has {', '.join(tasks)}")
    final = table.filter(pl.col("step") == pl.col("step").max())
    masks = final.group_by("attention", "layer", "head").agg(pl.col("gate").n_unique())
    if task is None and masks["gate"].max() != 1:
        raise InputError(f"{path} has a mask per task: choose one with --task ({', '.join(tasks)})")
    last = final.filter(pl.col("task") == (task or tasks[0]))
    kinds = list(last["attention"].unique(maintain_order=True))
    of_rows = list(zip(last["attention"], last["layer"], strict=True))
    sites = sorted(set(of_rows), key=lambda site: (kinds.index(site[0]), site[1]))
    layers, heads = len(sites), 1 + max(last["head"].to_list())
    if (layers, heads) != shape:
        raise InputError(
            f"{path} is a mask over {layers} layers of {heads} heads, but the encoder has "
            f"{shape[0]} layers of {shape[1]} heads"
        )
    gates = torch.ones(shape)
    rows = torch.tensor([sites.index(site) for site in of_rows])
    gates[rows, last["head"].to_torch().long()] = last["gate"].to_torch().float()
    return gates

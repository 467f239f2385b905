"""Check the mask file that a run is given, before training and without importing torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from mtl.config.schema import GateScope
from mtl.errors import InputError
from mtl.heads.gate_file import read_masks
from mtl.models.found import encoder_shape
from mtl.tasks.in_words import counted


def check_shape(path: Path, masks: pl.DataFrame, encoder: str) -> None:
    """Raise `InputError` if masks do not have the shape that the encoder's config.json states."""
    if (shape := encoder_shape(encoder)) is not None:
        require_shape(path, masks, shape, f"the encoder {encoder}")


def require_shape(path: Path, masks: pl.DataFrame, shape: tuple[int, int], encoder: str) -> None:
    """Raise `InputError` if masks do not have the shape of an encoder: sites and heads."""
    layers = masks.group_by("attention").agg(pl.col("layer").max() + 1)["layer"].sum()
    found = int(layers), int(masks["head"].to_numpy().max()) + 1
    if found != shape:
        raise InputError(
            f"{path} is a mask over {counted(found[0], 'layer')} of {counted(found[1], 'head')}, but "
            f"{encoder} has {counted(shape[0], 'layer')} of {counted(shape[1], 'head')}: use masks that were "
            "learned on it"
        )


def differ(masks: pl.DataFrame) -> bool:
    """Whether the masks of the tasks in a table differ."""
    gates = masks.group_by("attention", "layer", "head").agg(pl.col("gate").n_unique())
    return bool(gates["gate"].max() != 1)


def check_masks(path: Path, scope: GateScope, tasks: Sequence[str]) -> pl.DataFrame:
    """The masks of a file for a run's tasks, as `read_masks` returns them.

    Raises `InputError` if the file has no mask for one of the tasks or, in the scope `shared`, different
    masks for them.
    """
    masks = read_masks(path)
    there = masks["task"].unique(maintain_order=True).to_list()
    absent = [task for task in tasks if task not in there]
    if absent:
        raise InputError(
            f"{path} has no mask for {', '.join(absent)}: it has {', '.join(there)}; "
            "every task of the run needs one"
        )
    chosen = masks.filter(pl.col("task").is_in(tasks))
    if scope == "shared" and differ(chosen):
        raise InputError(f"{path} has a mask per task: use gates.scope=per_task")
    return chosen

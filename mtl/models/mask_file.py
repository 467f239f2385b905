"""Check the mask file that a run is given, before training and without torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from mtl.config.schema import GateScope
from mtl.errors import InputError
from mtl.heads.gate_file import read_masks
from mtl.models.known_encoders import encoder_shape
from mtl.tasks.in_words import counted


def check_shape(path: Path, masks: pl.DataFrame, encoder: str) -> None:
    """Raise `InputError` if masks are of another shape than the encoder has by its config.json."""
    shape = encoder_shape(encoder)
    found = masks.select("attention", "layer").n_unique(), int(masks["head"].to_numpy().max()) + 1
    if shape is not None and found != shape:
        raise InputError(
            f"{path} is a mask over {counted(found[0], 'layer')} of {counted(found[1], 'head')}, "
            f"but the encoder {encoder} has "
            f"{counted(shape[0], 'layer')} of {counted(shape[1], 'head')}: use masks that were learned on it"
        )


def check_masks(path: Path, scope: GateScope, tasks: Sequence[str]) -> pl.DataFrame:
    """The masks of a file for these tasks, the run's, as `read_masks` gives them.

    Raises `InputError` if the file has no mask for one of the tasks or, in the scope `shared`, has different
    masks for these tasks.
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
    if (
        scope == "shared"
        and chosen.group_by("attention", "layer", "head").agg(pl.col("gate").n_unique())["gate"].max() != 1
    ):
        raise InputError(f"{path} has a mask per task: use gates.scope=per_task")
    return chosen

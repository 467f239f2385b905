"""Arrays of several sentences as tensors of a batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from mtl.tasks.task import UNKNOWN


def padded(rows: Sequence[Int[np.ndarray, " _"]], width: int) -> Int[Tensor, "batch width"]:
    """An array per sentence as rows of one tensor, with `UNKNOWN` behind them."""
    table = np.full((len(rows), width), UNKNOWN, dtype=np.int64)
    for row, values in zip(table, rows, strict=True):
        row[: len(values)] = values
    return torch.from_numpy(table)


def one_after_another(targets: Sequence[tuple[Int[np.ndarray, " _"], ...]]) -> list[Int[Tensor, " _"]]:
    """The fields of all sentences' targets, each joined without padding.

    Before them comes the row of each item's sentence in the batch.
    """
    rows = np.repeat(np.arange(len(targets)), [len(target[0]) for target in targets])
    columns = [np.concatenate(column) for column in zip(*targets, strict=True)]
    return [torch.from_numpy(column) for column in (rows, *columns)]

"""Batches as callers of `head_importance` and `ablate_heads` give them: their rows, and copies of these."""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from mtl.errors import InputError
from mtl.heads.arguments import is_dense, is_masked, tensor_of
from mtl.tasks.in_words import counted

Model = TypeVar("Model", bound=nn.Module)
Inputs = TypeVar("Inputs")


def given_again(batch: Any) -> Any:
    """The batch for one call of the caller's function, which may remove labels from it (`pop`)."""
    return copy.copy(batch) if isinstance(batch, MutableMapping | list) else batch


def vector(given: Any, batch: Any, what: str) -> Tensor:
    """What the caller's function (`what`: loss or score) returned for each row of a batch.

    Raises `InputError` for anything but a vector with one finite value per row.
    """
    if is_masked(given):
        raise InputError(f"the {what} returned values that are masked out: return one for each row")
    value, rows = tensor_of(given), _lengths(batch)
    if value is None or not is_dense(value) or value.dim() != 1 or (rows and len(value) not in rows):
        of = f"each of the {counted(rows[0], 'row')}" if rows else "each row"
        shape = (
            type(given).__name__ if value is None or not is_dense(value) else f"shape {tuple(value.shape)}"
        )
        raise InputError(
            f"the {what} must return one value for {of} of a batch (reduction='none'), and returned {shape}"
        )
    wrong = (~torch.isfinite(value.detach())).nonzero()
    if len(wrong):
        row = int(wrong[0])
        raise InputError(f"the {what} of row {row} of a batch is {value[row].item()}, which is not finite")
    return value


def has_no_rows(batch: Any) -> bool:
    """Whether a batch is known to be empty, so that the caller's function need not run on it."""
    lengths = _lengths(batch)
    return bool(lengths) and not any(lengths)


def require_passes(ran: bool, what: str) -> None:
    """Raise `InputError` unless the caller's function (`what`) `ran` a pass through a head of the model."""
    if not ran:
        raise InputError(
            f"the {what} ran none of the heads of the model in this thread: it must call the model that it "
            "is given, and start threads with contextvars.copy_context().run"
        )


def copies_of(batch: Any, rows: int, copies: int) -> Any:
    """The batch with its rows repeated `copies` times; `None` for a kind of batch that cannot be copied."""
    if isinstance(batch, Tensor | np.ndarray | list | tuple) and not _is_record(batch):
        return _repeated(batch, rows, copies)
    kind: Any = type(batch)
    several: Any
    if isinstance(batch, tuple | list):
        several = [_repeated(part, rows, copies) for part in batch]
        kind = getattr(kind, "_make", kind)  # of a named tuple
    elif isinstance(batch, Mapping):
        several = {key: _repeated(value, rows, copies) for key, value in batch.items()}
    else:
        return None
    try:
        return kind(several)
    except TypeError:
        return None


def _repeated(value: Any, rows: int, copies: int) -> Any:
    if isinstance(value, Tensor):
        return value.repeat(copies, *[1] * (value.dim() - 1)) if value.dim() and len(value) else value
    if isinstance(value, np.ndarray):
        # By index, since `np.concatenate` loses the mask of an array.
        return value[np.tile(np.arange(len(value)), copies)] if value.ndim else value
    return value * copies if isinstance(value, list | tuple) and len(value) == rows else value


def _lengths(batch: Any) -> list[int]:
    """The lengths of a batch's parts, in their order: candidates for its number of rows; empty if unknown."""
    parts = batch.values() if isinstance(batch, Mapping) else batch if _is_record(batch) else [batch]
    lengths = [length for part in parts if (length := _length(part)) is not None]
    return [*lengths, len(batch)] if _is_record(batch) else lengths


def _is_record(batch: Any) -> bool:
    """Whether a tuple or list holds the fields of a batch (as in a TensorDataset), and not its rows."""
    return isinstance(batch, tuple | list) and any(
        isinstance(part, Tensor | np.ndarray) and part.ndim for part in batch
    )


def _length(part: Any) -> int | None:
    if isinstance(part, Tensor | np.ndarray):
        return len(part) if part.ndim else None
    return len(part) if isinstance(part, list | tuple) else None

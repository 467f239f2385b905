"""Check and convert the arguments of the public functions before anything is changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.masked import MaskedTensor

from mtl.errors import InputError

MOST_SEED = 2**48
"""The largest seed: torch takes 64 bits, and the seed of each layer is made from this one."""
MOST_NUMBER = 2**31 - 1
"""The largest value of any other whole number."""


def heads_by_layer(heads: Any, what: str = "heads") -> dict[int, list[int]]:
    """Layers and their heads as plain integers, the heads in ascending order.

    Layers may be integers of Python, numpy or torch, or decimal strings, as in JSON. A layer's heads may be
    any iterable of integers, such as a list, a set, an array or a tensor. Raises `InputError` for anything
    else.
    """
    by_layer: dict[int, list[int]] = {}
    for layer, numbers in _layers(heads, what, "{0: [1, 2]}"):
        if isinstance(numbers, str | bytes | Mapping) or not is_iterable(numbers):
            raise InputError(f"{what}[{layer}]={short_text(numbers)}: use a list of heads, such as [1, 2]")
        by_layer[layer] = sorted({whole_number(head, f"a head of {what}[{layer}]") for head in numbers})
    return by_layer


def _layers(heads: Any, what: str, example: str) -> Iterable[tuple[int, Any]]:
    if not isinstance(heads, Mapping):
        raise InputError(f"{what}={short_text(heads)}: use a mapping from layers to heads, such as {example}")
    seen: set[int] = set()
    for key, value in heads.items():
        layer = number_of_key(key, f"a layer of {what}")
        if layer in seen:
            raise InputError(f"{what} has the key {layer} twice")
        seen.add(layer)
        yield layer, value


def number_of_key(key: Any, what: str) -> int:
    """The integer that a key is, also as a decimal string; raises `InputError` for anything else."""
    if isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) <= 10:
        return int(key)
    return whole_number(key, what)


def seed_of(value: Any) -> int:
    """A seed from 0 to `MOST_SEED`; raises `InputError` for anything else."""
    return whole_number(value, "seed", 0, MOST_SEED)


def whole_number(value: Any, what: str, least: int | None = None, most: int = MOST_NUMBER) -> int:
    """An integer of Python, numpy or torch; raises `InputError` for anything else, such as True and 1.0."""
    number = _item(value)
    if isinstance(number, bool | np.bool_) or not isinstance(number, Integral):
        raise InputError(f"{what}={short_text(value)}: use a whole number")
    if least is not None and int(number) < least:
        raise InputError(f"{what}={short_text(number)}: use a whole number of at least {least}")
    if abs(int(number)) > most:
        raise InputError(f"{what}={short_text(number)}: use a whole number of at most {most}")
    return int(number)


def _item(value: Any) -> Any:
    """The number in an array or tensor of one number; others, such as those on `meta`, as they are."""
    if not isinstance(value, Tensor | np.ndarray | np.generic) or value.ndim or is_masked(value):
        return value
    return value if isinstance(value, Tensor) and not is_dense(value) else value.item()


def yes_or_no(value: Any, what: str) -> bool:
    """A boolean; raises `InputError` for anything else."""
    if not isinstance(value, bool | np.bool_):
        raise InputError(f"{what}={short_text(value)}: use True or False")
    return bool(value)


def one_of(value: Any, what: str, choices: Iterable[str]) -> Any:
    """The value, if it is one of the choices; raises `InputError` otherwise."""
    known = tuple(choices)
    if not isinstance(value, str) or value not in known:
        raise InputError(f"{what}={short_text(value)}: use one of {', '.join(known)}")
    return value


def function_of(value: Any, what: str) -> Any:
    """The value, if it can be called; raises `InputError` otherwise."""
    if not callable(value):
        raise InputError(f"{what}={short_text(value)}: use a function")
    return value


def tensor_of(value: Any) -> Tensor | None:
    """A tensor, array, series, or lists of numbers or tensors, as one tensor; `None` for anything else."""
    try:
        if isinstance(value, list | tuple) and _has_tensors(value):
            parts: Any = [tensor_of(part) for part in value]
            return torch.stack(parts)
        # A copy, since the array may be read-only or have negative strides.
        return value if isinstance(value, Tensor) else torch.as_tensor(np.array(value))
    except Exception:
        return None


def is_dense(value: Tensor) -> bool:
    """Whether a tensor is an ordinary one of real numbers: not sparse, nested, quantised or on `meta`."""
    odd = value.is_complex() or value.is_quantized or value.is_meta or value.is_nested
    return value.layout == torch.strided and not odd


def _has_tensors(values: Sequence[Any]) -> bool:
    parts = (part for part in values if isinstance(part, Tensor | list | tuple))
    return any(isinstance(part, Tensor) or _has_tensors(part) for part in parts)


def is_masked(value: Any) -> bool:
    """Whether an array, a tensor or an entry of nested lists has values that are masked out.

    A plain copy would take these values as valid.
    """
    if isinstance(value, list | tuple):
        return any(is_masked(part) for part in value)
    return isinstance(value, MaskedTensor) or (
        isinstance(value, np.ma.MaskedArray) and bool(np.ma.is_masked(value))
    )


def scale_of(scale: Any, what: str, dtype: torch.dtype) -> Tensor:
    """A head scale as a tensor; raises `InputError` for anything else.

    Its values must also be finite in `dtype`, the model's type.
    """
    if is_masked(scale):
        raise InputError(f"{what} has values that are masked out: fill them in first, as with .filled(1)")
    made = tensor_of(scale)
    if made is None:
        raise InputError(f"{what}={short_text(scale)}: use a table of numbers")
    if not is_dense(made):
        raise InputError(
            f"{what} is sparse, nested, quantised, complex or on the device meta: use a plain tensor"
        )
    if not bool(torch.isfinite(made.detach().to(dtype)).all()):
        raise InputError(f"{what} has values that are not finite numbers in {dtype}")
    return made if made.is_floating_point() else made.float()


def path_or_hub_name(folder: Any, what: str = "folder") -> Path:
    """A path, or a name on the hub; raises `InputError` for anything but text and paths."""
    if not isinstance(folder, str | PathLike) or isinstance(fspath(folder), bytes):
        raise InputError(f"{what}={short_text(folder)}: use a folder's name or path")
    return Path(folder)


def revision_of(revision: Any) -> str | None:
    """A revision of a repository on the hub; raises `InputError` for anything but text and `None`."""
    if revision is not None and not isinstance(revision, str):
        raise InputError(f"revision={short_text(revision)}: use the name of a branch or tag, or a commit")
    return revision


def refuse_revision(folder: Path, revision: str | None) -> None:
    """Raise `InputError` for a revision that is not text, and for one of a local folder."""
    if revision_of(revision) is not None and folder.is_dir():
        raise InputError(
            f"revision={short_text(revision)}: {folder} is a folder; revisions are of repositories on the hub"
        )


def dtype_of(dtype: Any) -> torch.dtype | Literal["auto"]:
    """A floating-point type of torch, also by its name, or `auto`; raises `InputError` for anything else."""
    if isinstance(dtype, str) and dtype == "auto":
        return "auto"
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if isinstance(found, torch.dtype) and found.is_floating_point:
        return found
    raise InputError(
        f"dtype={short_text(dtype)}: use auto, torch.float32 or another floating point type of torch"
    )


def batches_of(batches: Any) -> Iterable[Any]:
    """The batches, if they can be iterated over; raises `InputError` otherwise, and for a single batch."""
    one = isinstance(batches, str | bytes | bytearray | Mapping) or hasattr(batches, "__array__")
    if one or not is_iterable(batches):
        raise InputError(
            f"batches is a {type(batches).__name__}: use a list of batches or a DataLoader; one batch is "
            "[batch]"
        )
    iterable: Iterable[Any] = batches
    return iterable


def is_iterable(value: Any) -> bool:
    """Whether the value can be iterated over."""
    try:
        iter(value)
    except TypeError:
        return False
    return True


def short_text(value: Any) -> str:
    """The value for a message, on one line and shortened; its type if `repr` fails.

    Python refuses to write integers of more than 4,300 digits, and objects of other libraries may fail, too.
    """
    try:
        text = " ".join(repr(value).split())
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:60]}…"

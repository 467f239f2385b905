"""What passes of a model need: evaluation mode, frozen parameters, threads, memory, finite values.

They act only in the context that entered them (`heads.blocks`): another thread may use, copy or train the
model meanwhile.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mtl.errors import InputError
from mtl.heads.arguments import whole_number
from mtl.heads.blocks import OnModule, WithBlock, own_parameters
from mtl.tasks.decoders.decoder import Steps

_MOST_THREADS = 1024


@contextmanager
def in_evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; afterwards every module is in its previous mode."""
    # The modules' own attributes, without those of other blocks, which may end before this one.
    trained = [module for module in model.modules() if vars(module).get("training")]
    if not trained:
        yield
        return
    with WithBlock().entered(OnModule(module, attributes={"training": False}) for module in trained):
        model.eval()  # some classes do more than set the attribute
        yield


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Parameters require no gradients inside the block, which saves nearly half of a backward pass.

    Inside, the model has parameters without gradients that share memory with its own.
    """
    block = WithBlock()
    learning = [
        module
        for module in model.modules()
        if any(part is not None and part.requires_grad for part in own_parameters(module).values())
    ]
    with block.entered(
        OnModule(module, attributes={"_parameters": block.detached(module)}) for module in learning
    ):
        yield


class _Rounded(torch.autograd.Function):
    """Copies of tensors in bfloat16; their gradients in float32. Each way is one operation for all."""

    @staticmethod
    def forward(ctx: Any, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        copies = [torch.empty_like(weight, dtype=torch.bfloat16) for weight in weights]
        torch._foreach_copy_(copies, weights)
        return tuple(copies)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        given = [gradient for gradient in gradients if gradient is not None]
        made = [torch.empty_like(gradient, dtype=torch.float32) for gradient in given]
        torch._foreach_copy_(made, given)
        left = iter(made)
        return tuple(None if gradient is None else next(left) for gradient in gradients)


@contextmanager
def rounded_weights(
    parts: Iterable[nn.Module], apart: Collection[nn.Parameter] = frozenset()
) -> Iterator[None]:
    """Inside the block, these parts of a model compute with copies of their float32 weights in bfloat16.

    Gradients reach the weights in float32, so an optimizer that is given the weights updates those (the
    "master weights" of Micikevicius et al. 2018, section 3.1). A backward pass that asks for the gradients of
    `apart` alone computes no others.
    """
    modules = list(dict.fromkeys(module for part in parts for module in part.modules()))
    weights = dict.fromkeys(
        part
        for module in modules
        for part in own_parameters(module).values()
        if part is not None and part.dtype == torch.float32
    )
    held = set(apart)
    copies: dict[nn.Parameter, Tensor] = {}
    for trained, is_apart in ((True, True), (True, False), (False, False)):  # the gradients of each at once
        group = [w for w in weights if w.requires_grad == trained and (w in held) == is_apart]
        if group:
            copies |= zip(group, _Rounded.apply(*group), strict=True)

    def of(module: nn.Module) -> dict[str, Any]:
        own = own_parameters(module)
        return {name: part if part is None else copies.get(part, part) for name, part in own.items()}

    with WithBlock().entered(
        OnModule(module, attributes={"_parameters": of(module)})
        for module in modules
        if own_parameters(module)
    ):
        yield


@contextmanager
def computing_threads(count: int | None) -> Iterator[None]:
    """Inside the block, the calling thread computes with `count` CPU threads; `None`: as before.

    Raises `InputError` for anything but a whole number of at least 1.
    """
    if count is None:
        yield
        return
    count, before = whole_number(count, "threads", 1, _MOST_THREADS), torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def not_finite(tensors: Iterable[tuple[str, Tensor]]) -> list[str]:
    """The names of the tensors in which a number is not finite."""
    named = [(name, tensor) for name, tensor in tensors if tensor.is_floating_point() and tensor.numel()]
    if not named:
        return []
    # The largest absolute value is not finite if any value is not. One wait for the device in all.
    largest = torch.stack([tensor.detach().abs().amax().float() for _, tensor in named])
    finite = largest.isfinite().tolist()
    return [name for (name, _), fine in zip(named, finite, strict=True) if not fine]


def without_nan(scores: Mapping[str, Any]) -> Steps[None]:
    """Raise `InputError` if scores of a task (a tensor, or a tuple that holds tensors) are NaN."""
    parts = [
        (task, part)
        for task, of_task in scores.items()
        for part in (of_task if isinstance(of_task, tuple) else (of_task,))
        if isinstance(part, Tensor) and part.numel()
    ]
    if not parts:
        return
    # The largest value is NaN if any value is; it needs no boolean tensor.
    [largest] = yield (torch.stack([part.amax().float() for _, part in parts]),)
    for (task, _), wrong in zip(parts, np.isnan(largest), strict=True):
        if wrong:
            raise InputError(
                f"the scores of {task} are not numbers (nan): the model's weights are not finite, or its "
                "type is too narrow for it (use bfloat16 or float32 instead of float16)"
            )


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST = 2**28
_UNUSED = 2**30
_NO_GLIBC = (OSError, TypeError, AttributeError)


def keep_large_blocks() -> bool:
    """Let glibc keep freed blocks of up to 256 MiB, up to 1 GiB in all; `False` without glibc.

    By default it returns blocks above 32 MiB to the system at once. The dense gradient of MiniLM's word
    embeddings has 45 MiB: page faults would take 10 to 25 ms of a training step of about 350 ms (16
    sentences, one thread). No result depends on it.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except _NO_GLIBC:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST) and mallopt(_M_TRIM_THRESHOLD, _UNUSED))


def release_free_blocks() -> bool:
    """Return the freed memory that glibc keeps to the system; `False` if there was none, or without glibc.

    Otherwise a process that makes many runs, such as a study's worker, would keep as much memory as the
    largest run needed, and the gaps that all runs left.
    """
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except _NO_GLIBC:
        return False

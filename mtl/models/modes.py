"""Contexts in which a model is used: evaluation mode, frozen parameters, a number of threads.

They act only in the context that entered them (`heads.blocks`): another thread may use, copy or train the
model meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from mtl.heads.arguments import whole_number
from mtl.heads.blocks import Block, OnModule, own_parameters

_MOST_THREADS = 1024


@contextmanager
def in_evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; afterwards every module is in its previous mode."""
    # The modules' own attributes, without those of other blocks, which may end before this one.
    trained = [module for module in model.modules() if vars(module).get("training")]
    if not trained:
        yield
        return
    with Block().entered(OnModule(module, attributes={"training": False}) for module in trained):
        model.eval()  # some classes do more than set the attribute
        yield


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Parameters require no gradients inside the block, which saves nearly half of a backward pass.

    Inside, the model has parameters without gradients that share memory with its own.
    """
    block = Block()
    learning = [
        module
        for module in model.modules()
        if any(part is not None and part.requires_grad for part in own_parameters(module).values())
    ]
    with block.entered(
        OnModule(module, attributes={"_parameters": block.detached(module)}) for module in learning
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

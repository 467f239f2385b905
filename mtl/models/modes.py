"""Contexts in which a model is used: evaluation mode, frozen parameters, a number of threads.

Blocks of several threads on one model may overlap in any order: what the first one turns off is turned on
again when the last one ends. A model that another thread trains meanwhile is not to be measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import TypeVar

import torch
from torch import nn

from mtl.heads.arguments import whole_number

Thing = TypeVar("Thing", nn.Module, nn.Parameter)
_HELD: dict[int, int] = {}
"""By `id` of a module or parameter that blocks have turned off, the number of these blocks."""
_LOCK = RLock()
_MOST_THREADS = 1024


@contextmanager
def in_evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; afterwards every module is in its former mode."""

    def turn(module: nn.Module, on: bool) -> None:
        module.training = on

    with _off(model.modules(), lambda module: module.training, turn, model.eval):
        yield


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Parameters require no gradients inside the block, which saves nearly half of a backward pass."""

    def turn(parameter: nn.Parameter, on: bool) -> None:
        parameter.requires_grad_(on)

    with _off(model.parameters(), lambda parameter: parameter.requires_grad, turn):
        yield


@contextmanager
def computing_threads(count: int | None) -> Iterator[None]:
    """Inside the block the calling thread computes with that many CPU threads; `None`: as before.

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


@contextmanager
def _off(
    things: Iterable[Thing],
    is_on: Callable[[Thing], bool],
    turn: Callable[[Thing, bool], None],
    also: Callable[[], object] = lambda: None,
) -> Iterator[None]:
    with _LOCK:
        held = [thing for thing in things if is_on(thing) or id(thing) in _HELD]
        for thing in held:
            _HELD[id(thing)] = _HELD.get(id(thing), 0) + 1
            turn(thing, False)
        if held:  # otherwise it is off already, and looking at every module once is all that a call costs
            also()
    try:
        yield
    finally:
        with _LOCK:
            for thing in held:
                _HELD[id(thing)] -= 1
                if not _HELD[id(thing)]:
                    del _HELD[id(thing)]
                    turn(thing, True)

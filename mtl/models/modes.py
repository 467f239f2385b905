"""Contexts in which a model is used: evaluation mode, frozen parameters, a number of threads.

Blocks of several threads on one model may overlap in any order: what the first one turns off is turned on
again when the last one ends. A copy or a file that another thread makes of the model meanwhile has on what
is only held off. A model that another thread trains meanwhile is not to be measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import RLock
from typing import Any, TypeVar

import torch
from torch import nn

from mtl.heads.arguments import whole_number

Thing = TypeVar("Thing", nn.Module, nn.Parameter)
_HELD: dict[int, int] = {}
"""By `id` of a module or parameter that blocks have turned off, the number of these blocks."""
_ON: dict[int, nn.Parameter] = {}
"""By `id` of a parameter that is held off, what copies have in its place."""
_INSIDE: ContextVar[tuple[object, ...]] = ContextVar("inside", default=())
"""The blocks that this thread or coroutine has entered."""
_LOCK = RLock()
_MOST_THREADS = 1024


@contextmanager
def in_evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; afterwards every module is in its former mode."""

    def turn(module: nn.Module, on: bool) -> None:
        module.training = on

    with _off(model, model.modules(), lambda module: module.training, turn, model.eval):
        yield


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Parameters require no gradients inside the block, which saves nearly half of a backward pass."""

    def turn(parameter: nn.Parameter, on: bool) -> None:
        parameter.requires_grad_(on)

    with _off(model, model.parameters(), lambda parameter: parameter.requires_grad, turn):
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
    model: nn.Module,
    things: Iterable[Thing],
    is_on: Callable[[Thing], bool],
    turn: Callable[[Thing, bool], None],
    also: Callable[[], object] = lambda: None,
) -> Iterator[None]:
    block = object()
    with _LOCK:
        held = [thing for thing in things if is_on(thing) or id(thing) in _HELD]
        # If nothing is on, looking at every module once is all that a call costs.
        states = [_State.of(module) for module in model.modules()] if held else []
        for state in states:
            state.blocks.add(block)
        for thing in held:
            _HELD[id(thing)] = _HELD.get(id(thing), 0) + 1
            turn(thing, False)
        if held:
            also()
    _INSIDE.set((*_INSIDE.get(), block))
    try:
        yield
    finally:
        _INSIDE.set(tuple(other for other in _INSIDE.get() if other is not block))
        with _LOCK:
            for thing in held:
                _HELD[id(thing)] -= 1
                if not _HELD[id(thing)]:
                    del _HELD[id(thing)]
                    _ON.pop(id(thing), None)
                    turn(thing, True)
            for state in states:
                state.leave(block)


class _State:
    """A module's `__getstate__` during blocks: what a copy or a file of it gets.

    Inside a block that is the module as it is. A copy that is under way while a block begins or ends fails
    with Python's error, since the module's dictionary changes.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.blocks: set[object] = set()

    @classmethod
    def of(cls, module: nn.Module) -> _State:
        state = vars(module).get("__getstate__")
        if not isinstance(state, cls):
            state = vars(module)["__getstate__"] = cls(module)
        return state

    def leave(self, block: object) -> None:
        self.blocks.discard(block)
        if not self.blocks:
            vars(self.module).pop("__getstate__", None)

    def __call__(self) -> Any:
        module = self.module
        found: Any = type(module).__getstate__(module)
        if not isinstance(found, dict):
            return found
        state = {name: value for name, value in found.items() if name != "__getstate__"}
        with _LOCK:
            if "_parameters" in state and self.blocks.isdisjoint(_INSIDE.get()):
                state["training"] = module.training or id(module) in _HELD
                state["_parameters"] = {name: _on(part) for name, part in module._parameters.items()}
        return state


def _on(parameter: nn.Parameter | None) -> nn.Parameter | None:
    """The parameter; if it is held off, one of the same numbers that is not, the same for all who ask."""
    if parameter is None or id(parameter) not in _HELD:
        return parameter
    if id(parameter) not in _ON:
        made = nn.Parameter(parameter.detach())
        vars(made).update(vars(parameter))
        _ON[id(parameter)] = made
    return _ON[id(parameter)]

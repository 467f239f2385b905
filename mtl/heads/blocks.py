"""Changes that a `with` block makes to a model are seen only in the block's context, not by other threads.

A model is shared by all threads. The settings of a block (functions around a module's `forward`, evaluation
mode, parameters without gradients) act only where the block was entered: in the same thread, in coroutines
and threads that run in a copy of its context (`asyncio.to_thread`), and where torch computes a pass of the
block again (gradient checkpoints). Copies of the model that are made inside the block belong to it, too.
Copies that other threads make meanwhile are plain, even if a block begins or ends while they are made:
nothing that a module holds is changed. Only its class is replaced, by one that asks the blocks first.
"""

from __future__ import annotations

import copy
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, wraps
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from mtl.errors import InputError

Act = Callable[..., Any]


@dataclass
class OnModule:
    """What a block sets on one module."""

    module: nn.Module
    """The module that the functions are called with; for a copy, the module that was copied."""
    before: Act | None = None
    """Called as (module, inputs, named inputs); may return others in place of both."""
    around: Act | None = None
    """Called as (compute, *inputs, **named) instead of `compute`, the module's `forward`."""
    after: Act | None = None
    """Called as (module, inputs, output); may return another output."""
    attributes: dict[str, Any] = field(default_factory=dict)
    """Read instead of the module's own: `training`, `_parameters`."""

    @property
    def acts(self) -> bool:
        """Whether it changes or watches passes."""
        return bool(self.before or self.around or self.after)


class Block:
    """One `with` block; what it sets on modules acts in its own context."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.seen: set[bool] = set()
        """True if a pass through its modules was its own, false if one was another thread's; or both."""
        self.on: WeakKeyDictionary[nn.Module, OnModule] = WeakKeyDictionary()
        self._detached = WeakIdKeyDictionary()

    @contextmanager
    def entered(self, on: Iterable[OnModule]) -> Iterator[None]:
        """Inside, what is given for each module acts on it. Compiled models run uncompiled."""
        self.on.update({one.module: one for one in on})
        for module in self.on:
            _hold(module, self)
        _ENTERED.set((*_ENTERED.get(), self))
        try:
            # What was compiled before would silently ignore the block.
            with _uncompiled():
                yield
        finally:
            # Not by a token, which is refused in another context (of an asynchronous generator).
            _ENTERED.set(tuple(block for block in _ENTERED.get() if block is not self))
            for module in list(self.on):
                _release(module, self)

    @contextmanager
    def hooks(
        self,
        before: Mapping[nn.Module, Act] | None = None,
        after: Mapping[nn.Module, Act] | None = None,
        around: Mapping[nn.Module, Act] | None = None,
    ) -> Iterator[None]:
        """Enter the block with functions by module, as in `OnModule`.

        Hooks that others put on a module run outside of these functions. `after` gets the output `None` if
        the module raised an error. Warns at the end if all passes meanwhile were those of other threads.
        """
        before, after, around = before or {}, after or {}, around or {}
        modules = dict.fromkeys((*before, *after, *around))
        given = [OnModule(one, before.get(one), around.get(one), after.get(one)) for one in modules]
        with self.entered(given):
            yield
        if self.seen == {False}:
            warnings.warn(
                "a block that scales or observes heads saw passes of other threads alone, which it leaves as "
                "they are: start threads inside with contextvars.copy_context().run",
                stacklevel=2,
            )

    def here(self, module: nn.Module) -> bool:
        """Whether the running code belongs to the block, which holds the module."""
        entered = _ENTERED.get()
        if self in entered:
            return True
        if not entered and torch._C._current_graph_task_id() != -1:
            # A gradient checkpoint computes the pass again, on accelerators in a thread of torch's own.
            if len({block.thread for block in _HELD.get(module, ())}) > 1:
                raise InputError(
                    "several threads scale or observe one model with gradient checkpoints: give each thread "
                    "a model of its own"
                )
            return True
        return False

    def detached(self, module: nn.Module) -> dict[str, nn.Parameter | None]:
        """The module's own parameters; for those with gradients, parameters without that share their data."""
        return {name: self._without_gradient(part) for name, part in own_parameters(module).items()}

    def _without_gradient(self, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None or not parameter.requires_grad:
            return parameter
        if parameter not in self._detached:
            made = nn.Parameter(parameter.detach(), requires_grad=False)
            vars(made).update(vars(parameter))
            self._detached[parameter] = made
        found: nn.Parameter = self._detached[parameter]
        return found

    def adopt(self, made: nn.Module, module: nn.Module) -> None:
        """Do to a copy of the module what the block does to the module."""
        one = self.on[module]
        attributes = dict(one.attributes)
        if "_parameters" in attributes:
            attributes["_parameters"] = self.detached(made)
        self.on[made] = OnModule(one.module, one.before, one.around, one.after, attributes)
        _hold(made, self)


_ENTERED: ContextVar[tuple[Block, ...]] = ContextVar("entered", default=())
_HELD: WeakKeyDictionary[nn.Module, tuple[Block, ...]] = WeakKeyDictionary()
"""By module the blocks of all contexts that set something on it, in the order in which they began."""
_LOCK = threading.RLock()


def is_held(module: nn.Module) -> bool:
    """Whether a block of any thread sets something on the module."""
    return module in _HELD


def _hold(module: nn.Module, block: Block) -> None:
    with _LOCK:
        _HELD[module] = (*_HELD.get(module, ()), block)
        if not isinstance(module, _Held):
            kind: Any = type(module)
            module.__class__ = _held(kind)


def _release(module: nn.Module, block: Block) -> None:
    with _LOCK:
        blocks = tuple(other for other in _HELD.get(module, ()) if other is not block)
        if blocks:
            _HELD[module] = blocks
        else:
            _HELD.pop(module, None)
            if type(module).__bases__[0] is _Held:  # else somebody has derived another class from it
                module.__class__ = _own_class(module)


def _own_class(module: nn.Module) -> Any:
    kinds: Any = type(module).__mro__
    return kinds[kinds.index(_Held) + 1] if _Held in kinds else kinds[0]


def _ours(module: nn.Module) -> list[OnModule]:
    """What the blocks of this context set on the module, in the order in which they began."""
    return [block.on[module] for block in _HELD.get(module, ()) if block.here(module)]


def _attribute(module: nn.Module, name: str) -> Any:
    for one in reversed(_ours(module)):
        if name in one.attributes:
            return one.attributes[name]
    return vars(module)[name]


def _set_attribute(module: nn.Module, name: str, value: Any) -> None:
    kept = next((one.attributes for one in reversed(_ours(module)) if name in one.attributes), vars(module))
    kept[name] = value


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """The module's parameters, without those of its parts, as they are outside of all blocks."""
    found: dict[str, nn.Parameter | None] = vars(module).get("_parameters", {})
    return found


def own_forward(module: nn.Module) -> Act:
    """The module's `forward` as it is outside of all blocks."""
    own: Act | None = vars(module).get("forward")
    return MethodType(_own_class(module).forward, module) if own is None else own


class _Held:
    """Stands before the class of a module while blocks hold it. To other threads, only its own class shows.

    Attributes are properties, since these take precedence over what the module itself holds.
    """

    def __call__(self: Any, *inputs: Any, **named: Any) -> Any:
        call = MethodType(_own_class(self).__call__, self)
        # A `forward` that somebody set on the module hides that of the class (`_held`).
        return _run(self, call, inputs, named) if "forward" in vars(self) else call(*inputs, **named)

    @property
    def training(self: Any) -> bool:
        found: bool = _attribute(self, "training")
        return found

    @training.setter
    def training(self: Any, on: bool) -> None:
        _set_attribute(self, "training", on)

    @property
    def _parameters(self: Any) -> dict[str, nn.Parameter | None]:
        found: dict[str, nn.Parameter | None] = _attribute(self, "_parameters")
        return found

    @_parameters.setter
    def _parameters(self: Any, parameters: dict[str, nn.Parameter | None]) -> None:
        _set_attribute(self, "_parameters", parameters)

    def __getattr__(self: Any, name: str) -> Any:
        parameters = vars(self).get("_parameters", ())
        return self._parameters[name] if name in parameters else _own_class(self).__getattr__(self, name)

    def _replicate_for_data_parallel(self: Any) -> nn.Module:
        if any(one.acts for one in _ours(self)):
            raise InputError(
                "heads of the replicas of nn.DataParallel cannot be scaled or observed, since each runs in a "
                "thread of its own: call the model itself (its .module), or use DistributedDataParallel"
            )
        made: nn.Module = _own_class(self)._replicate_for_data_parallel(self)
        made.__class__ = _own_class(self)
        made.training = self.training
        return made

    def __copy__(self: Any) -> Any:
        return _copied(self, copy.copy, {})

    def __deepcopy__(self: Any, memo: dict[int, Any]) -> Any:
        return _copied(self, lambda part: copy.deepcopy(part, memo), memo)

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        kind = _own_class(self)
        if kind.__reduce__ is not object.__reduce__ or kind.__reduce_ex__ is not object.__reduce_ex__:
            return kind.__reduce_ex__(self, protocol)
        return object.__new__, (kind,), self.__getstate__()


@cache
def _held(kind: Any) -> Any:
    @wraps(kind.forward)
    def forward(self: Any, *inputs: Any, **named: Any) -> Any:
        return _run(self, MethodType(kind.forward, self), inputs, named)

    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(kind)(kind.__name__, (_Held, kind), {**names, "forward": forward})


def _copied(module: Any, copied: Callable[[Any], Any], memo: dict[int, Any]) -> Any:
    own = getattr(_own_class(module), "__deepcopy__", None)
    if own is not None:
        made = own(module, memo)
    else:
        make, given, state = module.__reduce_ex__(4)[:3]
        made = memo[id(module)] = make(*given)
        made.__setstate__(copied(state))
    for block in _HELD.get(module, ()):
        if block in _ENTERED.get():
            block.adopt(made, module)
    return made


def _run(module: nn.Module, compute: Act, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
    ours = []
    for block in _HELD.get(module, ()):
        one = block.on[module]
        if one.acts:
            here = block.here(module)
            block.seen.add(here)
            if here:
                ours.append(one)
    for one in ours:
        if one.before is not None:
            replaced = one.before(one.module, inputs, named)
            inputs, named = (inputs, named) if replaced is None else replaced
    around = next((one.around for one in reversed(ours) if one.around is not None), None)
    ends = [(one.after, one.module) for one in ours if one.after is not None]
    try:
        output = compute(*inputs, **named) if around is None else around(compute, *inputs, **named)
    except BaseException:
        for after, own in ends:
            after(own, inputs, None)
        raise
    for after, own in ends:
        replaced = after(own, inputs, output)
        output = output if replaced is None else replaced
    return output


class _Stance:
    """How many blocks need uncompiled passes, in all threads: torch has one stance for the process."""

    def __init__(self) -> None:
        self.blocks = 0
        self.set = ExitStack()


_STANCE = _Stance()


@contextmanager
def _uncompiled() -> Iterator[None]:
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and loading it takes seconds
        yield
        return
    with _LOCK:
        if not _STANCE.blocks:
            try:
                _STANCE.set.enter_context(torch.compiler.set_stance("force_eager"))
            except RuntimeError as error:
                raise InputError(
                    "heads cannot be scaled or observed from inside a compiled function or module: compile "
                    "the transformer alone (its .compile()), which runs uncompiled meanwhile"
                ) from error
        _STANCE.blocks += 1
    try:
        yield
    finally:
        with _LOCK:
            _STANCE.blocks -= 1
            if not _STANCE.blocks:
                _STANCE.set.close()

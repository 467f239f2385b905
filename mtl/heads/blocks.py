"""Changes that a `with` block makes to a model are seen only in the block's context, not by other threads.

A model is shared by all threads. The settings of a block (functions around a module's `forward`, evaluation
mode, parameters without gradients, eager attention) act only where the block was entered: in the same thread,
and in coroutines and threads that run in a copy of its context (`asyncio.to_thread`). A pass that gradient
checkpoints compute again runs in the blocks in which it ran first, whatever block the backward pass is in:
the functions given to torch's checkpoints carry the blocks of their context. Copies of the model that are
made inside the block belong to it, too. Copies that other threads make meanwhile are plain, even if a block
begins or ends while they are made: nothing that a module holds is changed. Only its class is replaced, by one
that asks the blocks first.
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
from functools import cache, partial, wraps
from types import MappingProxyType, MethodType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.utils import checkpoint
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


class WithBlock:
    """One `with` block; what it sets on modules acts in its own context.

    Args:
        eager: configurations whose attention is `eager` in the block.
    """

    def __init__(self, eager: Iterable[Any] = ()) -> None:
        self.seen: set[bool] = set()
        """True if a pass through its modules was its own, false if one was another thread's; or both."""
        self.on: WeakKeyDictionary[nn.Module, OnModule] = WeakKeyDictionary()
        self.eager = {id(configuration): configuration for configuration in eager}
        self.running = False
        """Whether the block has begun and not ended."""
        self._holders = 0
        self._detached = WeakIdKeyDictionary()

    @contextmanager
    def entered(self, on: Iterable[OnModule] = ()) -> Iterator[None]:
        """Inside, what is given for each module acts on it. Compiled models run uncompiled."""
        self.on.update({one.module: one for one in on})
        with self.holding():
            self.running = True
            _ENTERED.set({**_ENTERED.get(), self: _Entry()})
            try:
                yield
            finally:
                self.running = False
                # Not by a token, which is refused in another context (of an asynchronous generator).
                _ENTERED.set({block: entry for block, entry in _ENTERED.get().items() if block is not self})

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Modules and configurations ask the block first; also after its end, while a pass is repeated."""
        with _LOCK:
            self._holders += 1
            if self._holders == 1:
                for module in list(self.on):
                    _hold(module, self)
                for configuration in self.eager.values():
                    _hold_configuration(configuration)
        try:
            # What was compiled before would silently ignore the block.
            with _uncompiled():
                yield
        finally:
            with _LOCK:
                self._holders -= 1
                if not self._holders:
                    for module in list(self.on):
                        _release(module, self)
                    for configuration in self.eager.values():
                        _release_configuration(configuration)

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

    @property
    def of_pass(self) -> Any:
        """What the block's functions keep about the running pass; each thread and each pass has its own.

        It is to be replaced, not changed: a pass that is computed again starts from the value of that time.
        """
        return _ENTERED.get()[self].of_pass

    @of_pass.setter
    def of_pass(self, value: Any) -> None:
        entered = _ENTERED.get()
        if self in entered:  # a pass may end after its block (in a generator)
            _ENTERED.set({**entered, self: entered[self]._replace(of_pass=value)})

    @property
    def again(self) -> bool:
        """Whether the running pass is computed again, by a gradient checkpoint."""
        return _ENTERED.get()[self].again

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


class _Entry(NamedTuple):
    """A block in a context that has entered it."""

    again: bool = False
    of_pass: Any = None


_NOWHERE: Mapping[WithBlock, _Entry] = MappingProxyType({})
_ENTERED: ContextVar[Mapping[WithBlock, _Entry]] = ContextVar("entered", default=_NOWHERE)
"""The blocks of a context, in the order in which they began; none of these mappings is ever changed."""
_HELD: WeakKeyDictionary[nn.Module, tuple[WithBlock, ...]] = WeakKeyDictionary()
"""By module the blocks of all contexts that set something on it."""
_LOCK = threading.RLock()


def _present() -> dict[WithBlock, _Entry]:
    """The blocks that act here. A context that was copied inside a block may outlive it."""
    return {block: entry for block, entry in _ENTERED.get().items() if block.running or entry.again}


def _carrying(function: Act, computed: bool) -> Act:
    """A function for gradient checkpoints, which compute it again in the blocks of the present context.

    Whether it was `computed`: reentrant checkpoints also compute the pass itself with it.
    """
    entered = {block: entry._replace(again=True) for block, entry in _present().items()}

    def compute(*inputs: Any, **named: Any) -> Any:
        nonlocal computed
        if not computed:
            computed = True
            return function(*inputs, **named)
        with ExitStack() as stack:
            for block in entered:
                stack.enter_context(block.holding())
            stack.callback(_ENTERED.reset, _ENTERED.set(entered))
            return function(*inputs, **named)

    return compute


def _carry_blocks() -> None:
    """Let both kinds of torch's gradient checkpoints carry the blocks of a pass to where it is repeated.

    Nothing else tells a repeated pass from a new one: torch may repeat it in a thread of its own, inside
    another block, or after the end of its block.
    """
    reentrant: Any = checkpoint.CheckpointFunction
    forward, begin = reentrant.forward, checkpoint._checkpoint_without_reentrant_generator

    @wraps(forward)
    def carrying_forward(ctx: Any, function: Act, *given: Any) -> Any:
        return forward(ctx, _carrying(function, computed=False), *given)

    @wraps(begin)
    def carrying_begin(function: Act, *given: Any, **named: Any) -> Any:
        return begin(_carrying(function, computed=True), *given, **named)

    reentrant.forward = staticmethod(carrying_forward)
    vars(checkpoint)["_checkpoint_without_reentrant_generator"] = carrying_begin


_carry_blocks()


def in_a_block() -> bool:
    """Whether any block acts in this context."""
    return bool(_present())


def is_held(module: nn.Module) -> bool:
    """Whether a block of any thread sets something on the module."""
    return module in _HELD


def _hold(module: nn.Module, block: WithBlock) -> None:
    with _LOCK:
        _HELD[module] = (*_HELD.get(module, ()), block)
        if not isinstance(module, _Held):
            kind: Any = type(module)
            module.__class__ = _held(kind)


def _release(module: nn.Module, block: WithBlock) -> None:
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
    return [block.on[module] for block in _present() if module in block.on]


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
    def _parameters(self: Any) -> dict[str, torch.Tensor | None]:
        found: dict[str, torch.Tensor | None] = _attribute(self, "_parameters")
        return found

    @_parameters.setter
    def _parameters(self: Any, parameters: dict[str, torch.Tensor | None]) -> None:
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
    for block in _present():
        if module in block.on:
            block.adopt(made, module)
    return made


def _run(module: nn.Module, compute: Act, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
    present, ours = _present(), [one for one in _ours(module) if one.acts]
    for block in _HELD.get(module, ()):
        if block.on[module].acts:
            block.seen.add(block in present)
            if _ENTERED.get() is _NOWHERE and torch._C._current_graph_task_id() != -1:
                raise InputError(
                    "a model whose heads are scaled or observed was called by a backward pass, in a thread "
                    "that torch.utils.checkpoint did not tell the block: use gradient checkpoints of torch"
                )
    for one in ours:
        if one.before is not None:
            replaced = one.before(one.module, inputs, named)
            inputs, named = (inputs, named) if replaced is None else replaced
    for one in ours:
        if one.around is not None:
            compute = partial(one.around, compute)
    ends = [(one.after, one.module) for one in ours if one.after is not None]
    try:
        output = compute(*inputs, **named)
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


class _ByContext:
    """A configuration whose attention is `eager` inside the blocks of a context; all code reads it there."""

    @property
    def _attn_implementation(self) -> str | None:
        chosen: str | None = self.__dict__["_attn_implementation_internal"]
        return "eager" if any(id(self) in block.eager for block in _present()) else chosen

    @_attn_implementation.setter
    def _attn_implementation(self, chosen: str | None) -> None:
        super().__setattr__("_attn_implementation_internal", chosen)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Copies and files of the configuration that are made meanwhile are of its own class.
        return object.__new__, (type(self).__bases__[1],), self.__dict__


@cache
def _by_context(kind: Any) -> type:
    return type(kind.__name__, (_ByContext, kind), {})


_EAGER_BLOCKS: dict[int, int] = {}
"""Per configuration (`id`), the number of blocks of all contexts in which it is eager."""


def _hold_configuration(configuration: Any) -> None:
    if not isinstance(configuration, _ByContext):
        kind: Any = type(configuration)
        configuration.__class__ = _by_context(kind)
    _EAGER_BLOCKS[id(configuration)] = _EAGER_BLOCKS.get(id(configuration), 0) + 1


def _release_configuration(configuration: Any) -> None:
    _EAGER_BLOCKS[id(configuration)] -= 1
    if not _EAGER_BLOCKS[id(configuration)]:
        del _EAGER_BLOCKS[id(configuration)]
        configuration.__class__ = type(configuration).__bases__[1]

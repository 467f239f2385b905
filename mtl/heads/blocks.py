"""What a `with` block does to a model is seen by passes of its own context alone, not by other threads.

A model is shared by all threads, and so are its hooks. Hooks and replaced functions made here act only where
the block was entered: in the same thread, in coroutines and threads that run in a copy of its context
(`asyncio.to_thread`), and where torch computes a pass of the block again (gradient checkpoints). Copies of
the model that are made inside the block belong to it, too; those that other threads make meanwhile do not.
"""

from __future__ import annotations

import copy
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn

from mtl.errors import InputError

_ENTERED: ContextVar[tuple[Block, ...]] = ContextVar("entered", default=())


class Block:
    """One `with` block; what it sets on modules acts on passes of its own context."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.seen: set[bool] = set()
        """Whether passes were the block's own, of those that its hooks have seen."""

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Inside, passes of this context belong to the block. Compiled models run uncompiled."""
        _ENTERED.set((*_ENTERED.get(), self))
        try:
            # Hooks on what was compiled before would be left out without a word.
            with _uncompiled():
                yield
        finally:
            # Not reset by a token, which another context (of an asynchronous generator) would refuse.
            _ENTERED.set(tuple(block for block in _ENTERED.get() if block is not self))

    def here(self, module: nn.Module) -> bool:
        """Whether a pass through the module belongs to the block.

        Raises `InputError` in a replica of the module (`nn.DataParallel`), whose thread is not the block's.
        """
        entered = _ENTERED.get()
        if self in entered:
            return True
        if getattr(module, "_is_replica", False):
            raise InputError(
                "heads of the replicas of nn.DataParallel cannot be scaled or observed, since each runs in a "
                "thread of its own: call the model itself (its .module), or use DistributedDataParallel"
            )
        if not entered and torch._C._current_graph_task_id() != -1:
            # A gradient checkpoint computes the pass again, on accelerators in a thread of torch's own.
            hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
            threads = {hook.block.thread for hook in hooks if isinstance(hook, Hook)}
            if len(threads) > 1:
                raise InputError(
                    "several threads scale or observe one model with gradient checkpoints: give each thread "
                    "a model of its own"
                )
            return True
        return False

    @contextmanager
    def hooks(
        self,
        before: dict[nn.Module, Callable[..., Any]] | None = None,
        after: dict[nn.Module, Callable[..., Any]] | None = None,
    ) -> Iterator[None]:
        """Inside, enter the block with forward hooks: `before` are called as (module, inputs, named inputs).

        `after` are called as (module, inputs, output), with an output of `None` if the module failed. Warns
        at the end if all passes meanwhile were other threads'.
        """
        with ExitStack() as stack:
            for module, act in (before or {}).items():
                hook = stack.enter_context(Hook(self, module, act))
                stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
            for module, act in (after or {}).items():
                hook = stack.enter_context(Hook(self, module, act))
                stack.callback(module.register_forward_hook(hook, always_call=True).remove)
            stack.enter_context(self.entered())
            yield
        if self.seen == {False}:
            warnings.warn(
                "a block that scales or observes heads saw passes of other threads alone, which it leaves as "
                "they are: start threads inside with contextvars.copy_context().run",
                stacklevel=2,
            )

    @contextmanager
    def forwards(self, replaced: dict[nn.Module, Callable[..., Any]]) -> Iterator[None]:
        """Inside, `replaced[module](compute, *inputs, **named)` is called instead of the module's `forward`.

        `compute` is that `forward`.
        """
        for module, act in replaced.items():
            with _LOCK:
                own = module.__dict__.get("forward")
                if not isinstance(own, _Forward):
                    own = module.__dict__["forward"] = _Forward(module, own)
                own.by_block[self] = act
        try:
            yield
        finally:
            for module in replaced:
                with _LOCK:
                    own = module.__dict__["forward"]
                    del own.by_block[self]
                    if not own.by_block:
                        module.__dict__.pop("forward")
                        if own.before is not None:
                            module.__dict__["forward"] = own.before


class Hook(AbstractContextManager["Hook"]):
    """A forward hook that acts on passes of its block alone, until it is left as a context.

    In copies of the module that are made inside the block, it acts as in the module itself.
    """

    def __init__(self, block: Block, module: nn.Module, act: Callable[..., Any]) -> None:
        self.block, self.module = block, module
        self.act: Callable[..., Any] | None = act

    def __call__(self, module: nn.Module, *given: Any) -> Any:
        act = self.act
        if act is None:
            return None
        ours = self.block.here(module)
        self.block.seen.add(ours)
        return act(self.module, *given) if ours else None

    def __exit__(self, *_: object) -> None:
        self.act = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return self if self.block in _ENTERED.get() else nothing

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return copy.copy, (nothing,)


def nothing(*_: object) -> None:
    """What is left of a hook in a copy or a file that another thread makes of the model meanwhile."""


class _Forward:
    """A module's `forward` while blocks replace it, each for passes of its own context.

    A copy of the module has the `forward` that it has outside of the blocks.
    """

    def __init__(self, module: nn.Module, before: Callable[..., Any] | None) -> None:
        self.module, self.before, self.compute = module, before, module.forward
        self.by_block: dict[Block, Callable[..., Any]] = {}

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if self.before is None:
            return getattr, (self.module, "forward")
        return copy.copy, (self.before,)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        for block in reversed(_ENTERED.get()):
            if block in self.by_block:
                return self.by_block[block](self.compute, *inputs, **named)
        return self.compute(*inputs, **named)


class _Stance:
    """How many blocks need uncompiled passes, in all threads: torch has one stance for the process."""

    def __init__(self) -> None:
        self.blocks = 0
        self.set = ExitStack()


_LOCK = threading.RLock()
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

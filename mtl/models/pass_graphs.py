"""Passes of modules in training as CUDA graphs, forward and backward, one pair for each rounded shape.

With few sentences, the host needs longer to start a pass's operations than a GPU to do their work. A graph
starts all of them at once. Its shapes are fixed, so inputs are padded to the next rounded ones. A pass is the
encoder's, or that of a decoder with its loss.

This is the technique of `torch.cuda.make_graphed_callables`. That function is not used: it hands out buffers
of gradients, which the next replay overwrites while parameters still accumulate in them (pytorch#181723). It
frees what a second backward pass needs, which some balancers make. It keeps gradients of all weights for each
shape. And it fails if another thread uses CUDA during a capture.
"""

from __future__ import annotations

import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from mtl.heads.blocks import in_a_block
from mtl.tasks.in_words import counted, first_line
from mtl.tasks.recursions import one_by_one, set_inside

Inputs = Sequence[Tensor | None]
"""What a pass reads besides weights."""
Compute = Callable[..., Tensor]
"""A pass: from its inputs, one after another, to its output."""
Replay = Callable[[], object]
Capture = Callable[[Callable[[], Tensor], Callable[[Tensor], object]], tuple[Replay, Tensor, Replay]]
"""From a pass and what takes gradients of its output, both from and to tensors at fixed places, to what does
each again, with the output of the first between them."""


class BrokenCaptureError(RuntimeError):
    """A capture that failed midway: earlier graphs draw from a state that the generator no longer has."""


class CudaCapture:
    """Captures passes of one module on a GPU.

    All of its graphs share memory, since none of its passes begins before the last one has ended.
    """

    def __init__(self) -> None:
        self._pool: Any = None
        self._stream: Any = None

    def __call__(
        self, forward: Callable[[], Tensor], backward: Callable[[Tensor], object]
    ) -> tuple[Replay, Tensor, Replay]:
        """Capture both, after they have run on a stream of their own, as torch asks for.

        In that run a wait for the device is an error. In a capture it would leave torch's generator unusable,
        which therefore gets a new state if a capture fails all the same.
        """
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        state, mode = generator.clone_state(), torch.cuda.get_sync_debug_mode()
        self._stream = stream = self._stream or torch.cuda.Stream()
        current = torch.cuda.current_stream()
        one, other = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):  # also leaves the stream of a capture that failed
            with warnings.catch_warnings(action="ignore"):  # that the mode does not find all waits
                torch.cuda.set_sync_debug_mode("error")
            try:
                backward(forward())
            finally:
                torch.cuda.set_sync_debug_mode(mode)
            try:
                with torch.cuda.graph(one, self._pool, capture_error_mode="thread_local"):
                    output = forward()
                self._pool = one.pool()
                with torch.cuda.graph(other, self._pool, capture_error_mode="thread_local"):
                    backward(output)
            except RuntimeError as error:
                generator.graphsafe_set_state(state)
                raise BrokenCaptureError(first_line(error)) from error
        current.wait_stream(stream)
        return one.replay, output.detach(), other.replay


class _Pass:
    """A pass of one shape, with its inputs, output and gradients at fixed places.

    Args:
        compute: The pass.
        inputs: Inputs of this shape, which are copied.
        places: Per weight that is trained, where its gradient is written to.
        capture: Makes the graphs.
    """

    def __init__(
        self, compute: Compute, inputs: Inputs, places: Mapping[Tensor, Tensor], capture: Capture
    ) -> None:
        self.compute, self.places = compute, dict(places)
        self.inputs = [None if one is None else one.detach().clone() for one in inputs]
        for place, one in zip(self.inputs, inputs, strict=True):
            if place is not None and one is not None and one.requires_grad:
                self.places[place.requires_grad_()] = torch.empty_like(place)
        self.gradient: Tensor | None = None
        """That of the output."""
        self.gradients: dict[Tensor | None, Tensor] = {}
        """The places of weights and inputs that take part."""
        self.replay, self.output, self.replay_backward = capture(self._forward, self._backward)

    def _forward(self) -> Tensor:
        return self.compute(*self.inputs)

    def _backward(self, output: Tensor) -> None:
        """Write the gradients; what they are computed from is kept, since balancers ask for them again."""
        if self.gradient is None:
            self.gradient = torch.zeros_like(output, requires_grad=False)
        if not output.requires_grad:
            return
        with torch.autocast(output.device.type, enabled=False):
            made = torch.autograd.grad(
                output, [*self.places], self.gradient, retain_graph=True, allow_unused=True
            )
        found = {one: new for one, new in zip(self.places, made, strict=True) if new is not None}
        self.gradients = {one: self.places[one] for one in found}
        torch._foreach_copy_([*self.gradients.values()], [*found.values()])


class _Replayed(torch.autograd.Function):
    """A pass by its graphs: each way a replay, and copies to and from fixed places."""

    @staticmethod
    def forward(ctx: Any, module: _Module, graph: _Pass, *given: Tensor | None) -> Tensor:
        pairs: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
        for place, one in zip(graph.inputs, given, strict=False):  # weights follow
            if place is not None and one is not None:
                pairs.setdefault(place.dtype, []).append((place, one))
        for of_type in pairs.values():
            places, inputs = map(list, zip(*of_type, strict=True))
            torch._foreach_copy_(places, inputs)
        graph.replay()
        module.passes += 1
        ctx.module, ctx.graph, ctx.number = module, graph, module.passes
        ctx.set_materialize_grads(False)
        return graph.output.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        if gradient is None:  # one of several losses, whose gradients are asked for one by one
            return (None,) * (2 + len(ctx.graph.inputs) + len(ctx.module.places))
        if ctx.number != ctx.module.passes:
            raise RuntimeError("the next pass by CUDA graphs has overwritten what this backward pass needs")
        graph: _Pass = ctx.graph
        assert graph.gradient is not None
        graph.gradient.copy_(gradient)
        graph.replay_backward()
        made = {one: torch.empty_like(place) for one, place in graph.gradients.items()}
        if made:
            torch._foreach_copy_([*made.values()], [*graph.gradients.values()])
        return None, None, *map(made.get, graph.inputs), *map(made.get, ctx.module.places)


class _Module:
    """What is known of a module: its weights, the shapes of its passes, and their graphs."""

    def __init__(self, module: nn.Module, capture: Capture) -> None:
        self.capture, self.failed, self.passes = capture, False, 0
        self.weights = [*module.parameters(), *module.buffers()]
        self.places: dict[Tensor, Tensor] = {}
        """Per trained weight, where graphs of all shapes write its gradient to."""
        self.seen: Counter[tuple[object, ...]] = Counter()
        self.graphs: OrderedDict[tuple[object, ...], _Pass] = OrderedDict()


class PassGraphs:
    """The graphs of one training.

    All passes are padded, and those of a frequent shape are computed by graphs. On a GPU, a replay takes as
    many random numbers from torch's generator as the operations do one by one, in the same order: either adds
    up the same offsets of Philox. So what a pass draws depends neither on whether nor on when it was
    captured, and a run that is resumed draws what it would have drawn. Weights are read where they are: a
    replay sees updates in place, and a shape is captured again if they have moved.

    Passes in evaluation mode, without gradients, inside a `WithBlock` (observed heads, copies of weights) and
    of several processes are neither padded nor captured. If a pass of a module cannot be captured, since it
    waits for the device (it looks at the mask, or chooses experts) or has gradient checkpoints, none is.
    Hooks that others put on modules run during captures alone.

    Args:
        capture: Makes graphs; `None`: on a GPU.
        seldom: Shapes that a module had at most so often are computed without a graph.
        most: Shapes of a module whose graphs are kept; the one that was used longest ago goes first.
        say: Is told why passes are not captured, each reason once.
    """

    def __init__(
        self,
        capture: Capture | None = None,
        seldom: int = 2,
        most: int = 32,
        say: Callable[[str], object] = warnings.warn,
    ) -> None:
        self.capture, self.seldom, self.most, self.say = capture, seldom, most, say
        self.captured = self.padded = 0
        """Captured passes, and padded passes, so far."""
        self._modules: dict[nn.Module, _Module] = {}
        self._said = set[str]()

    @property
    def passes(self) -> int:
        """Passes by graphs so far."""
        return sum(module.passes for module in self._modules.values())

    def in_use(self) -> AbstractContextManager[None]:
        """In the block, this thread's passes are computed by graphs."""
        return set_inside(_GRAPHS, self)

    def described(self) -> str:
        """How many passes were captured, and how many were computed by graphs, in a line."""
        return (
            f"CUDA graphs: {counted(self.captured, 'capture')} of passes; "
            f"{self.passes:,} of {counted(self.padded, 'pass', 'passes')} by graphs"
        )

    def takes(self, module: nn.Module) -> bool:
        """Whether a pass of the module is to be padded, and computed by `run`."""
        if not module.training or not torch.is_grad_enabled():
            return False
        several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        if several or in_a_block():
            self._say("of several processes" if several else "with observed heads or copies of weights")
            return False
        return True

    def run(self, module: nn.Module, name: str, compute: Compute, inputs: Inputs) -> Tensor:
        """What `compute` returns for padded inputs; `name` says whose pass it is."""
        self.padded += 1
        if module not in self._modules:
            self._modules[module] = _Module(module, self.capture or CudaCapture())
        known = self._modules[module]
        graph = self._graph(module, known, name, compute, inputs)
        if graph is None:  # views sum the gradients of this pass before those of others, as graphs do
            return _with_own_casts(compute, *(one if one is None else one.view_as(one) for one in inputs))
        output: Tensor = _Replayed.apply(known, graph, *inputs, *known.places)
        return output

    def _graph(
        self, module: nn.Module, known: _Module, name: str, compute: Compute, inputs: Inputs
    ) -> _Pass | None:
        """The graphs for such inputs; `None`: there are none."""
        device = next(one.device for one in inputs if one is not None)
        key = (
            *(one if one is None else (one.shape, one.dtype, one.requires_grad) for one in inputs),
            torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type),
            *(weight.data_ptr() for weight in known.weights),
        )
        if key in known.graphs:
            known.graphs.move_to_end(key)
            return known.graphs[key]
        known.seen[key] += 1
        if known.failed or known.seen[key] <= self.seldom:
            return None
        if not known.places:
            known.places = {one: torch.empty_like(one) for one in known.weights if one.requires_grad}
        try:
            if any(getattr(part, "gradient_checkpointing", False) for part in module.modules()):
                raise RuntimeError("gradient checkpoints compute it twice")
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                once = partial(_with_own_casts, compute)
                graph = known.graphs[key] = _Pass(once, inputs, known.places, known.capture)
        except RuntimeError as error:
            known.failed = True
            for one in self._modules.values() if isinstance(error, BrokenCaptureError) else [known]:
                one.graphs.clear()
            self._say(f"of {name} ({first_line(error)})")
            return None
        self.captured += 1
        if len(known.graphs) > self.most:
            oldest, _ = known.graphs.popitem(last=False)
            del known.seen[oldest]
        return graph

    def _say(self, why: str) -> None:
        if why not in self._said:
            self._said.add(why)
            self.say(f"trainer.cuda_graphs captures no passes {why}")


_GRAPHS: ContextVar[PassGraphs | None] = ContextVar("pass_graphs", default=None)


def graphs_for(module: nn.Module) -> PassGraphs | None:
    """The graphs that are in use here and take passes of the module."""
    graphs = _GRAPHS.get()
    return graphs if graphs is not None and graphs.takes(module) else None


def _with_own_casts(compute: Compute, *inputs: Tensor | None) -> Tensor:
    """A pass under the autocast that is on, if any, but without its cache of weights, as captures need it.

    Recursions are computed plainly, since a graph can have no other inside.
    """
    kind = next(one.device.type for one in inputs if one is not None)
    on, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    with torch.autocast(kind, dtype, on, cache_enabled=False), one_by_one():
        return compute(*inputs)

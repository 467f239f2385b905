"""An encoder's passes in training as CUDA graphs, forward and backward, one pair for each rounded shape.

With few sentences, the host needs longer to start a pass's operations than a GPU to do their work. A graph
starts all of them at once. Its shapes are fixed, so rows are padded to the next rounded number and width.

This is the technique of `torch.cuda.make_graphed_callables`. That function is not used: it hands out buffers
of gradients, which the next replay overwrites while parameters still accumulate in them (pytorch#181723). It
frees what a second backward pass needs, which some balancers make. It keeps gradients of all weights for each
shape. And it fails if another thread uses CUDA during a capture.
"""

from __future__ import annotations

import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from mtl.heads.blocks import in_a_block
from mtl.models.tapped import TappedModel
from mtl.tasks.captured import round_up
from mtl.tasks.in_words import first_line


class PassInputs(NamedTuple):
    """What a pass reads besides weights."""

    ids: Tensor
    mask: Tensor
    types: Tensor | None
    scale: Tensor | None
    """A factor for each head [site head], or for each head in each row [row site head]."""

    def padded(self, rows: int, width: int, padding: int) -> PassInputs:
        """The same with rows of padding, which attend to themselves: rows without any token may give NaN."""
        below, beside = rows - self.ids.shape[0], width - self.ids.shape[1]
        if not below and not beside:
            return self
        corner = (0, beside, 0, below)
        scale = self.scale
        if below and scale is not None and scale.dim() == 3:
            scale = pad(scale, (0, 0, 0, 0, 0, below), value=1)
        return PassInputs(
            pad(self.ids, corner, value=padding),
            pad(pad(self.mask, (0, beside)), (0, 0, 0, below), value=1),
            None if self.types is None else pad(self.types, corner),
            scale,
        )


Compute = Callable[[PassInputs], Tensor]
"""A pass: hidden states [row subword hidden]."""
Replay = Callable[[], object]
Capture = Callable[[Callable[[], Tensor], Callable[[Tensor], object]], tuple[Replay, Tensor, Replay]]
"""From a pass and what takes gradients of its output, both from and to tensors at fixed places, to what does
each again, with the output of the first between them."""


class CudaCapture:
    """Captures on a GPU; all graphs share memory, since no pass begins before the last one has ended."""

    def __init__(self) -> None:
        self._pool: Any = None

    def __call__(
        self, forward: Callable[[], Tensor], backward: Callable[[Tensor], object]
    ) -> tuple[Replay, Tensor, Replay]:
        """Capture both, after they have run on a stream of their own, as torch asks for.

        In that run a wait for the device is an error. In a capture it would leave torch's generator unusable,
        which therefore gets a new state if a capture fails all the same.
        """
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        state, mode = generator.clone_state(), torch.cuda.get_sync_debug_mode()
        stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
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
            except RuntimeError:
                generator.graphsafe_set_state(state)
                raise
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
        self, compute: Compute, inputs: PassInputs, places: Mapping[Tensor, Tensor], capture: Capture
    ) -> None:
        there = {name: one.clone().detach() for name, one in inputs._asdict().items() if one is not None}
        self.compute, self.inputs, self.places = compute, inputs._replace(**there), dict(places)
        if inputs.scale is not None and self.inputs.scale is not None and inputs.scale.requires_grad:
            self.places[self.inputs.scale.requires_grad_()] = torch.empty_like(inputs.scale)
        self.gradient: Tensor | None = None
        """That of the output."""
        self.gradients: dict[Tensor | None, Tensor] = {}
        """The places of weights and the scale that take part."""
        self.replay, self.output, self.replay_backward = capture(self._forward, self._backward)

    def _forward(self) -> Tensor:
        return self.compute(self.inputs)

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
    def forward(
        ctx: Any, graphs: EncoderGraphs, graph: _Pass, inputs: PassInputs, *trained: Tensor | None
    ) -> Tensor:
        for place, one in zip(graph.inputs, inputs, strict=True):
            if place is not None and one is not None:
                place.copy_(one)
        graph.replay()
        graphs.passes += 1
        ctx.graphs, ctx.graph, ctx.number = graphs, graph, graphs.passes
        return graph.output.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.number != ctx.graphs.passes:
            raise RuntimeError("the next pass by CUDA graphs has overwritten what this backward pass needs")
        graph: _Pass = ctx.graph
        assert graph.gradient is not None
        graph.gradient.copy_(gradient)
        graph.replay_backward()
        made = {one: torch.empty_like(place) for one, place in graph.gradients.items()}
        if made:
            torch._foreach_copy_([*made.values()], [*graph.gradients.values()])
        return None, None, None, made.get(graph.inputs.scale), *map(made.get, ctx.graphs.places)


class EncoderGraphs:
    """The graphs of one training's encoder.

    All passes are padded, and those of a frequent shape are computed by graphs. On a GPU, a replay takes as
    many random numbers from torch's generator as the operations do one by one, in the same order: either adds
    up the same offsets of Philox. So what a pass draws depends neither on whether nor on when it was
    captured, and a run that is resumed draws what it would have drawn. Weights are read where they are: a
    replay sees updates in place, and a shape is captured again if they have moved.

    Passes in evaluation mode, without gradients, inside a `WithBlock` (observed heads, copies of weights) and
    of several processes are neither padded nor captured. If a pass cannot be captured, since it waits for the
    device (it looks at the mask, or chooses experts) or has gradient checkpoints, none is. Hooks that others
    put on modules run during captures alone.

    Args:
        capture: Makes graphs; `None`: on a GPU.
        seldom: Shapes that were seen at most so often are computed without a graph.
        most: Shapes whose graphs are kept; the one that was used longest ago goes first.
        say: Is told why passes are not captured, each reason once.
    """

    def __init__(
        self,
        capture: Capture | None = None,
        seldom: int = 2,
        most: int = 32,
        say: Callable[[str], object] = warnings.warn,
    ) -> None:
        self.capture, self.seldom, self.most, self.say = capture or CudaCapture(), seldom, most, say
        self.captured = self.passes = 0
        """Captured passes, and passes by graphs, so far."""
        self.places: dict[Tensor, Tensor] = {}
        """Per trained weight, where graphs of all shapes write its gradient to."""
        self._weights: Sequence[Tensor] = ()
        self._seen: Counter[tuple[object, ...]] = Counter()
        self._graphs: OrderedDict[tuple[object, ...], _Pass] = OrderedDict()
        self._failed, self._said = False, set[str]()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """In the block, this thread's passes are computed by graphs."""
        token = _GRAPHS.set(self)
        try:
            yield
        finally:
            _GRAPHS.reset(token)

    def run(self, encoder: TappedModel, compute: Compute, inputs: PassInputs) -> Tensor:
        """What `compute` returns for the inputs: the encoder's hidden states."""
        several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        if not encoder.training or not torch.is_grad_enabled():
            return compute(inputs)
        if in_a_block() or several:
            self._say("of several processes" if several else "with observed heads or copies of weights")
            return compute(inputs)
        (rows, width), tokenizer = inputs.ids.shape, encoder.tokenizer
        longest = max(width, min(round_up(width, _WIDTH), tokenizer.max_length))
        inputs = inputs.padded(round_up(rows, _ROWS), longest, tokenizer.padding)
        graph = self._graph(encoder, compute, inputs)
        if graph is None:
            hidden = _with_own_casts(compute, inputs)
        else:
            hidden = _Replayed.apply(self, graph, inputs, inputs.scale, *self.places)
        return hidden[:rows, :width]

    def _graph(self, encoder: TappedModel, compute: Compute, inputs: PassInputs) -> _Pass | None:
        """The graphs for such inputs; `None`: there are none."""
        if not self._weights:
            self._weights = [*encoder.parameters(), *encoder.buffers()]
        device = inputs.ids.device
        key = (
            *(one if one is None else (one.shape, one.dtype, one.requires_grad) for one in inputs),
            torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type),
            *(weight.data_ptr() for weight in self._weights),
        )
        if key in self._graphs:
            self._graphs.move_to_end(key)
            return self._graphs[key]
        self._seen[key] += 1
        if self._failed or self._seen[key] <= self.seldom:
            return None
        if not self.places:
            self.places = {one: torch.empty_like(one) for one in self._weights if one.requires_grad}
        try:
            if any(getattr(module, "gradient_checkpointing", False) for module in encoder.modules()):
                raise RuntimeError("gradient checkpoints compute it twice")
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                once = partial(_with_own_casts, compute)
                graph = self._graphs[key] = _Pass(once, inputs, self.places, self.capture)
        except RuntimeError as error:
            self._failed = True
            self._graphs.clear()
            self._say(f"({first_line(error)})")
            return None
        self.captured += 1
        if len(self._graphs) > self.most:
            oldest, _ = self._graphs.popitem(last=False)
            del self._seen[oldest]
        return graph

    def _say(self, why: str) -> None:
        if why not in self._said:
            self._said.add(why)
            self.say(f"trainer.cuda_graphs captures no passes of the encoder {why}")


_GRAPHS: ContextVar[EncoderGraphs | None] = ContextVar("encoder_graphs", default=None)
_ROWS, _WIDTH = 4, 8
"""Rows and widths become multiples of these."""


def hidden_states(encoder: TappedModel, compute: Compute, inputs: PassInputs) -> Tensor:
    """What `compute` returns for the inputs, by the graphs that are in use here."""
    graphs = _GRAPHS.get()
    return compute(inputs) if graphs is None else graphs.run(encoder, compute, inputs)


def _with_own_casts(compute: Compute, inputs: PassInputs) -> Tensor:
    """A pass under the autocast that is on, if any, but without its cache of weights, as captures need it."""
    kind = inputs.ids.device.type
    on, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    with torch.autocast(kind, dtype, on, cache_enabled=False):
        return compute(inputs)

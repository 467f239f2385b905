"""Recursions over words: compiled by numba for CPUs, and as CUDA graphs, one for each rounded shape.

numba keeps what it compiled on disk for the next process, where it can.

A recursion in torch starts some operations for each word, and the host needs longer to start one than a GPU
to do its work. A graph starts all of them at once. It has fixed shapes, so inputs are padded to the next
rounded ones.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from mtl.tasks.in_words import counted

T = TypeVar("T")
Tensors = tuple[Tensor, ...]
Capture = Callable[[Callable[..., Tensors], Tensors], tuple[Callable[[], None], Tensors]]
"""From a function and its inputs to what computes it again from them, and to the outputs that this fills."""


def compiled(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """As `numba.njit(cache=True, nogil=True)`, with a cache that is optional.

    numba raises an error if it finds no folder for its cache: in a read-only installation whose user has no
    writable home. It also raises one if the folder is full or its files are damaged or another user's. The
    function is then compiled in each process.
    """
    if function is None:
        return lambda function: compiled(function, **options)
    import numba  # takes a quarter of a second, which models without such functions save

    made: Any = numba.njit(nogil=True, **options)(function)
    if made is not function:  # NUMBA_DISABLE_JIT leaves the function as it is
        with suppress(RuntimeError, OSError):
            made._cache = _optional_cache()(function)
    return made


@cache
def _optional_cache() -> type[Any]:
    """numba's cache on disk, where a function that cannot be loaded or saved is not an error."""
    from numba.core.caching import FunctionCache

    class OptionalCache(FunctionCache):
        def load_overload(self, sig: Any, target_context: Any) -> Any:
            with suppress(Exception):  # a damaged file may raise anything
                return super().load_overload(sig, target_context)
            return None

        def save_overload(self, sig: Any, data: Any) -> None:
            with suppress(Exception):  # an index that cannot be read is read here once more
                super().save_overload(sig, data)

    return OptionalCache


@dataclass(frozen=True)
class Recursion:
    """A function of tensors that may be captured; called, it is that function.

    It must start the same operations whatever its inputs hold, never wait for the device, and draw nothing.
    Padding must not change what it returns for the rest. Nothing is differentiated through it.
    """

    function: Callable[..., Tensors]
    inputs: Sequence[str]
    """The names of each input's dimensions, such as `row word tag`. A name has one size."""
    fills: Sequence[float]
    """What each input is padded with."""
    outputs: Sequence[str]
    """The names of each output's dimensions, some of them longer than in the inputs, such as `word+1`."""
    steps: Mapping[str, int]
    """The dimensions that are padded, and the number of which their sizes become multiples."""

    def __call__(self, *given: Tensor) -> Tensors:
        graphs = _GRAPHS.get()
        return self.function(*given) if graphs is None else graphs.run(self, given)


class _Graph(NamedTuple):
    inputs: Tensors
    replay: Callable[[], None]
    outputs: Tensors


def cuda_graph(function: Callable[..., Tensors], inputs: Tensors) -> tuple[Callable[[], None], Tensors]:
    """Capture a function of tensors on a GPU, after it has run on a stream of its own, as torch asks for."""
    stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        function(*inputs)
    current.wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        outputs = function(*inputs)
    return graph.replay, outputs


class RecursionGraphs:
    """The graphs of one training.

    Args:
        capture: Makes a graph.
        seldom: Shapes that were seen at most so often are computed without a graph.
        most: Graphs that are kept; the one that was used longest ago goes first.
    """

    def __init__(self, capture: Capture = cuda_graph, seldom: int = 2, most: int = 64) -> None:
        self.capture, self.seldom, self.most = capture, seldom, most
        self.captured = 0
        """Graphs that were made so far."""
        self._seen: Counter[tuple[object, ...]] = Counter()
        self._graphs: OrderedDict[tuple[object, ...], _Graph] = OrderedDict()

    def in_use(self) -> AbstractContextManager[None]:
        """In the block, this thread's recursions are computed by graphs."""
        return set_inside(_GRAPHS, self)

    def described(self) -> str:
        """How many recursions were captured, in a line."""
        return f"CUDA graphs: {counted(self.captured, 'capture')} of recursions"

    def run(self, recursion: Recursion, given: Tensors) -> Tensors:
        """What the recursion returns; `given` are its inputs."""
        named = list(zip([names.split() for names in recursion.inputs], given, strict=True))
        sizes = {name: size for names, one in named for name, size in zip(names, one.shape, strict=True)}
        rounded = {name: round_up(size, recursion.steps.get(name, 1)) for name, size in sizes.items()}
        key = (recursion.function, given[0].device, *(one.dtype for one in given), *rounded.values())
        graph = self._graphs.get(key)
        if graph is None:
            self._seen[key] += 1
            if self._seen[key] <= self.seldom:
                return recursion.function(*given)
            inputs = tuple(one.new_empty([rounded[name] for name in names]) for names, one in named)
            _fill(inputs, recursion.fills, given)
            graph = self._graphs[key] = _Graph(inputs, *self.capture(recursion.function, inputs))
            self.captured += 1
            if len(self._graphs) > self.most:
                oldest, _ = self._graphs.popitem(last=False)
                del self._seen[oldest]
        else:
            self._graphs.move_to_end(key)
            _fill(graph.inputs, recursion.fills, given)
        graph.replay()
        # The next replay overwrites the outputs, and the backward pass of this batch may be yet to come.
        return tuple(
            output[tuple(slice(_size(name, sizes)) for name in names.split())].clone()
            for names, output in zip(recursion.outputs, graph.outputs, strict=True)
        )


_GRAPHS: ContextVar[RecursionGraphs | None] = ContextVar("graphs", default=None)


def one_by_one() -> AbstractContextManager[None]:
    """In the block, this thread's recursions are computed operation by operation."""
    return set_inside(_GRAPHS, None)


@contextmanager
def set_inside(variable: ContextVar[T], value: T) -> Iterator[None]:
    """In the block, the variable has this value in this thread."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def round_up(size: int, step: int) -> int:
    """The next multiple of `step`."""
    return -(-size // step) * step


def _size(name: str, sizes: Mapping[str, int]) -> int:
    dimension, _, more = name.partition("+")
    return sizes[dimension] + int(more or 0)


def _fill(inputs: Tensors, fills: Sequence[float], given: Tensors) -> None:
    for padded, fill, one in zip(inputs, fills, given, strict=True):
        if padded.shape != one.shape:
            padded.fill_(fill)
        padded[tuple(map(slice, one.shape))].copy_(one)

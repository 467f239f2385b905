"""Compiled functions and their cache, which may have no place, or one that fails; recursions by graphs.

By graphs of rounded shapes they return the same; a stand-in takes the place of a GPU's graphs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import pytest
import torch
from numba.core.caching import CacheImpl, IndexDataCacheFile
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mtl.tasks.decoders import con, crf
from mtl.tasks.decoders.con import bracketing_log_partition
from mtl.tasks.decoders.crf import BioCrf
from mtl.tasks.recursions import Recursion, RecursionGraphs, Tensors, compiled

ROOT = Path(__file__).parents[2]


def stand_in(function: Callable[..., Tensors], inputs: Tensors) -> tuple[Callable[[], None], Tensors]:
    """As a graph: outputs have no values before the first replay, and each replay overwrites them."""
    outputs = tuple(torch.full_like(one, 99) for one in function(*inputs))

    def replay() -> None:
        for output, made in zip(outputs, function(*inputs), strict=True):
            output.copy_(made)

    return replay, outputs


def spans(seed: int, batch: int, words: int) -> Tensors:
    draw = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(batch, words + 1, words + 1, generator=draw)
    return scores, torch.randint(1, words + 1, (batch,), generator=draw)


def tags(seed: int, rows: int, words: int) -> Tensors:
    draw = torch.Generator().manual_seed(seed)
    model = BioCrf(3)
    for parameter in model.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=draw))
    chain = model.table(model.transitions()).index_select(0, model.by_tag).detach()
    scores = 3 * torch.randn(rows, words, 7, generator=draw)
    return scores, torch.randint(1, words + 1, (rows,), generator=draw), chain, model.edge


def counts(outputs: Tensors) -> Tensors:
    """What does not depend on how the masses of roles are scaled: for each step its two factors' product."""
    if len(outputs) == 2:
        return outputs
    partition, marginals, left, following, weights = outputs
    return partition, marginals, left[..., None] * following[..., None, :], weights


RECURSIONS = [(con._INSIDE_OUTSIDE, spans), (crf._BOTH_WAYS, tags)]
recursions = pytest.mark.parametrize(("recursion", "made"), RECURSIONS, ids=["constituents", "roles"])


@recursions
def test_a_graph_of_a_rounded_shape_returns_what_the_function_returns(
    recursion: Recursion, made: Callable[..., Tensors]
) -> None:
    graphs = RecursionGraphs(stand_in, seldom=0)
    shapes = [(1, 1), (5, 13), (8, 16), (3, 9), (5, 13), (17, 7), (2, 15)]
    with graphs.in_use():
        found = [recursion(*made(seed, *shape)) for seed, shape in enumerate(shapes)]
    assert 1 < graphs.captured < len(shapes)
    for seed, (shape, outputs) in enumerate(zip(shapes, found, strict=True)):
        expected = recursion(*made(seed, *shape))
        for ours, alone in zip(counts(outputs), counts(expected), strict=True):
            torch.testing.assert_close(ours, alone, rtol=1e-6, atol=1e-9)


@recursions
def test_what_is_captured_starts_the_same_operations_whatever_its_inputs_hold(
    recursion: Recursion, made: Callable[..., Tensors]
) -> None:
    class Started(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, given=(), named=None):  # type: ignore[no-untyped-def]
            self.names.append((function, [one.shape for one in given if isinstance(one, Tensor)]))
            return function(*given, **named or {})

        def __init__(self) -> None:
            super().__init__()
            self.names: list[object] = []

    def started(seed: int) -> list[object]:
        inputs = made(seed, 6, 11)
        with Started() as mode:
            recursion.function(*inputs)
        return mode.names

    first = started(1)
    assert first == started(2)
    waits = {"_local_scalar_dense", "nonzero", "masked_select", "_to_copy.device"}
    assert not any(wait in str(name) for name in first for wait in waits)


def test_gradients_by_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(con, "_fastest", lambda scores: con._INSIDE_OUTSIDE)
    monkeypatch.setattr(crf, "_on_cpu", lambda tensor: False)
    model = BioCrf(3)
    found = []
    for graphs in (None, RecursionGraphs(stand_in, seldom=0)):
        losses, inputs = [], []
        for seed, shape in enumerate([(5, 13), (6, 15)]):  # of one rounded shape
            (brackets, words), (scores, lengths, *_) = spans(seed, *shape), tags(seed, *shape)
            inputs += [brackets.requires_grad_(), scores.requires_grad_()]
            if graphs is None:
                parts = bracketing_log_partition(brackets, words), model.log_partition(scores, lengths)
            else:
                with graphs.in_use():
                    parts = bracketing_log_partition(brackets, words), model.log_partition(scores, lengths)
            losses += [part.sum() for part in parts]
        found.append(torch.autograd.grad(torch.stack(losses).sum(), [*inputs, *model.parameters()]))
    assert graphs is not None
    assert graphs.captured == 2
    for eager, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-7)


def test_graphs_are_made_of_frequent_shapes_and_the_oldest_goes() -> None:
    seen = []

    def sums(given: Tensor) -> Tensors:
        seen.append(tuple(given.shape))
        return (given.sum(1),)

    recursion = Recursion(sums, ("row word",), (0.0,), ("row",), {"word": 4})
    graphs = RecursionGraphs(stand_in, seldom=2, most=2)

    def run(*widths: int) -> int:
        before = graphs.captured
        with graphs.in_use():
            for width in widths:
                assert recursion(torch.ones(2, width))[0].tolist() == [width, width]
        return graphs.captured - before

    assert run(3, 4) == 0
    assert seen == [(2, 3), (2, 4)]
    assert run(2) == 1
    assert run(1, 2, 3, 4) == 0
    assert run(5, 6, 7) == 1
    assert run(1) == 0  # used later than the other
    assert run(9, 9, 9) == 1
    assert run(4) == 0
    assert run(8) == 0  # it is gone, and seen for the first time
    assert run(8, 8) == 1


def double(number: int) -> int:
    return number * 2


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    return tmp_path


def test_the_next_process_finds_the_function_on_disk(cache: Path) -> None:
    assert compiled(double)(4) == 8
    again = compiled(double)
    assert again(4) == 8
    assert again.stats.cache_hits


def test_without_a_folder_for_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])
    with pytest.raises(RuntimeError, match="no locator available"):
        numba.njit(cache=True)(double)
    assert compiled(double)(4) == 8
    assert compiled(inline="always")(double)(4) == 8


def _damage(path: Path) -> None:
    path.write_bytes(b"damaged")


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def _block(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize("harm", [_damage, _cut, _block])
def test_files_of_the_cache_that_cannot_be_used(cache: Path, harm: Callable[[Path], Any], ending) -> None:
    assert compiled(double)(4) == 8
    found = list(cache.rglob(f"*.{ending}"))
    assert found
    for path in found:
        harm(path)
    assert compiled(double)(4) == 8


def test_a_full_disk(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Any, path: str) -> Any:
        raise OSError(28, "No space left on device", path)

    monkeypatch.setattr(IndexDataCacheFile, "_open_for_write", full)
    assert compiled(double)(4) == 8


def test_no_function_is_compiled_in_another_way() -> None:
    found = [
        path
        for room in ("mtl", "tasks", "probes")
        for path in (ROOT / room).rglob("*.py")
        if re.search(r"\bn?jit\(|@(numba\.)?n?jit\b", path.read_text()) and path.name != "recursions.py"
    ]
    assert not found

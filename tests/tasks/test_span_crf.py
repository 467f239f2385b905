"""The span CRF by numba and by tensors: against enumeration, finite differences, supar and each other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from mtl.tasks.decoders.con import (
    InsideOutside,
    bracketing_log_partition,
    by_numba,
    inside_outside_by_tensors,
    span_crf_loss,
)

routes = pytest.mark.parametrize("route", [by_numba, inside_outside_by_tensors])


def _bracketings(start: int, end: int) -> Iterator[list[tuple[int, int]]]:
    if end - start == 1:
        yield [(start, end)]
    for middle in range(start + 1, end):
        for left in _bracketings(start, middle):
            for right in _bracketings(middle, end):
                yield [(start, end), *left, *right]


def _scores(
    lengths: list[int], scale: float = 1.0, dtype: torch.dtype = torch.double
) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    width = max(lengths) + 1
    return torch.randn(len(lengths), width, width, dtype=dtype) * scale, torch.tensor(lengths)


@routes
@pytest.mark.parametrize("scale", [0.0, 1.0, 100.0])
def test_equals_enumeration(route: InsideOutside, scale: float) -> None:
    scores, lengths = _scores([6, 1, 2, 4, 5, 3], scale)
    partition, marginals = route(scores, lengths)
    for row, length in enumerate(lengths.tolist()):
        trees = list(_bracketings(0, length))
        totals = torch.stack([sum((scores[row, i, j] for i, j in tree), torch.tensor(0.0)) for tree in trees])
        torch.testing.assert_close(partition[row], totals.logsumexp(0))
        expected = torch.zeros_like(marginals[row])
        for tree, probability in zip(trees, totals.softmax(0), strict=True):
            for i, j in tree:
                expected[i, j] += probability
        torch.testing.assert_close(marginals[row], expected)


@routes
def test_marginals_sum_to_the_number_of_brackets(route: InsideOutside) -> None:
    scores, lengths = _scores([40, 12, 1])
    _, marginals = route(scores, lengths)
    torch.testing.assert_close(marginals.sum((1, 2)), 2.0 * lengths - 1, check_dtype=False)


@routes
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_supar_on_long_sentences(route: InsideOutside, dtype: torch.dtype) -> None:
    from supar.structs import ConstituencyCRF

    scores, lengths = _scores([30, 17, 1, 2], 2.0, dtype)
    tolerance = {"atol": 1e-4, "rtol": 1e-4} if dtype == torch.float32 else {}
    boundaries = torch.arange(scores.shape[1])
    inside = (boundaries[:, None] < boundaries) & (boundaries <= lengths[:, None, None])
    crf = ConstituencyCRF(scores.masked_fill(~inside, 0.0), lengths)
    expected = crf.log_partition.detach(), crf.marginals.detach()
    for ours, theirs in zip(route(scores, lengths), expected, strict=True):
        assert ours.dtype == theirs.dtype == dtype
        torch.testing.assert_close(ours, theirs, **tolerance)


@routes
def test_half_precision_is_computed_in_float32(route: InsideOutside) -> None:
    scores, lengths = _scores([20, 7, 1], 2.0, torch.float32)
    scores = scores.to(torch.bfloat16).requires_grad_()
    partition = bracketing_log_partition(scores, lengths, route)
    exact, marginals = by_numba(scores.double(), lengths)
    assert partition.dtype == torch.float32
    torch.testing.assert_close(partition, exact.float())
    partition.sum().backward()
    assert scores.grad is not None
    torch.testing.assert_close(scores.grad, marginals.to(torch.bfloat16))
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(bracketing_log_partition(scores, lengths, route), partition)


@routes
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_the_partition_is_the_same(route: InsideOutside, mode: type) -> None:
    scores, lengths = _scores([6, 2])
    expected = bracketing_log_partition(scores, lengths, route)
    with mode():
        torch.testing.assert_close(bracketing_log_partition(scores.clone(), lengths.clone(), route), expected)
    assert not scores.requires_grad


def test_routes_agree_whatever_stands_in_the_padding() -> None:
    scores, lengths = _scores([9, 4, 7], 3.0, torch.float32)
    outside = torch.ones(10, 10, dtype=torch.bool).tril().expand(3, 10, 10).clone()
    for row, length in enumerate(lengths.tolist()):
        outside[row, :, length + 1 :] = True
    scores = scores.masked_fill(outside, torch.nan)
    by_tensors = inside_outside_by_tensors(scores, lengths)
    for ours, theirs in zip(by_numba(scores, lengths), by_tensors, strict=True):
        assert ours.isfinite().all()
        torch.testing.assert_close(ours, theirs)


@routes
def test_gradient_is_that_of_finite_differences(route: InsideOutside) -> None:
    scores, lengths = _scores([4, 1, 3])
    scores.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: bracketing_log_partition(x, lengths, route), (scores,))


def test_gradient_of_the_loss_is_that_of_finite_differences() -> None:
    scores, lengths = _scores([4, 1, 3])
    scores.requires_grad_()
    rows = torch.tensor([0] * 7 + [1] + [2] * 5)
    spans = [*next(_bracketings(0, 4)), (0, 1), *next(_bracketings(0, 3))]
    starts, ends = torch.tensor(spans).T
    places = (rows * 5 + starts) * 5 + ends
    assert torch.autograd.gradcheck(lambda x: span_crf_loss(x, lengths, rows, places), (scores,))


def test_probabilities_of_all_bracketings_sum_to_one() -> None:
    scores, lengths = _scores([5])
    total = 0.0
    for tree in _bracketings(0, 5):
        starts, ends = torch.tensor(tree).T
        rows = torch.zeros_like(starts)
        total += (-span_crf_loss(scores, lengths, rows, 6 * starts + ends)).exp().item()
    assert total == pytest.approx(1.0)

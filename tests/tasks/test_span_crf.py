"""The span CRF against enumeration, finite differences and supar, on both of its routes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from tasks.span_crf import inside_outside_numba, inside_outside_torch, log_partition, span_crf_loss

InsideOutside = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
routes = pytest.mark.parametrize("route", [inside_outside_numba, inside_outside_torch])


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
def test_equals_supar(route: InsideOutside, dtype: torch.dtype) -> None:
    from supar import ConstituencyCRF

    scores, lengths = _scores([30, 17, 1, 2], 2.0, dtype)
    theirs = ConstituencyCRF(scores.clone().requires_grad_(), lengths)
    partition, marginals = route(scores, lengths)
    tolerance = {"atol": 1e-4, "rtol": 1e-4} if dtype == torch.float32 else {}
    torch.testing.assert_close(partition, theirs.log_partition.detach(), **tolerance)
    torch.testing.assert_close(marginals, theirs.marginals.detach(), **tolerance)


def test_routes_agree_whatever_stands_in_the_padding() -> None:
    scores, lengths = _scores([9, 4, 7], 3.0, torch.float32)
    outside = torch.ones(10, 10, dtype=torch.bool).tril().expand(3, 10, 10).clone()
    for row, length in enumerate(lengths.tolist()):
        outside[row, :, length + 1 :] = True
    scores = scores.masked_fill(outside, torch.nan)
    for ours, theirs in zip(
        inside_outside_numba(scores, lengths), inside_outside_torch(scores, lengths), strict=True
    ):
        assert ours.isfinite().all()
        torch.testing.assert_close(ours, theirs)


def test_gradient_is_that_of_finite_differences() -> None:
    scores, lengths = _scores([4, 1, 3])
    scores.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: log_partition(x, lengths), (scores,))
    rows = torch.tensor([0] * 7 + [1] + [2] * 5)
    spans = [*next(_bracketings(0, 4)), (0, 1), *next(_bracketings(0, 3))]
    starts, ends = torch.tensor(spans).T
    assert torch.autograd.gradcheck(lambda x: span_crf_loss(x, lengths, rows, starts, ends), (scores,))


def test_probabilities_of_all_bracketings_sum_to_one() -> None:
    scores, lengths = _scores([5])
    total = 0.0
    for tree in _bracketings(0, 5):
        starts, ends = torch.tensor(tree).T
        rows = torch.zeros_like(starts)
        total += (-span_crf_loss(scores, lengths, rows, starts, ends)).exp().item()
    assert total == pytest.approx(1.0)

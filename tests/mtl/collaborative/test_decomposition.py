from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from mtl.collaborative.sharing import BLOCK, Factors, decompose

HEADS, INPUTS, SIZE = 3, 14, 4
FULL = HEADS * SIZE


def matrices(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(2, HEADS, INPUTS, SIZE, generator=generator, dtype=torch.float64)
    return drawn[0], drawn[1]


def stack(queries: Tensor, keys: Tensor) -> Tensor:
    """The tensor itself, which the code under test never makes."""
    return torch.einsum("hqd,hkd->hqk", queries, keys)


def of(factors: Factors) -> Tensor:
    return torch.einsum("qr,hr,kr->hqk", factors.queries, factors.mixing, factors.keys)


def relative(tensor: Tensor, other: Tensor) -> float:
    return float((tensor - other).norm() / tensor.norm())


def test_all_components_give_the_tensor_exactly_and_each_belongs_to_a_head() -> None:
    queries, keys = matrices()
    result = decompose(queries, keys, FULL)
    assert relative(stack(queries, keys), of(result.factors)) < 1e-12
    assert result.start == BLOCK
    assert sorted(result.factors.mixing.flatten().tolist()) == [0.0] * (2 * FULL) + [1.0] * FULL
    assert result.factors.mixing.sum(1).tolist() == [SIZE] * HEADS


@pytest.mark.parametrize("components", [1, 2, 5, 9, 11])
def test_the_error_is_that_of_the_tensor_and_never_rises(components: int) -> None:
    queries, keys = matrices()
    result = decompose(queries, keys, components, steps=60)
    missing = relative(stack(queries, keys), of(result.factors))
    assert result.error == pytest.approx(missing, abs=1e-9)
    assert all(later <= earlier for earlier, later in zip(result.history, result.history[1:], strict=False))
    assert len(result.history) == 61


@pytest.mark.parametrize("components", [2, 5, 9, 11])
def test_the_block_start_is_the_best_with_components_of_one_head_each_and_steps_improve_it(
    components: int,
) -> None:
    queries, keys = matrices()
    values = torch.linalg.svdvals(stack(queries, keys)).flatten().sort(descending=True).values
    truncated = math.sqrt(values[components:].square().sum() / values.square().sum())
    start = decompose(queries, keys, components, starts=1, steps=0)
    assert start.truncated == pytest.approx(truncated, abs=1e-9)
    assert relative(stack(queries, keys), of(start.factors)) == pytest.approx(truncated, abs=1e-9)
    assert decompose(queries, keys, components, steps=40).error < truncated - 1e-4


def test_components_that_heads_do_share_are_recovered() -> None:
    generator = torch.Generator().manual_seed(3)
    shared = torch.randn(2, INPUTS, SIZE, generator=generator, dtype=torch.float64)
    mixing = torch.randn(HEADS, SIZE, generator=generator, dtype=torch.float64)
    queries = shared[0] * mixing[:, None]
    keys = shared[1].expand(HEADS, -1, -1)
    # As many components as one head has dimensions: a third of what separate heads need.
    result = decompose(queries, keys, SIZE, steps=400)
    assert result.error < 1e-4
    assert decompose(queries, keys, SIZE, starts=1, steps=0).error > 0.3


def test_one_head_is_truncated_as_by_its_singular_values() -> None:
    queries, keys = (matrix[:1] for matrix in matrices())
    values = torch.linalg.svdvals(stack(queries, keys))[0]
    best = math.sqrt(values[2:].square().sum() / values.square().sum())  # Eckart and Young
    assert decompose(queries, keys, 2).error == pytest.approx(best, abs=1e-9)


def test_more_starts_are_no_worse_and_seeds_repeat() -> None:
    queries, keys = matrices(1)
    one = decompose(queries, keys, 6, starts=1, steps=100)
    many = decompose(queries, keys, 6, starts=5, steps=100)
    again = decompose(queries, keys, 6, starts=5, steps=100)
    assert many.error <= one.error + 1e-3
    assert many.start == again.start
    assert many.history == again.history
    torch.testing.assert_close(many.factors, again.factors, rtol=0, atol=0)


def test_heads_that_compare_nothing() -> None:
    queries, keys = (torch.zeros(HEADS, INPUTS, SIZE) for _ in range(2))
    result = decompose(queries, keys, 5, steps=3)
    assert result.error == 0
    assert all(factor.isfinite().all() for factor in result.factors)


def test_the_largest_weight_of_a_component_is_1_and_its_vectors_are_equally_long() -> None:
    result = decompose(*matrices(), 7, steps=20)
    queries, keys, mixing = result.factors
    torch.testing.assert_close(mixing.abs().amax(0), torch.ones(7, dtype=torch.float64))
    torch.testing.assert_close(queries.norm(dim=0), keys.norm(dim=0))

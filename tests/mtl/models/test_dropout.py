"""Dropout with hashed masks: rates, independence, seeds, gradients."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from mtl.models.dropout import CounterDropout, draw_by_counter, scaled_mask


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [1e-4, 0.1, 0.33, 0.9])
def test_elements_are_dropped_at_the_rate_asked_for(p: float, dtype: torch.dtype) -> None:
    """Of two million elements; the tolerance is five standard deviations."""
    torch.manual_seed(1)
    masks = torch.stack([scaled_mask(torch.empty(1000, 200, dtype=dtype), p) for _ in range(10)])
    assert masks.dtype == dtype
    deviation = (p * (1 - p) / masks.numel()) ** 0.5
    assert abs((masks == 0).float().mean().item() - p) < 5 * deviation
    assert set(masks.unique().tolist()) == {0.0, torch.tensor(1 / (1 - p), dtype=dtype).item()}


def test_neighbours_rows_and_calls_are_independent() -> None:
    """Correlations at many lags, and between calls, look like those of NumPy's generator."""
    torch.manual_seed(1)
    first, second = (scaled_mask(torch.empty(2**20), 0.5).numpy() - 1 for _ in range(2))
    drawn = np.random.default_rng(1).integers(0, 2, 2**20) * 2.0 - 1
    lags = [1, 2, 3, 7, 12, 64, 144, 384, 1536, 4096, 46080, 2**16, 2**18]

    def largest(values: np.ndarray) -> float:
        return max(abs(float(np.mean(values[lag:] * values[:-lag]))) for lag in lags)

    assert max(largest(first), largest(second), abs(float(np.mean(first * second)))) < 5 / 2**10
    assert largest(drawn) < 5 / 2**10


def test_blocks_of_bits_are_uniform() -> None:
    """Patterns of eight neighbours over many seeds occur equally often (chi-square, 255 degrees)."""
    torch.manual_seed(1)
    kept = np.concatenate([scaled_mask(torch.empty(800), 0.5).numpy() > 0 for _ in range(1000)])
    counts = np.bincount(np.packbits(kept), minlength=256)
    expected = counts.sum() / 256
    assert ((counts - expected) ** 2 / expected).sum() < 255 + 5 * 510**0.5


def test_a_seed_repeats_a_mask_and_the_next_call_does_not() -> None:
    """Masks follow torch's generator, so that runs are repeated and continued."""
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first, second = scaled_mask(torch.empty(500), 0.5), scaled_mask(torch.empty(500), 0.5)
    torch.set_rng_state(state)
    assert torch.equal(scaled_mask(torch.empty(500), 0.5), first)
    assert not torch.equal(first, second)


def test_gradients_have_the_mask_of_the_pass() -> None:
    """What was dropped gets no gradient, and the rest what dropout's scale gives."""
    values = torch.ones(50, 20, requires_grad=True)
    dropped = CounterDropout(0.3)(values)
    dropped.sum().backward()
    assert values.grad is not None
    assert torch.equal(values.grad, dropped.detach())


def test_only_plain_dropout_is_replaced() -> None:
    """Subclasses keep what they do; evaluation and p = 0 change nothing."""

    class Own(nn.Dropout):
        pass

    model = nn.Sequential(nn.Dropout(0.5), Own(0.5), nn.Dropout(0.0))
    draw_by_counter(model)
    assert [type(module) for module in model] == [CounterDropout, Own, CounterDropout]
    values = torch.ones(4, 4)
    assert torch.equal(model[2](values), values)
    assert torch.equal(copy.deepcopy(model).eval()(values), values)
    assert torch.equal(CounterDropout(1.0)(values), torch.zeros(4, 4))
    assert CounterDropout(0.5)(values.double()).dtype == torch.float64

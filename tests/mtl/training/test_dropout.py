"""Dropout with hashed masks: rates, independence, seeds, gradients."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from mtl.training.on_cpu import CounterDropout, draw_by_counter, scaled_mask


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
    """Masks follow torch's generator, so that runs can be repeated and resumed."""
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


class _Attention(nn.Module):
    """What an attention module shows its attention function."""

    def __init__(self, dropout: nn.Dropout, *, is_causal: bool = False) -> None:
        super().__init__()
        self.dropout, self.is_causal = dropout, is_causal


@pytest.mark.parametrize("mask_kind", ["none", "truth", "numbers"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_drops_weights_as_torch_does(mask_kind: str, dtype: torch.dtype) -> None:
    """Values and gradients, compared with attention written out with the same mask."""
    draw_by_counter(nn.Module())
    torch.manual_seed(1)
    inputs = [torch.randn(2, 3, 7, 4, requires_grad=True) for _ in range(3)]
    seen = torch.arange(7) < torch.tensor([[7], [4]])
    truth = seen[:, None, None].expand(2, 1, 7, 7)
    mask = {"none": None, "truth": truth, "numbers": torch.zeros(2, 1, 7, 7).masked_fill(~truth, -1e9)}[
        mask_kind
    ]
    rounded = [part.to(dtype) for part in inputs]
    state = torch.get_rng_state()
    module = _Attention(CounterDropout(0.4))
    mine, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](module, *rounded, mask, dropout=0.4, scaling=0.6)
    torch.set_rng_state(state)
    dropped = scaled_mask(torch.empty(2, 3, 7, 7), 0.4)
    query, key, value = (part.float() for part in rounded)
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) * 0.6
    if mask is not None:
        scores = scores.masked_fill(~truth, -torch.inf)
    theirs = torch.einsum("bhqk,bhkd->bqhd", scores.softmax(-1) * dropped, value).to(dtype)
    torch.testing.assert_close(mine, theirs)
    gradients = torch.autograd.grad(mine.float().square().sum(), inputs, retain_graph=True)
    expected = torch.autograd.grad(theirs.float().square().sum(), inputs)
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-2)


@pytest.mark.parametrize(
    ("module", "dropout"),
    [
        (_Attention(nn.Dropout(0.4)), 0.4),
        (_Attention(CounterDropout(0.4), is_causal=True), 0.4),
        (_Attention(CounterDropout(0.4)), 0.0),
    ],
    ids=["another model", "causal", "evaluation"],
)
def test_other_attention_is_transformers_own(module: nn.Module, dropout: float) -> None:
    """Bit for bit, with torch's own masks."""
    draw_by_counter(nn.Module())
    torch.manual_seed(1)
    query, key, value = (torch.randn(2, 3, 7, 4) for _ in range(3))
    causal = bool(module.is_causal)
    torch.manual_seed(2)
    mine, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, None, dropout=dropout)
    torch.manual_seed(2)
    theirs = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=causal)
    assert torch.equal(mine, theirs.transpose(1, 2))

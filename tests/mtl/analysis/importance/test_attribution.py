"""Which example a row of a pass serves, although rounding blurs the weights of losses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from mtl.analysis.importance.attribution import head_gradients
from mtl.heads.tap import HeadOutputs

HEADS, SIZE = 3, 4


def outputs_of(rows: int, dtype: torch.dtype) -> HeadOutputs:
    outputs = HeadOutputs(1)
    outputs.passes[0].append(torch.randn(rows, 5, HEADS, SIZE).to(dtype).requires_grad_())
    return outputs


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("rows", [2, 40, 300, 1200])
def test_every_row_is_told_apart(rows: int, dtype: torch.dtype) -> None:
    """Rows of a pass are in another order than the examples, and some serve none."""
    torch.manual_seed(0)
    outputs = outputs_of(rows, dtype)
    mixed, order = nn.Linear(HEADS * SIZE, 7).to(dtype), torch.randperm(rows)
    [given] = outputs.passes[0]

    def losses() -> Tensor:
        values = mixed(given.flatten(2)).tanh().float().square().sum((1, 2))[order]
        return values * (torch.arange(rows) % 5 != 0)

    expected = torch.zeros(rows, HEADS, dtype=torch.float64)
    [gradient] = torch.autograd.grad(losses().sum(), [given])
    expected[:] = (given.detach() * gradient).sum(-1).double().sum(1)[order]
    found, _ = head_gradients(losses(), outputs, HEADS)
    torch.testing.assert_close(found.example[:, 0], expected, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_row_of_two_examples_is_of_neither(dtype: torch.dtype) -> None:
    """Neighbours in a batch have the most similar weights."""
    torch.manual_seed(0)
    examples = 200
    outputs = outputs_of(examples // 2, dtype)
    [given] = outputs.passes[0]
    # The first two positions of a row are one example's, the others the next one's.
    losses = given.float().tanh().sum((2, 3))
    losses = torch.stack([losses[:, :2].sum(1), losses[:, 2:].sum(1)], 1).flatten()
    found, _ = head_gradients(losses, outputs, HEADS)
    slope = (1 - given.detach().float().tanh().square()).to(dtype)
    positions = (given.detach() * slope).sum(-1).double()
    expected = torch.stack([positions[:, :2].sum(1), positions[:, 2:].sum(1)], 1).flatten(0, 1)
    torch.testing.assert_close(found.example[:, 0], expected, rtol=2e-2, atol=2e-2)


def test_as_many_rows_as_examples_need_not_serve_one_each() -> None:
    """Both rows serve the first example; that is found again in the next batch."""
    torch.manual_seed(0)
    outputs = outputs_of(2, torch.float32)
    [given] = outputs.passes[0]

    def losses() -> Tensor:
        return torch.stack([given.tanh().sum(), torch.ones(())])

    first, alike = head_gradients(losses(), outputs, HEADS)
    again, _ = head_gradients(losses(), outputs, HEADS, alike=alike)
    assert not alike
    assert not first.example[1].any()
    torch.testing.assert_close(again.example, first.example, rtol=0, atol=0)


def test_rows_in_any_order_that_serve_one_example_each_are_examined_once() -> None:
    torch.manual_seed(0)
    outputs = outputs_of(4, torch.float32)
    [given] = outputs.passes[0]
    _, alike = head_gradients(given.tanh().sum((1, 2, 3)).flip(0), outputs, HEADS)
    assert alike

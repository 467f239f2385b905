"""Which example a row of a pass serves, although rounding blurs the weights of losses."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from mtl.analysis.plain import copies_of, head_gradients
from mtl.heads.tap import HeadOutputs

HEADS, SIZE = 3, 4


def outputs_of(rows: int, dtype: torch.dtype) -> HeadOutputs:
    outputs = HeadOutputs(1)
    outputs.passes[0].append(torch.randn(rows, 5, HEADS, SIZE).to(dtype).requires_grad_())
    return outputs


@pytest.mark.parametrize(
    ("rows", "dtype"),
    [
        *itertools.product([2, 40, 300], [torch.bfloat16, torch.float16, torch.float32]),
        (520, torch.bfloat16),
    ],
)
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_rows_in_the_order_of_the_examples_share_a_pass(dtype: torch.dtype) -> None:
    """Neighbours that change places are seen in half precision, too."""
    torch.manual_seed(0)
    outputs = outputs_of(20, dtype)
    [given] = outputs.passes[0]
    losses = given.tanh().sum((1, 2, 3))
    in_order, alike = head_gradients(losses, outputs, HEADS)
    assert alike
    order = torch.tensor([*range(10), 11, 10, *range(12, 20)])
    outputs = outputs_of(20, dtype)
    [other] = outputs.passes[0]
    other.data.copy_(given.data)
    changed, alike = head_gradients(other.tanh().sum((1, 2, 3))[order], outputs, HEADS)
    assert not alike
    torch.testing.assert_close(changed.example, in_order.example[order])


def test_only_what_has_a_value_for_each_row_is_copied() -> None:
    batch = {"ids": torch.tensor([[1], [2]]), "texts": ["a", "b"], "labels": ["x", "y", "z"], "width": 2}
    copied = copies_of(batch, 2, 2)
    assert copied.pop("ids").tolist() == [[1], [2], [1], [2]]
    assert copied == {"texts": ["a", "b"] * 2, "labels": ["x", "y", "z"], "width": 2}

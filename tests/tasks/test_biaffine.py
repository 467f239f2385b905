"""Shared layers against supar's and against their own laws."""

from __future__ import annotations

import pytest
import torch

from mtl.tasks.biaffine import Biaffine, Mlp


def _filled(inputs: int, labels: int, bias_left: bool, bias_right: bool) -> Biaffine:
    layer = Biaffine(inputs, labels, bias_left, bias_right).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("bias_left", [False, True])
@pytest.mark.parametrize("bias_right", [False, True])
def test_biaffine_equals_supar(labels: int, bias_left: bool, bias_right: bool) -> None:
    from supar import modules

    torch.manual_seed(0)
    ours = _filled(5, labels, bias_left, bias_right)
    theirs = modules.Biaffine(5, labels, bias_x=bias_left, bias_y=bias_right).double()
    with torch.no_grad():
        theirs.weight[:, :5, :5] = ours.weight
        if ours.of_right is not None:
            theirs.weight[:, 5, :5] = ours.of_right
        if ours.of_left is not None:
            theirs.weight[:, :5, 5] = ours.of_left
        if ours.bias is not None:
            theirs.weight[:, 5, 5] = ours.bias
    left, right = torch.randn(2, 4, 5).double(), torch.randn(2, 6, 5).double()
    expected = theirs(left, right)
    expected = expected[..., None] if labels == 1 else expected.permute(0, 2, 3, 1)
    torch.testing.assert_close(ours(left, right), expected)


def test_pairs_are_entries_of_all_pairs() -> None:
    torch.manual_seed(1)
    layer = _filled(5, 3, True, True)
    left, right = torch.randn(2, 4, 5).double(), torch.randn(2, 6, 5).double()
    row, a, b = torch.tensor([0, 1, 1]), torch.tensor([3, 0, 2]), torch.tensor([5, 1, 1])
    torch.testing.assert_close(layer.pairs(left[row, a], right[row, b]), layer(left, right)[row, a, b])
    assert layer.pairs(left[0, :0], right[0, :0]).shape == (0, 3)


def test_biaffine_is_differentiable_in_both_forms() -> None:
    torch.manual_seed(2)
    layer = _filled(3, 2, True, True)
    left = torch.randn(1, 3, 3, dtype=torch.double, requires_grad=True)
    right = torch.randn(1, 3, 3, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (left, right))
    assert torch.autograd.gradcheck(lambda x, y: layer.pairs(x[0], y[0]), (left, right))


def test_mlp_drops_the_same_features_at_all_words_of_a_sentence() -> None:
    torch.manual_seed(3)
    layer = Mlp(4, 50, dropout=0.5)
    layer.linear.bias.data.fill_(10.0)
    dropped = layer(torch.zeros(3, 5, 4)) == 0
    assert (dropped == dropped[:, :1]).all()
    assert not (dropped[0] == dropped[1]).all()
    by_row = layer(torch.zeros(5, 4)) == 0
    assert not (by_row == by_row[:1]).all()


def test_mlp_keeps_its_mean_under_dropout_and_drops_nothing_in_evaluation() -> None:
    torch.manual_seed(4)
    layer = Mlp(4, 20_000, dropout=0.25)
    layer.linear.bias.data.fill_(10.0)
    zeros = torch.zeros(2, 4)
    assert layer(zeros).mean().item() == pytest.approx(10.0, rel=0.02)
    assert (layer.eval()(zeros) == 10.0).all()

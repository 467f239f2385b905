"""Heads chosen for several masks, against all possible choices."""

from __future__ import annotations

import re
from itertools import combinations, product

import pytest
import torch

from mtl.errors import InputError
from mtl.heads.allotment import choose_heads
from mtl.heads.gates import HeadGates
from mtl.heads.target import HeadTarget
from mtl.training.gate_loss import GateLoss, choice_warnings


def best_sum(log_alpha: torch.Tensor, wanted: int, at_most: int) -> float:
    """The largest sum over all choices of `wanted` heads per mask."""
    masks, heads = log_alpha.shape
    best = -torch.inf
    for chosen in product(combinations(range(heads), wanted), repeat=masks):
        taken = [head for of_mask in chosen for head in of_mask]
        if max(taken.count(head) for head in range(heads)) <= at_most:
            best = max(best, sum(float(log_alpha[mask, list(chosen[mask])].sum()) for mask in range(masks)))
    return best


@pytest.mark.parametrize(
    ("masks", "heads", "wanted"), [(2, 6, 3), (3, 5, 1), (3, 6, 2), (4, 4, 1), (3, 4, 2)]
)
def test_the_choice_is_the_best_of_all(masks: int, heads: int, wanted: int) -> None:
    generator = torch.Generator().manual_seed(masks * 100 + heads)
    for at_most in range(-(-masks * wanted // heads), masks + 2):
        for ties in (False, True):
            log_alpha = torch.randn(masks, heads, generator=generator, dtype=torch.float64)
            if ties:
                log_alpha = log_alpha.round()
            chosen = choose_heads(log_alpha, wanted, at_most)
            assert chosen.sum(1).tolist() == [wanted] * masks
            assert int(chosen.sum(0).max()) <= at_most
            assert float(log_alpha[chosen].sum()) == pytest.approx(best_sum(log_alpha, wanted, at_most))


def test_as_many_as_masks_is_each_masks_own_best() -> None:
    log_alpha = torch.randn(5, 72, generator=torch.Generator().manual_seed(1))
    expected = torch.zeros(5, 72, dtype=torch.bool).scatter_(1, log_alpha.topk(24).indices, True)
    assert torch.equal(choose_heads(log_alpha, 24, 5), expected)
    assert torch.equal(choose_heads(log_alpha, 24, 7), expected)
    disjoint = choose_heads(log_alpha, 14, 1)
    assert disjoint.sum(1).tolist() == [14] * 5
    assert int(disjoint.sum(0).max()) == 1


def test_the_targets_choice_is_allotted_and_held() -> None:
    gates = HeadGates(2, 4, masks=("pos", "dep"), init_mean=0.0, init_std=1.0, absent=[(0, 0)])
    with torch.no_grad():
        gates.log_alpha[:, 1, :3] = 5.0  # both want the same three
    target = HeadTarget(gates, 3, at_most=1)
    target.project(gates, 0.8)
    kept = target.kept.clone()
    assert kept.sum((1, 2)).tolist() == [3, 3]
    assert not (kept[0] & kept[1]).any()
    assert not kept[:, 0, 0].any()
    with torch.no_grad():
        gates.log_alpha.neg_()
    target.project(gates, 0.9)
    assert torch.equal(gates.open(), kept)
    free = HeadTarget(gates, 3)
    assert free.at_most is None


def test_a_choice_that_cannot_be_is_one_line() -> None:
    message = (
        "gates.at_most=1: 5 masks of 24 heads need 120 places, and 72 heads can give 72: "
        "use gates.target_open=14 or less, or "
    )
    with pytest.raises(InputError, match=re.escape(message + "gates.at_most=2")):
        HeadTarget(HeadGates(6, 12, masks=tuple("abcde")), 24, at_most=1)
    with pytest.raises(InputError, match=r"gates\.at_most=0"):
        choose_heads(torch.zeros(2, 4), 1, 0)


@pytest.mark.slow
def test_the_overlap_penalty_spreads_masks_at_a_fixed_number_of_heads() -> None:
    """Two masks want the same heads; the target keeps their numbers of heads, the penalty parts them."""

    def overlap(weight: float, seed: int) -> int:
        torch.manual_seed(seed)
        updates = 300
        gates = HeadGates(3, 8, masks=("pos", "dep"), init_std=0.1)
        worth = torch.linspace(0.05, 0.5, 24).view(3, 8).expand(2, 3, 8)
        target = HeadTarget(gates, 8)
        optimiser = torch.optim.Adam(gates.parameters(), lr=10 / updates)
        for update in range(updates):
            losses = (worth * (1 - gates())).sum((1, 2))
            cost = target(gates, update / updates, losses).sum() + weight * gates.overlap()
            optimiser.zero_grad()
            (losses.sum() + cost).backward()
            optimiser.step()
            target.project(gates, (update + 1) / updates)
        assert gates.open().sum((1, 2)).tolist() == [8, 8]
        return int((gates.open()[0] & gates.open()[1]).sum())

    free, spread = (sum(overlap(weight, seed) for seed in (1, 2, 3)) for weight in (0.0, 1.0))
    # Of 24; by chance it would be 8.
    assert free >= 15
    assert spread <= 12


def test_the_warning_names_the_bound_that_forces_heads() -> None:
    gates = HeadGates(2, 4, masks=("pos", "dep"))
    loss = GateLoss(gates, 100, target=HeadTarget(gates, 4, at_most=1))
    loss.after_update(80)
    assert all(
        "gates.at_most=1 takes heads from masks that want the same" in line for line in choice_warnings(loss)
    )
    assert len(choice_warnings(loss)) == 2

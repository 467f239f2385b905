"""Each of several budgets has its own price and choice; a single one behaves as targets did before."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from mtl.errors import InputError
from mtl.heads.budgets import Budget
from mtl.heads.gates import HeadGates
from mtl.heads.target import HeadTarget

LOWER, UPPER = (0, 1), (2, 3, 4)
MASKS = ("pos", "dep")
UPDATES = 60


class Course:
    """Gates trained without samples, for a cost that is linear in them, so that courses can be compared."""

    def __init__(self, use: Tensor, log_alpha: Tensor, target: int | float | Sequence[Budget]) -> None:
        masks, sites, heads = use.shape
        self.use, self.done = use, 0
        self.gates = HeadGates(sites, heads, masks=MASKS[:masks])
        with torch.no_grad():
            self.gates.log_alpha.copy_(log_alpha)
        self.target = HeadTarget(self.gates, target)
        self.optimizer = torch.optim.SGD(self.gates.parameters(), lr=0.5)
        self.prices: list[list[float]] = []

    def step(self) -> None:
        progress = self.done / UPDATES
        # Prices are measured in losses of the whole model, whichever part of it is looked at.
        prices = self.target(self.gates, progress, torch.tensor([1.0, 3.0]) * (1 + progress))
        self.prices.append(prices.tolist())
        self.optimizer.zero_grad()
        ((self.use * (1 - self.gates.gate())).sum() + prices.sum()).backward()
        self.optimizer.step()
        self.done += 1
        self.target.project(self.gates, self.done / UPDATES)

    def train(self, updates: int = UPDATES) -> Course:
        for _ in range(updates):
            self.step()
        return self


@pytest.fixture
def drawn() -> tuple[Tensor, Tensor]:
    """How much heads are used, and log alphas, for two masks over five sites of four heads."""
    generator = torch.Generator().manual_seed(0)
    use = torch.randn(2, 5, 4, generator=generator).exp() / 10
    return use, 2 + torch.randn(2, 5, 4, generator=generator) / 2


def test_budgets_do_what_as_many_targets_apart_do(drawn):
    use, start = drawn
    together = Course(use, start, [Budget(3, LOWER, "lower"), Budget(0.5, UPPER, "upper")])
    assert together.target.wanted == (3, 6)
    sites = {"lower": list(LOWER), "upper": list(UPPER)}
    apart = {
        name: Course(use[:, sites[name]], start[:, sites[name]], wanted)
        for name, wanted in (("lower", 3), ("upper", 0.5))
    }
    for _ in range(UPDATES):
        for course in (together, *apart.values()):
            course.step()
        prices = torch.tensor([course.prices[-1] for course in apart.values()]).sum(0)
        torch.testing.assert_close(torch.tensor(together.prices[-1]), prices, rtol=1e-4, atol=1e-3)
        for name, course in apart.items():
            log_alpha = together.gates.log_alpha[:, sites[name]]
            torch.testing.assert_close(log_alpha, course.gates.log_alpha, rtol=1e-4, atol=1e-4)
            with torch.no_grad():  # else rounding errors grow with the price
                course.gates.log_alpha.copy_(log_alpha)
    integrals = torch.stack([course.target.integral for course in apart.values()], 1)
    torch.testing.assert_close(together.target.integral.view(2, 2), integrals, rtol=1e-3, atol=1e-3)
    choices, opened = together.target.choices(together.gates), together.gates.open()
    assert list(choices) == ["pos/lower", "pos/upper", "dep/lower", "dep/upper"]
    for name, course in apart.items():
        assert {mask: choices[f"{mask}/{name}"] for mask in MASKS} == course.target.choices(course.gates)
    assert opened[:, sites["lower"]].sum((1, 2)).tolist() == [3, 3]
    assert opened[:, sites["upper"]].sum((1, 2)).tolist() == [6, 6]


BEFORE = [
    [-2.6148782, -10.0117493], [14.5226488, 30.8766689], [46.4865417, 37.7365494], [54.5039978, 235.4612579],
    [8.5935211, 31.0001831], [0.0, 0.0],
]  # fmt: skip
"""Prices at every tenth update of the course below, computed at commit ff7dc23, before there were budgets."""
STATE = {
    "integral": (2,), "mean_loss": (2,), "expected": (2,), "slope": (2,), "progress": (), "chosen": (),
    "kept": (2, 5, 4), "log_alpha_at_choice": (2, 5, 4),
}  # fmt: skip
"""The state of a target at that commit: a checkpoint from before is loaded and resumed."""


def test_one_target_has_the_prices_and_the_state_from_before_there_were_budgets(drawn):
    course = Course(*drawn, 7).train()
    torch.testing.assert_close(torch.tensor(course.prices[::10]), torch.tensor(BEFORE))
    state = course.target.state_dict()
    assert {name: tuple(value.shape) for name, value in state.items()} == STATE
    one = Course(*drawn, [Budget(7, (0, 1, 2, 3, 4))]).train()
    assert one.prices == course.prices
    assert torch.equal(one.gates.log_alpha, course.gates.log_alpha)
    assert one.target.choices(one.gates) == course.target.choices(course.gates)


def test_sites_without_a_budget_are_neither_priced_nor_chosen(drawn):
    _, start = drawn
    course = Course(*drawn, [Budget(2, LOWER, "lower")])
    course.target(course.gates, 0.5, torch.ones(2)).sum().backward()
    gradient = course.gates.log_alpha.grad
    assert gradient[:, list(LOWER)].all()
    assert not gradient[:, list(UPPER)].any()
    course.target.project(course.gates, 0.9)
    assert torch.equal(course.gates.log_alpha[:, list(UPPER)], start[:, list(UPPER)])
    assert course.gates.open()[:, list(LOWER)].sum((1, 2)).tolist() == [2, 2]
    assert course.target.choices(course.gates)["pos/lower"].open_at_choice == 8


@pytest.mark.parametrize("stop", [20, 50])
def test_budgets_resume_exactly(drawn, stop):
    budgets = [Budget(3, LOWER, "lower"), Budget(6, UPPER, "upper")]
    unbroken = Course(*drawn, budgets).train(stop)
    resumed = Course(*drawn, budgets)
    resumed.gates.load_state_dict(unbroken.gates.state_dict())
    resumed.target.load_state_dict(copy.deepcopy(unbroken.target.state_dict()))
    resumed.done = stop
    first, second = (course.train(UPDATES - stop) for course in (unbroken, resumed))
    assert torch.equal(first.gates.log_alpha, second.gates.log_alpha)


def test_whole_groups_and_disjoint_masks_are_chosen_within_each_budget():
    torch.manual_seed(0)
    gates = HeadGates(5, 4, masks=MASKS, init_std=1.0, group=2)
    target = HeadTarget(gates, [Budget(4, LOWER, "lower"), Budget(6, UPPER, "upper")], at_most=1)
    target.project(gates, 0.9)
    opened = gates.open()
    assert opened[:, list(LOWER)].sum((1, 2)).tolist() == [4, 4]
    assert opened[:, list(UPPER)].sum((1, 2)).tolist() == [6, 6]
    assert not (opened[0] & opened[1]).any()
    assert torch.equal(opened[..., ::2], opened[..., 1::2])


def test_budgets_that_cannot_be():
    gates = HeadGates(5, 4, absent=((0, 1),))
    with pytest.raises(InputError, match=r"^lower: target 8: there are only 7 heads"):
        HeadTarget(gates, [Budget(8, LOWER, "lower"), Budget(3, UPPER, "upper")])
    with pytest.raises(ValueError, match="a site belongs to two parts"):
        HeadTarget(gates, [Budget(3, LOWER, "lower"), Budget(3, (1, 2), "upper")])

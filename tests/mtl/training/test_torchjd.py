"""The balancer `torchjd` against the library's own aggregators."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest
import torch
from torch import Tensor, nn

from mtl.config.schema import BalancerConfig
from mtl.training.balancers import TorchJD, Weighting, balancer_for, gram_matrix

aggregation = pytest.importorskip("torchjd.aggregation", reason="pip install 'mtl-heads[torchjd]'")
NAMES = get_args(Weighting)
weightings = pytest.mark.parametrize("name", NAMES)
SETTINGS = {"CAGrad": {"c": 0.5}, "FairGrad": {"alpha": 1.0}}
ALL = torch.ones(4, dtype=torch.bool)


def aggregator(name: str, tasks: int):
    settings = {"n_tasks": tasks} if name == "NashMTL" else SETTINGS.get(name, {})
    return getattr(aggregation, name)(**settings)


def jacobians(steps: int = 3, tasks: int = 4) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(tasks, 9) for _ in range(steps)]


def test_the_configuration_has_these_weightings() -> None:
    assert get_args(get_type_hints(BalancerConfig)["weighting"]) == NAMES


@pytest.mark.filterwarnings("ignore:.*not DPP")
@weightings
def test_steps_are_those_of_the_library(name: str) -> None:
    """Several in a row, since Nash-MTL starts from the last one."""
    balancer, theirs = (
        balancer_for(BalancerConfig("torchjd", weighting=name), list("abcd")),
        aggregator(name, 4),
    )
    for jacobian in jacobians():
        weights = balancer(torch.ones(4), jacobian @ jacobian.T, ALL)
        torch.testing.assert_close(weights @ jacobian, theirs(jacobian), rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.*not DPP")
@weightings
def test_a_step_of_a_model_is_that_of_the_library_on_its_gradients(name: str) -> None:
    """From losses to the gradient in the encoder, as a training computes it."""
    torch.manual_seed(0)
    encoder = nn.Linear(5, 3)
    outputs = encoder(torch.randn(6, 5)).tanh()
    losses = {task: (outputs @ torch.randn(3)).square().mean() for task in "abc"}
    balancer = TorchJD(3, name)
    parameters = list(encoder.parameters())
    weights = balancer(
        torch.stack(list(losses.values())), gram_matrix(losses, list("abc"), parameters), ALL[:3]
    )
    rows = [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in losses.values()]
    jacobian = torch.stack([torch.cat([gradient.flatten() for gradient in row]) for row in rows])
    (weights * torch.stack(list(losses.values()))).sum().backward()
    step = torch.cat([parameter.grad.flatten() for parameter in parameters])
    torch.testing.assert_close(step, aggregator(name, 3)(jacobian), rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.*not DPP")
@weightings
def test_absent_tasks_are_left_out_whatever_they_hold(name: str) -> None:
    jacobian = jacobians()[0]
    gram = jacobian @ jacobian.T
    gram[1] = gram[:, 1] = torch.nan
    present = torch.tensor([True, False, True, True])
    weights = TorchJD(4, name)(torch.tensor([1.0, torch.nan, 1.0, 1.0]), gram, present)
    assert weights[1] == 0
    expected = aggregator(name, 3)(jacobian[present])
    torch.testing.assert_close(weights[present] @ jacobian[present], expected, rtol=1e-3, atol=1e-4)


@weightings
def test_a_checkpoint_resumes_exactly(name: str) -> None:
    steps = jacobians(4)
    first, resumed = TorchJD(4, name), TorchJD(4, name)
    for jacobian in steps[:2]:
        first(torch.ones(4), jacobian @ jacobian.T, ALL)
    resumed.load_state_dict(first.state_dict())
    for jacobian in steps[2:]:
        weights = first(torch.ones(4), jacobian @ jacobian.T, ALL)
        assert torch.equal(weights, resumed(torch.ones(4), jacobian @ jacobian.T, ALL))


@weightings
def test_nothing_to_weigh_is_weight_1_and_what_is_not_finite_stays_so(name: str) -> None:
    balancer = TorchJD(2, name)
    assert balancer(torch.ones(2), torch.zeros(2, 2), ALL[:2]).tolist() == [1, 1]
    assert balancer(torch.ones(2), torch.full((2, 2), torch.nan), ALL[:2]).isnan().all()
    assert TorchJD(1, name)(torch.ones(1), torch.full((1, 1), 9.0), ALL[:1]).tolist() == [1]
    with pytest.raises(ValueError, match="needs the Gram matrix"):
        balancer(torch.ones(2), None, ALL[:2])


def test_upgrad_conflicts_with_no_task() -> None:
    for jacobian in jacobians(8):
        weights = TorchJD(4, "UPGrad")(torch.ones(4), jacobian @ jacobian.T, ALL)
        assert (jacobian @ (weights @ jacobian) >= -1e-2).all()

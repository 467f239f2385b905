from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from mtl.training.balancers import (
    Balancer,
    Fixed,
    GradNorm,
    KeptGradients,
    MovingAverage,
    PCGrad,
    Uncertainty,
    Uniform,
    gram_matrix,
)

ALL = torch.ones(3, dtype=torch.bool)
LOSSES = torch.tensor([1.0, 2.0, 4.0])
GRADIENTS = torch.tensor([[3.0, 0.0], [-1.0, 1.0], [0.0, -2.0]])


def gram(gradients: Tensor) -> Tensor:
    return gradients @ gradients.T


def every() -> list[Balancer]:
    return [Uniform(), Fixed([1.0, 2.0, 3.0]), MovingAverage(3), Uncertainty(3), GradNorm(3), PCGrad()]


def names(balancer: Balancer) -> str:
    return type(balancer).__name__


# Laws that hold for all


@pytest.mark.parametrize("balancer", every(), ids=names)
def test_absent_task_has_weight_0_and_leaves_no_trace(balancer: Balancer) -> None:
    matrix = gram(GRADIENTS)
    balancer(LOSSES, matrix, ALL)
    before = {name: value.clone() for name, value in balancer.state_dict().items()}
    matrix[1] = matrix[:, 1] = torch.nan
    present = torch.tensor([True, False, True])
    weights = balancer(torch.tensor([0.5, torch.nan, 3.0]), matrix, present)
    assert weights[1] == 0
    assert (weights[[0, 2]] > 0).all()
    assert weights.isfinite().all()
    for name, value in balancer.state_dict().items():
        if name != "weights":  # GradNorm's are brought back to their sum
            assert torch.equal(value[1], before[name][1]), name


@pytest.mark.parametrize("balancer", every(), ids=names)
def test_state_resumes_exactly(balancer: Balancer) -> None:
    fresh = next(one for one in every() if type(one) is type(balancer))
    steps = [(LOSSES * 0.9**step, gram(GRADIENTS * (1 + step))) for step in range(8)]
    for losses, matrix in steps[:4]:
        balancer(losses, matrix, ALL)
    fresh.load_state_dict(balancer.state_dict())
    generator = torch.get_rng_state()
    expected = [balancer(losses, matrix, ALL) for losses, matrix in steps[4:]]
    torch.set_rng_state(generator)
    assert all(
        torch.equal(fresh(*step, ALL), weights) for step, weights in zip(steps[4:], expected, strict=True)
    )


@pytest.mark.parametrize("kind", [Uniform, MovingAverage, Uncertainty, GradNorm])
def test_order_of_tasks_does_not_matter(kind: type[Balancer]) -> None:
    balancer, other = (next(one for one in every() if type(one) is kind) for _ in range(2))
    order = torch.tensor([2, 0, 1])
    for step in range(4):
        losses = LOSSES ** (1 - 0.2 * step)
        weights = balancer(losses, gram(GRADIENTS), ALL)
        permuted = other(losses[order], gram(GRADIENTS[order]), ALL)
    torch.testing.assert_close(permuted, weights[order])


@pytest.mark.parametrize("balancer", every(), ids=names)
def test_runs_without_reading_values_on_the_host(balancer: Balancer) -> None:
    """The meta device has no values: whoever asks for one (`.item()`, `if tensor`) fails there."""
    balancer.to("meta")
    weights = balancer(LOSSES.to("meta"), gram(GRADIENTS).to("meta"), ALL.to("meta"))
    assert weights.shape == (3,)
    assert balancer.regulariser(ALL.to("meta")).shape == ()


@pytest.mark.parametrize("balancer", [GradNorm(3), PCGrad()], ids=names)
def test_missing_gram_matrix_is_an_error(balancer: Balancer) -> None:
    with pytest.raises(ValueError, match="Gram matrix"):
        balancer(LOSSES, None, ALL)


@pytest.mark.parametrize("balancer", every(), ids=names)
def test_regulariser_is_zero_at_the_start(balancer: Balancer) -> None:
    assert balancer.regulariser(ALL) == 0


# Uniform and fixed


def test_uniform_and_fixed() -> None:
    assert Uniform()(LOSSES, None, ALL).tolist() == [1, 1, 1]
    assert Fixed([0.5, 0.0, 2.0])(LOSSES, None, ALL).tolist() == [0.5, 0, 2]
    with pytest.raises(ValueError, match="none below 0"):
        Fixed([1.0, -1.0])
    with pytest.raises(ValueError, match="finite"):
        Fixed([1.0, math.inf])


# Moving average


def test_moving_average_by_hand() -> None:
    balancer = MovingAverage(2, window=2)
    both = torch.tensor([True, True])
    assert balancer(torch.tensor([1.0, 3.0]), None, both).tolist() == pytest.approx([4, 4 / 3])
    assert balancer(torch.tensor([3.0, 3.0]), None, both).tolist() == pytest.approx([5 / 2, 5 / 3])
    # The first step has left the window: averages (3 + 5) / 2 and (3 + 1) / 2.
    assert balancer(torch.tensor([5.0, 1.0]), None, both).tolist() == pytest.approx([6 / 4, 6 / 2])


@given(
    steps=st.lists(
        st.tuples(*[st.one_of(st.none(), st.floats(0.01, 100)) for _ in range(3)]), min_size=1, max_size=15
    ),
    window=st.integers(1, 6),
    intrinsic=st.booleans(),
)
@settings(deadline=None, max_examples=50)
def test_moving_average_equals_lists(
    steps: list[tuple[float | None, ...]], window: int, intrinsic: bool
) -> None:
    balancer = MovingAverage(3, window, intrinsic)
    histories: list[list[float]] = [[], [], []]
    for step in steps:
        losses = torch.tensor([math.nan if loss is None else loss for loss in step])
        weights = balancer(losses, None, ~losses.isnan())
        for history, loss in zip(histories, step, strict=True):
            history += [] if loss is None else [loss]
        averages = [
            sum(history[-window:]) / len(history[-window:]) if history else 0 for history in histories
        ]
        expected = [0 if loss is None else sum(averages) / averages[task] for task, loss in enumerate(step)]
        if intrinsic:  # their loss_balancer.py: weight *= cur_loss / avg_per_task
            expected = [
                0 if loss is None else weight * loss / averages[task]
                for task, (loss, weight) in enumerate(zip(step, expected, strict=True))
            ]
        assert weights.tolist() == pytest.approx(expected, rel=1e-4)


def test_moving_average_of_a_loss_of_zero_is_finite() -> None:
    weights = MovingAverage(2)(torch.tensor([0.0, 1.0]), None, torch.tensor([True, True]))
    assert weights.isfinite().all()
    with pytest.raises(ValueError, match="at least 1"):
        MovingAverage(2, window=0)


# Uncertainty


def test_uncertainty_comes_to_rest_at_the_log_of_the_loss() -> None:
    """d/ds (L / (2 e^s) + s / 2) = 0 at e^s = L, also for a task that is there only every other step."""
    balancer = Uncertainty(3)
    optimizer = torch.optim.SGD(balancer.parameters(), lr=0.3)
    for step in range(200):
        present = torch.tensor([True, True, step % 2 == 0])
        losses = torch.where(present, LOSSES, torch.nan)
        weights = balancer(losses, None, present)
        total = (weights * torch.where(present, losses, 0)).sum() + balancer.regulariser(present)
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
    torch.testing.assert_close(balancer.log_variance.detach(), LOSSES.log(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(balancer(LOSSES, None, ALL).detach(), 0.5 / LOSSES, atol=1e-4, rtol=1e-4)
    assert balancer.regulariser(ALL).item() == pytest.approx(0.5 * math.log(8), abs=1e-3)


# GradNorm


TWO = torch.tensor([True, True])
OPPOSED = torch.tensor([[3.0, 0.0], [-1.0, 0.0]])


def test_gradnorm_step_by_hand() -> None:
    """Norms 3 and 1, mean 2, ratios 1: the long gradient's weight falls, the short one's rises."""
    weights = GradNorm(2, alpha=1.5, rate=0.1)(torch.tensor([1.0, 1.0]), gram(OPPOSED), TWO)
    moved = torch.tensor([math.exp(-0.1 * 3 / 2), math.exp(0.1 * 1 / 2)])
    torch.testing.assert_close(weights, 2 * moved / moved.sum())
    assert weights[0] < 1 < weights[1]


def test_gradnorm_evens_out_norms_when_alpha_is_0() -> None:
    balancer = GradNorm(2, alpha=0.0, rate=0.01)
    for _ in range(300):
        weights = balancer(torch.tensor([1.0, 1.0]), gram(OPPOSED), TWO)
        assert weights.sum().item() == pytest.approx(2)
    torch.testing.assert_close(weights, torch.tensor([0.5, 1.5]), atol=0.02, rtol=0)


@pytest.mark.parametrize("separate", [False, True])
def test_gradnorm_gives_the_slow_learner_the_larger_gradient(separate: bool) -> None:
    """Equal norms; task 0 at 3/4 of its first loss, task 1 at 1/4: r = (1.5, 0.5), so w_0 : w_1 = 3^alpha."""
    balancer = GradNorm(2, alpha=1.0, rate=0.01)
    matrix = torch.tensor([[4.0, -1.0], [-1.0, 4.0]])
    balancer(torch.tensor([8.0, 4.0]), matrix, TWO)
    for step in range(600):
        present = torch.tensor([step % 2 == 0, step % 2 == 1]) if separate else TWO
        balancer(torch.where(present, torch.tensor([6.0, 1.0]), torch.nan), matrix, present)
    torch.testing.assert_close(balancer.weights, torch.tensor([1.5, 0.5]), atol=0.03, rtol=0)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_gradnorm_does_not_depend_on_the_scale_of_the_losses(scale: float) -> None:
    plain, scaled = GradNorm(3), GradNorm(3)
    for step in range(5):
        losses = LOSSES ** (1 - 0.2 * step)
        expected = plain(losses, gram(GRADIENTS), ALL)
        weights = scaled(losses * scale, gram(GRADIENTS * scale), ALL)
    torch.testing.assert_close(weights, expected, rtol=1e-4, atol=1e-5)


def test_gradnorm_without_gradients_or_losses_stays() -> None:
    assert GradNorm(3)(LOSSES, torch.zeros(3, 3), ALL).tolist() == [1, 1, 1]
    assert GradNorm(3)(torch.zeros(3), torch.ones(3, 3), ALL).tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="above 0"):
        GradNorm(3, rate=0.0)


# PCGrad


def projected(gradients: Tensor, orders: list[list[int]]) -> Tensor:
    """The paper's algorithm on the vectors themselves."""
    total = torch.zeros_like(gradients[0])
    for task, order in enumerate(orders):
        in_hand = gradients[task].clone()
        for other in order:
            dot = in_hand @ gradients[other]
            if other != task and dot < 0:
                in_hand -= dot / (gradients[other] @ gradients[other]) * gradients[other]
        total += in_hand
    return total


def test_pcgrad_by_hand() -> None:
    """g_0 = (2, 0), g_1 = (-1, 1): g_0 becomes (1, 1), g_1 becomes (0, 1); the sum is (1, 2)."""
    gradients = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
    weights = PCGrad()(torch.ones(2), gram(gradients), TWO)
    torch.testing.assert_close(weights @ gradients, torch.tensor([1.0, 2.0]))
    torch.testing.assert_close(weights, torch.tensor([1.5, 2.0]))


def test_pcgrad_of_straight_opposites_is_nothing() -> None:
    weights = PCGrad()(torch.ones(2), gram(OPPOSED), TWO)
    torch.testing.assert_close(weights @ OPPOSED, torch.zeros(2))


def test_pcgrad_without_conflict_is_the_sum() -> None:
    gradients = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    assert PCGrad()(LOSSES, gram(gradients), ALL).tolist() == [1, 1, 1]


@given(seed=st.integers(0, 10**6), tasks=st.integers(2, 6), width=st.integers(1, 8))
@settings(deadline=None, max_examples=60)
def test_pcgrad_equals_projection_of_vectors(seed: int, tasks: int, width: int) -> None:
    torch.manual_seed(seed)
    gradients = torch.randn(tasks, width, dtype=torch.float64)
    generator = torch.get_rng_state()
    orders = torch.rand(tasks, tasks).argsort(1).tolist()
    torch.set_rng_state(generator)
    weights = PCGrad()(
        torch.ones(tasks, dtype=torch.float64), gram(gradients), torch.ones(tasks, dtype=torch.bool)
    )
    torch.testing.assert_close(weights @ gradients, projected(gradients, orders))


def test_pcgrad_draws_every_order() -> None:
    """Three gradients, two orders per task: each sum that the vectors allow turns up, and none else."""
    gradients = torch.tensor([[1.0, 0.0, 0.3], [-0.8, 0.7, 0.1], [-0.4, -0.9, 0.2]], dtype=torch.float64)
    orders = [list(order) for order in itertools.permutations(range(3))]
    possible = {
        tuple(round(value, 6) for value in projected(gradients, list(choice)).tolist())
        for choice in itertools.product(orders, repeat=3)
    }
    torch.manual_seed(0)
    losses = torch.ones(3, dtype=torch.float64)
    drawn = {
        tuple(round(value, 6) for value in (PCGrad()(losses, gram(gradients), ALL) @ gradients).tolist())
        for _ in range(200)
    }
    assert len(possible) > 2
    assert drawn == possible


def test_pcgrad_leaves_out_the_absent() -> None:
    gradients = torch.tensor([[2.0, 0.0], [-5.0, -9.0], [-1.0, 1.0]])
    weights = PCGrad()(LOSSES, gram(gradients), torch.tensor([True, False, True]))
    torch.testing.assert_close(weights, torch.tensor([1.5, 0.0, 2.0]))


def test_pcgrad_ignores_a_gradient_of_zero() -> None:
    gradients = torch.tensor([[1.0, 0.0], [0.0, 0.0], [-1.0, 1.0]])
    weights = PCGrad()(LOSSES, gram(gradients), ALL)
    assert weights.isfinite().all()
    torch.testing.assert_close(weights @ gradients, torch.tensor([0.5, 1.5]))


def test_moving_average_weighs_by_the_inverse_of_each_tasks_scale() -> None:
    """Losses of any scales count alike: their weighted recent averages are equal."""
    scales = torch.tensor([0.02, 1.0, 30.0])
    balancer, everywhere = MovingAverage(3, window=4), torch.ones(3, dtype=torch.bool)
    recent = []
    for step in range(9):
        recent.append(scales * (1 + 0.1 * step))
        weights = balancer(recent[-1], None, everywhere)
    weighted = weights * torch.stack(recent[-4:]).mean(0)
    torch.testing.assert_close(weighted, weighted[:1].expand(3))


def test_inner_products_have_all_digits_where_training_runs_in_bfloat16() -> None:
    torch.manual_seed(0)
    encoder = nn.Linear(50, 30)
    outputs = encoder(torch.randn(6, 50)).tanh()
    losses = {task: (outputs @ torch.randn(30)).square().mean() for task in "abc"}
    exact = gram_matrix(losses, list("abc"), list(encoder.parameters()))
    with torch.autocast("cpu", torch.bfloat16):
        found = gram_matrix(losses, list("abc"), list(encoder.parameters()))
    torch.testing.assert_close(found, exact)


def test_kept_gradients_are_those_of_the_weighted_losses_of_all_batches() -> None:
    shared, own = nn.Parameter(torch.randn(2, 3)), nn.Parameter(torch.randn(4))
    batches = torch.randn(2, 2, 3)
    weights = {"pos": torch.tensor(0.5), "dep": torch.tensor(3.0)}

    def losses(batch: Tensor) -> dict[str, Tensor]:
        product = (shared * batch).sum()
        return {"pos": product**2, "dep": product * own.sum()}

    kept = KeptGradients([shared, own])
    for batch in batches:
        kept.add(losses(batch))
    found = torch.autograd.grad(kept.weighted(weights), [shared, own])
    total = torch.stack([weights[name] * loss for batch in batches for name, loss in losses(batch).items()])
    torch.testing.assert_close(found, torch.autograd.grad(total.sum(), [shared, own]))

"""W&B's distributions: each draws what W&B says it draws, and a bad description is said in one line."""

from __future__ import annotations

import math

import numpy as np
import optuna
import pytest
from scipy import stats

from mtl.errors import InputError
from mtl.sweep.distributions import FIELDS, parameters_from
from mtl.sweep.engine import _draw, sampler_for
from mtl.sweep.parameter import rounded
from tests.mtl.sweep.conftest import sweep_of

DRAWS = 400


def only(description):
    [parameter] = parameters_from({"seed": description})
    return parameter


def drawn(description, draws=DRAWS):
    """Values as a random sweep draws them, each with a sampler of its own."""
    parameter = only(description)
    sweep = sweep_of(method="random", parameters={"seed": description})
    study = optuna.create_study()
    values = []
    for number in range(draws):
        study.sampler = sampler_for(sweep, number)
        values.append(parameter.value(_draw(study.ask(), parameter)))
    return np.array(values)


@pytest.fixture(autouse=True)
def _quiet():
    optuna.logging.set_verbosity(optuna.logging.WARNING)


E = math.e
CONTINUOUS = {
    "uniform": ({"min": -1.0, "max": 3.0}, stats.uniform(-1, 4)),
    "log_uniform_values": ({"min": 1e-5, "max": 1e-1}, stats.loguniform(1e-5, 1e-1)),
    "log_uniform": ({"min": -3, "max": 1}, stats.loguniform(E**-3, E)),
    "inv_log_uniform_values": ({"min": 0.1, "max": 10.0}, stats.loguniform(0.1, 10)),
    # log(1/X) is uniform between min and max.
    "inv_log_uniform": ({"min": -3, "max": 1}, stats.loguniform(E**-1, E**3)),
    "normal": ({"mu": 2.0, "sigma": 0.5}, stats.norm(2, 0.5)),
    "log_normal": ({"mu": 1.0, "sigma": 0.5}, stats.lognorm(0.5, scale=E)),
    "beta": ({"a": 2.0, "b": 5.0}, stats.beta(2, 5)),
}


@pytest.mark.parametrize("kind", CONTINUOUS)
def test_draws_follow_the_distribution(kind):
    fields, of = CONTINUOUS[kind]
    assert stats.kstest(drawn({"distribution": kind, **fields}), of.cdf).pvalue > 0.01


@pytest.mark.parametrize("kind", [kind for kind in CONTINUOUS if f"q_{kind}" in FIELDS])
def test_rounded_kinds_draw_multiples_of_q(kind):
    fields, of = CONTINUOUS[kind]
    values = drawn({"distribution": f"q_{kind}", **fields, "q": 0.25})
    assert np.allclose(values / 0.25, np.round(values / 0.25))
    # The share of each multiple is the probability of what is rounded to it.
    multiple, count = np.unique(values, return_counts=True)
    expected = DRAWS * (of.cdf(multiple + 0.125) - of.cdf(multiple - 0.125))
    assert np.abs(count - expected).max() < 4 * math.sqrt(DRAWS) / 2


def test_a_whole_q_gives_whole_numbers():
    assert {
        type(each) for each in drawn({"distribution": "q_uniform", "min": 1, "max": 9, "q": 2}, 20).tolist()
    } == {int}
    assert rounded(0.30000000000000004, 0.1) == 0.3


def test_integers_include_both_ends():
    values, counts = np.unique(drawn({"min": 3, "max": 6}), return_counts=True)
    assert values.tolist() == [3, 4, 5, 6]
    assert stats.chisquare(counts).pvalue > 0.01


def test_probabilities_are_kept_and_zero_is_never_drawn():
    values = drawn({"values": ["a", "b", "c", "d"], "probabilities": [0.1, 0.6, 0.3, 0.0]})
    counts = [int((values == each).sum()) for each in "abcd"]
    assert counts[3] == 0
    assert stats.chisquare(counts[:3], DRAWS * np.array([0.1, 0.6, 0.3])).pvalue > 0.01


def test_listed_values_may_be_anything():
    parameter = only({"values": [["pos"], None, {"a": 1}, True]})
    assert [parameter.value(point) for point in parameter.points()] == [["pos"], None, {"a": 1}, True]


@pytest.mark.parametrize(
    ("ends", "kind"), [((0, 1.5), float), ((1.0, 10.0), float), ((1.0, 9), float), ((1, 9), int)]
)
def test_ends_decide_between_whole_numbers_and_others(ends, kind):
    """W&B: integers if both ends are, floats else."""
    description = dict(zip(("min", "max"), ends, strict=True))
    assert {type(each) for each in drawn(description, 20).tolist()} == {kind}
    # What is tried on the configuration has the type of what is drawn.
    assert {type(each) for each in only(description).examples()} == {kind}
    named = only({"distribution": "uniform", **description})
    assert {type(each) for each in named.examples()} == {float}


def test_points_of_a_grid():
    def values(description):
        parameter = only(description).on_grid()
        return parameter and [parameter.value(point) for point in parameter.points()]

    assert values({"value": 7}) == [7]
    assert values({"min": 1, "max": 3}) == [1, 2, 3]
    assert values({"distribution": "q_uniform", "min": 0.0, "max": 0.5, "q": 0.25}) == [0.0, 0.25, 0.5]
    # In steps of q from the lower end, also where that is no multiple of q; never beyond the ends.
    assert values({"distribution": "q_uniform", "min": 1, "max": 9, "q": 2}) == [1, 3, 5, 7, 9]
    assert values({"distribution": "q_uniform", "min": 0.1, "max": 0.45, "q": 0.1}) == [0.1, 0.2, 0.3, 0.4]
    # W&B's grid takes no probabilities: every value comes once.
    assert values({"values": [1, 2], "probabilities": [0.5, 0.5]}) is None
    assert values({"min": 0.1, "max": 0.2}) is None
    assert values({"distribution": "normal"}) is None


def test_nested_and_dotted_names_are_one():
    nested = {
        "gates": {"parameters": {"penalty": {"value": 1}, "lr": {"value": 2}}},
        "balancer.name": {"value": "u"},
    }
    assert [each.key for each in parameters_from(nested)] == ["gates.penalty", "gates.lr", "balancer.name"]


@pytest.mark.parametrize(
    ("description", "said"),
    [
        ({"distribution": "log_unifrom", "min": 1, "max": 2}, "did you mean 'log_uniform'?"),
        ({"valeus": [1]}, "unknown 'valeus': did you mean 'values'?"),
        ({"distribution": "uniform", "min": 1}, "parameters.seed: uniform needs max"),
        ({"distribution": "uniform", "min": 1, "max": 2, "q": 1}, "uniform has no q, only min, max"),
        ({"min": 2, "max": 1}, "min=2 is above max=1"),
        ({"distribution": "log_uniform_values", "min": "1e-5", "max": 1}, "write 1.0e-5"),
        ({"distribution": "log_uniform_values", "min": 0, "max": 1}, "has no logarithm"),
        ({"min": True, "max": 2.0}, "'True' is no number"),
        ({"distribution": "int_uniform", "min": 1.5, "max": 2}, "whole numbers"),
        ({"values": []}, "at least one value"),
        ({"values": [1, 2, 1]}, "1 stands there twice"),
        ({"values": [1, 2], "probabilities": [0.5, 0.6]}, "sum to 1"),
        ({"values": [1, 2], "probabilities": [1.0]}, "as many numbers as values (2)"),
        ({"distribution": "normal", "sigma": 0}, "sigma above 0"),
        ({"distribution": "q_normal", "q": 0}, "above 0"),
        ({"min": 1, "max": 1}, "min=1 is not below max=1"),  # as W&B says
        ({"values": [1], "distribution": ["categorical"]}, "unknown distribution"),
        ({"distribution": "log_uniform", "min": 1, "max": 1000}, "write distribution: log_uniform_values"),
        ({"distribution": "q_log_uniform", "min": -1000, "max": 1}, "q_log_uniform_values"),
        ({"distribution": "inv_log_uniform", "min": -1000, "max": 1}, "inv_log_uniform_values"),
        ({"distribution": "log_normal", "mu": 1000}, "beyond what numbers can hold"),
        ({"distribution": "beta", "a": 0}, "a and b above 0"),
        ({"min": 0, "max": math.inf}, "'inf' is no number"),
        ({"values": {"a": 1}}, "at least one value"),
        ({"values": [1, 2], "probabilities": "half"}, "sum to 1"),
        ({}, "give value, values"),
        (3, "give value, values"),
    ],
)
def test_bad_descriptions_are_said(description, said):
    with pytest.raises(InputError) as raised:
        only(description)
    assert said in str(raised.value)
    assert "seed" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_tpe_finds_a_planted_optimum_sooner_than_random():
    """A quadratic in three parameters with its minimum at 1e-3, 0.3 and 0.6; 12 pairs of 40 trials."""
    share = {"min": 0.0, "max": 1.0}
    lr = {"distribution": "log_uniform_values", "min": 1e-6, "max": 1.0}
    space = {"lr": lr, "dropout": share, "warmup": share}

    def regret(method, name):
        sweep = sweep_of(name, method=method, parameters=space)
        study = optuna.create_study()
        for number in range(40):
            study.sampler = sampler_for(sweep, number)
            trial = study.ask()
            lr, dropout, warmup = (each.value(_draw(trial, each)) for each in sweep.parameters)
            planted = ((math.log10(lr) + 3) / 3) ** 2 + 4 * (dropout - 0.3) ** 2 + 4 * (warmup - 0.6) ** 2
            study.tell(trial, planted)
        return study.best_value

    pairs = [(regret("bayes", f"s{number}"), regret("random", f"s{number}")) for number in range(12)]
    wins = sum(bayes < random for bayes, random in pairs)
    # Sign test: so many wins of 12 by chance alone; 12 were measured.
    assert stats.binomtest(wins, 12, alternative="greater").pvalue < 0.05, pairs

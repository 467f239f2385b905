"""Parameters draw from their distributions; bad ones, and those of W&B alone, are refused in one line."""

from __future__ import annotations

import math

import numpy as np
import optuna
import pytest
from scipy import stats

from mtl.errors import InputError
from mtl.sweep.file import SERVER_ONLY, parameters_from
from mtl.sweep.folder import sampler_for
from tests.mtl.sweep.conftest import sweep_of

DRAWS = 400


def only(description):
    [parameter] = parameters_from({"seed": description})
    return parameter


def drawn(description, draws=DRAWS):
    """Values as a random sweep draws them, each with its own sampler."""
    parameter = only(description)
    sweep = sweep_of(method="random", parameters={"seed": description})
    study = optuna.create_study()
    values = []
    for number in range(draws):
        study.sampler = sampler_for(sweep, number)
        values.append(parameter.draw(study.ask()))
    return np.array(values)


@pytest.fixture(autouse=True)
def _quiet():
    optuna.logging.set_verbosity(optuna.logging.WARNING)


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        ({"min": -1.0, "max": 3.0}, stats.uniform(-1, 4)),
        ({"distribution": "log_uniform_values", "min": 1e-5, "max": 1e-1}, stats.loguniform(1e-5, 1e-1)),
    ],
)
def test_draws_follow_the_distribution(description, expected):
    assert stats.kstest(drawn(description), expected.cdf).pvalue > 0.01


def test_integers_include_both_ends():
    values, counts = np.unique(drawn({"min": 3, "max": 6}), return_counts=True)
    assert values.tolist() == [3, 4, 5, 6]
    assert stats.chisquare(counts).pvalue > 0.01


def test_listed_values_may_be_anything():
    parameter = only({"values": [["pos"], None, {"a": 1}, True, 1]})
    assert [parameter.at(position) for position in range(parameter.size)] == [
        ["pos"],
        None,
        {"a": 1},
        True,
        1,
    ]


@pytest.mark.parametrize(
    ("ends", "kind"), [((0, 1.5), float), ((1.0, 10.0), float), ((1.0, 9), float), ((1, 9), int)]
)
def test_ends_decide_between_whole_numbers_and_others(ends, kind):
    """As in W&B: integers if both ends are integers, otherwise floats."""
    description = dict(zip(("min", "max"), ends, strict=True))
    assert {type(value) for value in drawn(description, 20).tolist()} == {kind}
    # What is tried on the configuration has the type of what is drawn.
    assert {type(value) for value in only(description).examples} == {kind}
    named = only({"distribution": "uniform", **description})
    assert {type(value) for value in named.examples} == {float}


def test_points_of_a_grid():
    def values(description):
        parameter = only(description)
        return parameter.size and [parameter.at(position) for position in range(parameter.size)]

    assert values({"value": 7}) == [7]
    assert values({"min": 1, "max": 3}) == [1, 2, 3]
    assert values({"values": ["a", "b"]}) == ["a", "b"]
    assert values({"min": 0.1, "max": 0.2}) is None


def test_nested_and_dotted_names_are_one():
    nested = {
        "gates": {"parameters": {"penalty": {"value": 1}, "lr": {"value": 2}}},
        "balancer.name": {"value": "u"},
    }
    assert [parameter.key for parameter in parameters_from(nested)] == [
        "gates.penalty",
        "gates.lr",
        "balancer.name",
    ]


@pytest.mark.parametrize("kind", SERVER_ONLY)
def test_distributions_that_only_the_server_draws_from_are_refused_locally_in_one_line(kind):
    values = {"values": [1, 2], "probabilities": [0.5, 0.5], "min": 1, "max": 2}
    description = {"distribution": kind} | {name: values[name] for name in SERVER_ONLY[kind][0]}
    sweep = sweep_of(method="random", parameters={"seed": description})
    with pytest.raises(InputError) as raised:
        sweep.check_local()
    assert f"parameters: seed: distribution {kind} runs only with W&B's server" in str(raised.value)
    assert "log_uniform_values" in str(raised.value)
    assert "\n" not in str(raised.value)
    # The server gets them as they are given.
    assert sweep.given["parameters"]["seed"]["distribution"] == kind


def test_probabilities_and_rounding_in_a_grid_are_the_servers_too():
    for description in (
        {"values": [1, 2], "probabilities": [0.5, 0.5]},
        {"distribution": "q_uniform", "min": 0, "max": 1, "q": 0.5},
    ):
        sweep = sweep_of(method="grid", parameters={"seed": description})
        assert sweep.points() is None
        with pytest.raises(InputError, match="only with W&B's server"):
            sweep.check_local()


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"distribution": "log_unifrom", "min": 1, "max": 2}, "did you mean 'log_uniform'?"),
        ({"valeus": [1]}, "unknown 'valeus': did you mean 'values'?"),
        (
            {"distribution": "uniform", "min": 1},
            "parameters: seed: uniform needs min and max, and nothing else",
        ),
        (
            {"distribution": "uniform", "min": 1, "max": 2, "q": 1},
            "uniform needs min and max, and nothing else",
        ),
        ({"min": 2, "max": 1}, "min=2 is above max=1"),
        ({"distribution": "q_uniform", "max": 1}, "q_uniform needs min and max, and may have q"),
        ({"distribution": "q_uniform", "min": 0, "max": 1, "q": 0}, "q=0: use a number above 0"),
        ({"distribution": "normal", "mu": 0, "min": 1}, "normal needs nothing, and may have mu and sigma"),
        ({"distribution": "log_uniform", "min": 1, "max": 1}, "min=1 is not below max=1"),
        ({"distribution": "q_log_uniform_values", "min": 0, "max": 1}, "has no logarithm"),
        ({"values": [1, 2], "probabilities": [0.5]}, "use one for each of the 2 values"),
        ({"values": [1, 2], "probabilities": [0.5, 0.6]}, "sum to 1"),
        ({"distribution": "log_uniform_values", "min": "1e-5", "max": 1}, "'1e-5' is not a number"),
        ({"distribution": "log_uniform_values", "min": 0, "max": 1}, "has no logarithm"),
        ({"min": True, "max": 2.0}, "'true' is not a number"),
        ({"distribution": "int_uniform", "min": 1.5, "max": 2}, "whole numbers"),
        ({"values": []}, "at least one value"),
        ({"values": [1, 2, 1]}, "1 is given twice"),
        ({"min": 1, "max": 1}, "min=1 is not below max=1"),  # as W&B says
        ({"values": [1], "distribution": ["categorical"]}, "unknown distribution"),
        ({"min": 0, "max": math.inf}, "'Infinity' is not a number"),
        ({"values": {"a": 1}}, "at least one value"),
        ({}, "use value, values"),
        (3, "use value, values"),
    ],
)
def test_bad_descriptions_are_reported(description, message):
    with pytest.raises(InputError) as raised:
        only(description)
    assert message in str(raised.value)
    assert "seed" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.slow
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
            lr, dropout, warmup = (parameter.draw(trial) for parameter in sweep.parameters)
            planted = ((math.log10(lr) + 3) / 3) ** 2 + 4 * (dropout - 0.3) ** 2 + 4 * (warmup - 0.6) ** 2
            study.tell(trial, planted)
        return study.best_value

    pairs = [(regret("bayes", f"s{number}"), regret("random", f"s{number}")) for number in range(12)]
    wins = sum(bayes < random for bayes, random in pairs)
    # Sign test against equal chances; 12 wins were measured.
    assert stats.binomtest(wins, 12, alternative="greater").pvalue < 0.05, pairs


@pytest.mark.parametrize(
    ("ends", "kind"),
    [((0, 1.5), "uniform"), ((0.0, 1.0), "uniform"), ((0, 1), "int_uniform"), ((-1.5, 2), "uniform")],
)
def test_the_distribution_of_a_range_is_written_out_for_the_server(ends, kind):
    low, high = ends
    nested = {"gates": {"parameters": {"lr": {"min": low, "max": high}}}, "seed": {"values": [1]}}
    sent = sweep_of(method="random", parameters=nested).given["parameters"]
    assert sent["gates"]["parameters"]["lr"] == {"distribution": kind, "min": low, "max": high}
    assert sent["seed"] == {"values": [1]}
    unnamed = {"seed": {"min": low, "max": high, "distribution": None}}
    sent_alone = sweep_of(method="random", parameters=unnamed).given["parameters"]
    assert sent_alone["seed"] == {"distribution": kind, "min": low, "max": high}
    again = sweep_of(method="random", parameters=sent)  # as a sweep's folder keeps it
    assert again.given["parameters"] == sent


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("controller", {"type": "local"}, "controller: W&B's server chooses the trials"),
        ("job", "x", "job is a key of W&B Launch"),
        ("imageuri", "x", "imageuri is a key of W&B Launch"),
    ],
)
def test_keys_of_wandb_that_mtl_does_not_use_are_refused_by_name(key, value, message):
    with pytest.raises(InputError, match=message):
        sweep_of(**{key: value})
    assert sweep_of(controller={"type": "cloud"}).only_on_the_server() == ["controller"]

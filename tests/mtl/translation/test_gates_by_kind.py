"""Gates by kind of attention, of which only models that translate have several: what a run may be given."""

from __future__ import annotations

import dataclasses

import pytest

from mtl.config.schema import GatesConfig, TrainConfig
from mtl.errors import InputError
from mtl.training.check import check_settings
from mtl.translation.config import Seq2SeqConfig

SCRATCH = Seq2SeqConfig("marian", layers=3, decoder_layers=2, heads=4)
TWO = ("encoder", "cross")


def translating(**gates) -> TrainConfig:
    return TrainConfig(tasks=("translate",), seq2seq=SCRATCH, pruning="dynamic", gates=GatesConfig(**gates))


@pytest.mark.parametrize(
    "gates",
    [
        {"target_open": {"encoder": 12.0, "decoder": 0.5, "cross": 8.0}},
        {"target_open": {"encoder": 3.0}, "kinds": ("encoder",)},
        {"target_open": {"encoder": 3.0}, "kinds": ("encoder",), "penalty": 0.1},  # as of one target for all
        {"penalty": {"cross": 0.5, "encoder": 0.0}, "kinds": TWO},
        {"target_open": {"cross": 2.0}, "penalty": {"encoder": 0.1}, "kinds": TWO},
        {"target_open": 28.0},
    ],
)
def test_one_for_each_kind_with_gates(gates):
    check_settings(translating(**gates))


@pytest.mark.parametrize(
    ("gates", "message"),
    [
        (
            {"target_open": {"self": 3.0}},
            "gates.target_open.self=3: the model has no attention of kind self: it has encoder, decoder",
        ),
        (
            {"target_open": {"encoder": 3.0, "decoder": 2.0}, "kinds": ("encoder",)},
            "gates.target_open.decoder=2: gates.kinds=encoder gives heads of kind decoder no gates: leave "
            "one of them out",
        ),
        (
            {"target_open": {"encoder": 3.0}},
            "gates.target_open: nothing is given for decoder, cross: set a target or a penalty for each "
            "kind, or use gates.kinds=encoder",
        ),
        (
            {"penalty": {"encoder": 0.1}, "target_open": {"cross": 2.0}},
            "gates.target_open and gates.penalty: nothing is given for decoder: set a target or a penalty "
            "for each kind, or use gates.kinds=cross,encoder",
        ),
        (
            {"penalty": {"encoder": 0.1, "cross": 0.1}, "target_open": {"cross": 2.0}, "kinds": TWO},
            "gates.target_open.cross=2 and gates.penalty.cross=0.1: give a kind of attention one of the two",
        ),
        (
            {"penalty": {"encoder": 0.1, "cross": 0.1}, "target_open": 9.0, "kinds": TWO},
            "gates.target_open=9 is for all kinds of attention, but gates.penalty is given by kind",
        ),
        (
            {"target_open": {}},
            "gates.target_open is empty: use a number for each of encoder, decoder, cross",
        ),
        (
            {"target_open": {"encoder": 2.5}, "kinds": ("encoder",)},
            "gates.target_open.encoder=2.5: use a share of the heads, at most 1, or a whole number of heads",
        ),
        (
            {"target_open": {"encoder": -1.0}, "kinds": ("encoder",)},
            "gates.target_open.encoder=-1.0: use a number above 0",
        ),
        ({"penalty": {"encoder": -1.0}, "kinds": ("encoder",)}, "gates.penalty.encoder=-1.0: use a number"),
        (
            {"target_open": {"encoder": 3.0, "decoder": 9.0, "cross": 3.0}},
            "gates.target_open.decoder=9: target 9: there are only 8 heads",
        ),
        ({"target_open": {"encoder": 0.01}, "kinds": ("encoder",)}, "less than one of 12 heads"),
        ({"target_open": 21.0, "kinds": TWO}, "gates.target_open=21: target 21: there are only 20 heads"),
        (
            {"target_open": {"encoder": 6.0, "decoder": 3.0, "cross": 4.0}, "at_least": 2},
            "gates.at_least=2 (decoder): 2 layers would keep 4 heads, and the target is 3: use a",
        ),
        (
            {"target_open": 20.0, "at_least": 5, "kinds": TWO},
            "gates.at_least=5: no layer has more than 4 heads",
        ),
        ({"kinds": ("encoder", "self")}, "gates.kinds=encoder,self: the model has no attention of kind self"),
    ],
)
def test_what_cannot_be_is_one_line(gates, message):
    with pytest.raises(InputError) as error:
        check_settings(translating(**gates))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_settings_of_gates_do_not_count_in_runs_without_masks():
    config = dataclasses.replace(translating(target_open={"self": 3.0}), pruning="none")
    check_settings(config)


def test_sizes_are_in_their_ranges():
    config = TrainConfig(tasks=("translate",), seq2seq=Seq2SeqConfig("mbart", heads=0))
    with pytest.raises(InputError, match=r"seq2seq\.heads=0: "):
        check_settings(config)

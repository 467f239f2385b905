"""Targets and penalties by kind of attention that cannot be are refused before anything is read."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console
from transformers import T5Config

from mtl.config.schema import (
    CorpusConfig,
    EncoderConfig,
    GatesConfig,
    Seq2SeqConfig,
    TrainConfig,
    TrainerConfig,
)
from mtl.errors import InputError
from mtl.heads.families import heads_by_kind
from mtl.training.check import check_settings
from mtl.training.check_gates import check_target, unused_gates
from mtl.training.train import train

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
        ({"kinds": ("encoder", "self")}, "gates.kinds=encoder,self: the model has no attention of kind self"),
    ],
)
def test_what_cannot_be_is_one_line(gates, message):
    with pytest.raises(InputError) as error:
        check_settings(translating(**gates))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_an_encoder_has_one_kind(tiny_encoder):
    encoder = dataclasses.replace(TrainConfig().encoder, name=str(tiny_encoder))
    config = TrainConfig(tasks=("pos",), pruning="dynamic", encoder=encoder)
    with pytest.raises(InputError, match=r"gates\.target_open\.cross=2: the model has no .* it has self"):
        check_settings(dataclasses.replace(config, gates=GatesConfig(target_open={"cross": 2.0})))
    many = dataclasses.replace(config, gates=GatesConfig(target_open={"self": 1000.0}))
    check_settings(many)  # the encoder's configuration is not read yet
    with pytest.raises(InputError, match=r"gates\.target_open\.self=1000: .* there are only 12 heads"):
        check_target(many)


def test_heads_are_counted_by_kind():
    config = T5Config(num_layers=3, num_decoder_layers=2, num_heads=4)
    assert heads_by_kind(config) == {"encoder": 12, "decoder": 8, "cross": 8}


def test_settings_of_gates_do_not_count_in_runs_without_masks():
    config = dataclasses.replace(translating(target_open={"self": 3.0}), pruning="none")
    check_settings(config)


@pytest.mark.parametrize(
    ("pruning", "gates", "named"),
    [
        ("none", GatesConfig(target_open=0.3, penalty=0.1), "gates.penalty, gates.target_open"),
        ("none", GatesConfig(masks="gates.parquet"), "gates.masks"),
        ("fixed", GatesConfig(masks="gates.parquet", scope="per_task", penalty=0.1), "gates.penalty"),
        ("fixed", GatesConfig(masks="gates.parquet", scope="per_task"), None),
        ("none", GatesConfig(), None),
        ("dynamic", GatesConfig(target_open=0.3), None),
        ("static", GatesConfig(penalty=0.1), None),
    ],
)
def test_settings_of_gates_that_a_run_does_not_use_are_named(pruning, gates, named):
    message = unused_gates(TrainConfig(pruning=pruning, gates=gates))
    expected = f"without effect with pruning={pruning}, which learns no mask: {named}"
    assert message == (None if named is None else expected)


def test_a_training_prints_the_settings_that_it_does_not_use(toy, tiny_encoder, tmp_path):
    console = Console(file=io.StringIO(), width=200)
    config = TrainConfig(
        name="run", runs=str(tmp_path), corpus=CorpusConfig(str(toy)), tasks=("pos",), max_epochs=1,
        encoder=EncoderConfig(str(tiny_encoder)), gates=GatesConfig(target_open=0.3),
        trainer=TrainerConfig(accelerator="cpu"),
    )  # fmt: skip
    train(config, console=console)
    assert "no mask: gates.target_open" in console.file.getvalue()

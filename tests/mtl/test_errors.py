"""Names for files, the nearest known name, and numbers with their nouns."""

from __future__ import annotations

import pytest

from mtl.commands.command_table import COMMANDS
from mtl.config.keys import known_keys_of
from mtl.config.schema import TASK_NAMES, TrainConfig
from mtl.errors import LONGEST_NAME, InputError, did_you_mean, plain_name
from mtl.tasks.in_words import counted

KEYS = known_keys_of(TrainConfig)


@pytest.mark.parametrize("name", ["x", "pos-seed1", "MTL 5 (λ=0.01)", "a.b", "x" * LONGEST_NAME])
def test_a_plain_name_is_returned(name):
    assert plain_name(name, "--name") == name


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("", "is empty"),
        (" ", "is empty"),
        ("../../evil", "separator"),
        ("/abs", "separator"),
        ("lr/2", "separator"),
        ("a\\b", "separator"),
        ("..", "dot"),
        (".", "dot"),
        (".hidden", "dot"),
        ("a\nb", "do not print"),
        ("a\x1b[31m", "do not print"),
        ("\ud800", "do not print"),
        ("x ", "spaces"),
        ("x" * (LONGEST_NAME + 1), "longer"),
        ("é" * LONGEST_NAME, "longer"),
    ],
)
def test_other_names_are_refused_in_one_line(name, fault):
    with pytest.raises(InputError, match=fault) as error:
        plain_name(name, "--name")
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("--name=")


def test_the_nearest_name_is_named_or_all_are():
    assert did_you_mean("wrmup", ["warmup", "clip"]) == ": did you mean 'warmup'?"
    assert did_you_mean("zzz", ["warmup", "clip"]) == "; known are warmup, clip"
    assert did_you_mean("zzz", ["warmup"], "; see --help") == "; see --help"


@pytest.mark.parametrize(
    ("name", "choices", "meant"),
    [
        ("tran", COMMANDS, "train"),
        ("porbe", COMMANDS, "probe"),
        ("evalute", COMMANDS, "evaluate"),
        ("importence", COMMANDS, "importance"),
        ("data conver", COMMANDS, "data convert"),
        ("max_epoch", KEYS, "max_epochs"),
        ("optimizer.encoder_rl", KEYS, "optimizer.encoder_lr"),
        ("encoder_lr", KEYS, "optimizer.encoder_lr"),
        ("target_open", KEYS, "gates.target_open"),
        ("gates.penalti", KEYS, "gates.penalty"),
        ("sedd", KEYS, "seed"),
        ("optimizer.enc_lr", KEYS, "optimizer.encoder_lr"),
        ("optimizer.lr", KEYS, "optimizer.encoder_lr' or 'optimizer.decoder_lr"),
        ("optimizer.lr", ["optimizer", "optimizer.clip"], None),
        ("optimizer.x", KEYS, None),
        ("POS", TASK_NAMES, "pos"),
        ("nre", TASK_NAMES, "ner"),
        ("depp", TASK_NAMES, "dep"),
        ("help", COMMANDS, None),
        ("docter", COMMANDS, "doctor"),
        ("config", COMMANDS, None),
        ("inti", COMMANDS, "init"),
        ("new", COMMANDS, None),
        ("lr", KEYS, None),
        ("quiet", KEYS, None),
        ("print_config", KEYS, None),
        ("parser", TASK_NAMES, None),
        ("x", TASK_NAMES, None),
    ],
)
def test_a_name_is_suggested_for_a_misspelling_and_for_nothing_else(name, choices, meant):
    assert did_you_mean(name, choices, "") == ("" if meant is None else f": did you mean '{meant}'?")


def test_one_has_the_singular():
    assert [counted(number, "run") for number in (0, 1, 2, 1200)] == [
        "0 runs",
        "1 run",
        "2 runs",
        "1,200 runs",
    ]

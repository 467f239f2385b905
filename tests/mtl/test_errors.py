"""Names that can be a file's, the nearest known name, and numbers with their nouns."""

from __future__ import annotations

import pytest

from mtl.errors import LONGEST_NAME, InputError, counted, did_you_mean, plain_name


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


def test_one_has_the_singular():
    assert [counted(number, "run") for number in (0, 1, 2, 1200)] == [
        "0 runs",
        "1 run",
        "2 runs",
        "1,200 runs",
    ]

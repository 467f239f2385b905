"""The fingerprint of the code: what it is made of, and what makes a difference."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from mtl.runs.code_fingerprint import PROBING, ROOTS, TRAINING, _meaning, code_fingerprint, modules_of


def meaning(text: str) -> str:
    return _meaning(ast.parse(text))


def test_comments_docstrings_and_layout_make_no_difference():
    plain = "def f(x):\n    return x + 1\n"
    assert meaning(plain) == meaning(
        '"""Module."""\n# why\ndef f(x):\n    """What."""\n\n    return (x\n      + 1)\n'
    )
    assert meaning("class A:\n    pass\n") == meaning('class A:\n    """An A."""\n')


@pytest.mark.parametrize("other", ["def f(x):\n    return x + 2\n", "def g(x):\n    return x + 1\n"])
def test_what_runs_makes_a_difference(other):
    assert meaning("def f(x):\n    return x + 1\n") != meaning(other)


def test_a_text_that_is_no_docstring_counts():
    assert meaning("x = 'a'\n") != meaning("x = 'b'\n")


@pytest.mark.parametrize("entry", [TRAINING, PROBING])
def test_every_module_that_is_loaded_is_in_the_fingerprint(entry):
    code = f"import sys, {entry}; print(*[name for name in sys.modules if name.split('.')[0] in {ROOTS}])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    packages = {"mtl.corpora", "tasks", "probes.figures"}  # empty but for a docstring
    assert set(loaded.split()) - packages <= set(modules_of(entry))


def test_drawing_and_reporting_are_no_part_of_training():
    assert not {
        "mtl.runs.gather",
        "mtl.runs.figures",
        "probes.statistics.competition",
        "mtl.study.plan",
    } & set(modules_of(TRAINING))
    assert code_fingerprint(TRAINING) != code_fingerprint(PROBING)

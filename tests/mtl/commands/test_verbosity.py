"""`--quiet` and `--verbose`."""

from __future__ import annotations

import itertools
import logging

import pytest
from rich.console import Console

from mtl.commands.common import sentence_progress
from mtl.commands.main import main


@pytest.fixture(autouse=True)
def restored():
    """After every command, the level is the same as before."""
    before = logging.getLogger().level
    yield
    assert logging.getLogger().level == before


@pytest.fixture
def corpus(tmp_path):
    assert main(["data", "toy", "--out", str(tmp_path / "toy"), "--train=3", "--dev=2", "--test=2"]) == 0
    return tmp_path / "toy"


def test_a_quiet_command_prints_its_answer_only(corpus, tmp_path, capsys):
    capsys.readouterr()
    assert main(["data", "toy", "--quiet", "--out", str(tmp_path / "b"), "--train=3"]) == 0
    assert (tmp_path / "b" / "train.jsonl").exists()
    assert capsys.readouterr().out == ""
    assert main(["--quiet", "data", "stats", str(corpus)]) == 0
    assert "sentences" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["train", "--print_config", "--quiet"])
    assert "tasks:" in capsys.readouterr().out


def test_quiet_errors_are_the_usual_line(tmp_path, capsys):
    assert main(["data", "stats", str(tmp_path / "none"), "--quiet"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1


def test_progress_is_shown_on_a_terminal_unless_quiet(capsys, monkeypatch):
    for level, terminal in itertools.product((logging.WARNING, logging.ERROR), (True, False)):
        root = logging.getLogger()
        before = root.level
        root.setLevel(level)
        monkeypatch.setattr(Console, "is_terminal", terminal)
        with sentence_progress(2) as advance:
            advance(2)
        root.setLevel(before)
        out, err = capsys.readouterr()
        assert (out, "sentences" in err) == ("", terminal and level == logging.WARNING)


def test_verbose_says_where_an_error_arises_and_what_the_command_took(corpus, capsys):
    assert main(["data", "stats", f"{corpus}x", "--verbose"]) == 2
    *trace, took, line = capsys.readouterr().err.splitlines()
    assert trace[0].startswith("Traceback")
    assert took.startswith("mtl: ")
    assert took.endswith(" MB at most")
    assert line.startswith(f"mtl: {corpus}x")


def test_both_exclude_each_other(capsys):
    assert main(["doctor", "--quiet", "--verbose"]) == 2
    assert "exclude each other" in capsys.readouterr().err

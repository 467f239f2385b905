"""`--quiet` and `--verbose`."""

from __future__ import annotations

import itertools
import logging
from contextlib import contextmanager
from functools import partial

import pytest
from rich.console import Console

from mtl.commands.common import progress_bar, sentence_progress
from mtl.commands.main import main
from tests.mtl.commands.runs_for_commands import made_run


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


def test_elsewhere_it_is_a_line_every_thirty_seconds(capsys, monkeypatch):
    now = 100.0
    monkeypatch.setattr("mtl.commands.common.monotonic", lambda: now)
    with sentence_progress(2_000) as advance:
        for _ in range(100):
            now += 1.0
            advance(20)
    for work, total in ((29, 2_000), (90, None)):  # short work; an unknown number
        with progress_bar("lines", total) as advance:
            now += work
            advance(20)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "sentences: 600 of 2,000 done, about 1:10 remaining",
        "sentences: 1,200 of 2,000 done, about 0:40 remaining",
        "sentences: 1,800 of 2,000 done, about 0:10 remaining",
    ]


@pytest.mark.slow
def test_long_commands_say_how_much_of_what_is_done(tiny_encoder, tmp_path, monkeypatch):
    run = made_run(tiny_encoder, tmp_path / "toy", tmp_path / "run")
    (tmp_path / "text").write_text("We ate in Paris.\n\nA last line, not ended", encoding="utf-8")
    shown = []

    @contextmanager
    def noted(what, total):
        parts = []
        yield parts.append
        shown.append((what, total, sum(parts)))

    monkeypatch.setattr("mtl.commands.common.progress_bar", noted)
    for module in ("common", "evaluate"):
        monkeypatch.setattr(f"mtl.commands.{module}.sentence_progress", partial(noted, "sentences"))
    for command, due in {
        f"probe {run}": [6],
        f"ablate {run} --draws=100": [6],
        f"importance {run}": [6],
        f"relevance {run}": [6],
        f"evaluate {run} --split=dev --export={tmp_path / 'scored'}": [6, 6],
        f"predict {run} {tmp_path / 'text'}": [3],
    }.items():
        assert main(command.split()) == 0
        what = "lines" if command.startswith("predict") else "sentences"
        assert shown == [(what, total, total) for total in due], command
        shown.clear()


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

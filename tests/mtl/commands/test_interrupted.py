"""A stopped command says in one line what it has left, and the same command can then be run again."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
from pathlib import Path

import pytest

from mtl.commands.command_table import COMMANDS
from mtl.commands.main import main
from mtl.workers.lease import Holder
from mtl.workers.queue import stopping
from tests.kit.absent import may_be_absent
from tests.mtl.commands.runs_for_commands import made_run

ME = Holder.me()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_signal_ends_every_command_with_one_line(name, monkeypatch, capsys):
    for number in (*stopping(), signal.SIGHUP):
        monkeypatch.setattr("mtl.commands.main._run", lambda *_, number=number: os.kill(os.getpid(), number))
        before = signal.getsignal(number)
        assert main([*name.split(), "x"]) == 130, number
        errors = capsys.readouterr().err
        assert errors.startswith("mtl: interrupted; "), number
        assert errors.count("\n") == 1, number
        assert signal.getsignal(number) == before, number


def test_a_terminal_that_is_closed_ends_no_command_that_nohup_started(monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    monkeypatch.setattr("mtl.commands.main._run", lambda *_: os.kill(os.getpid(), signal.SIGHUP) or 0)
    try:
        assert main(["train", "x"]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


class Killed(BaseException):
    """Ends a command without its clean-up, as SIGKILL does."""


def killed_at(write: int, words: list[str], monkeypatch) -> bool:
    """Whether a process with this command, to be killed at its file of that number, reached that file."""
    writes = 0

    def dies(function, *arguments, counts=True, **options):
        nonlocal writes
        writes += counts
        if counts and writes == write:
            raise Killed
        return None if writes >= write else function(*arguments, **options)

    with monkeypatch.context() as patch:
        for owner, name in ((Path, "replace"), (Path, "rename"), (Path, "unlink"), (shutil, "rmtree")):
            counts = name.startswith("re")
            real = getattr(owner, name)
            patch.setattr(
                owner, name, lambda *a, real=real, counts=counts, **o: dies(real, *a, counts=counts, **o)
            )
        patch.setattr("mtl.workers.lease.Holder.me", lambda: dataclasses.replace(ME, started="before"))
        try:
            main(words)
        except Killed:
            return True
    return False


@pytest.fixture(scope="module")
def run(tiny_encoder, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    return made_run(tiny_encoder, folder / "corpus", folder / "run")


SLOW = pytest.mark.slow
RUN = ["RUN", "--accelerator=cpu"]
COMMAND_LINES = [
    ["data", "toy", "--train=2", "--dev=2", "--test=2", "--out=new"],
    pytest.param(["prune", *RUN, "--heads=L0H1", "--out=new"], marks=SLOW),
    ["prune", "ENCODER", "--heads=L0H1", "--out=new"],
    pytest.param(
        ["collaborate", *RUN, "--dim=8", "--steps=1", "--lengths=4", "--rounds=1", "--out=new"], marks=SLOW
    ),
    pytest.param(["importance", *RUN, "--out=x.parquet"], marks=SLOW),
    pytest.param(["evaluate", *RUN, "--json_out=new/x.json", "--export=new/export"], marks=SLOW),
]


if may_be_absent(["collaborate"]):
    COMMAND_LINES = [line for line in COMMAND_LINES if "collaborate" not in str(line)]


@pytest.mark.parametrize("line", COMMAND_LINES, ids=lambda line: " ".join(line[:2]))
def test_after_a_kill_at_any_write_the_same_command_begins_again(
    line, tiny_encoder, tmp_path, monkeypatch, request
):
    run = request.getfixturevalue("run") if "RUN" in line else None
    words = [{"RUN": str(run), "ENCODER": str(tiny_encoder)}.get(word, word) for word in line]

    def made(place: Path) -> list[Path]:
        assert main(words) == 0, place.name
        return sorted(path.relative_to(place) for path in place.rglob("*"))

    for write in range(100):
        place = tmp_path / str(write)
        place.mkdir()
        monkeypatch.chdir(place)
        if write == 0:
            expected = made(place)
        elif killed_at(write, words, monkeypatch):
            assert made(place) == expected
        else:
            break
    assert write > 1

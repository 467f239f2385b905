"""A file of another run in a run folder: every command says so in one line, or it makes no difference."""

from __future__ import annotations

import dataclasses
import io
import re
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache, partial
from pathlib import Path
from unittest.mock import patch

import polars as pl
import pytest
import torch

from mtl.commands.main import main
from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.files import write_text
from mtl.runs.folder import run_tables
from mtl.runs.folder.run import Run
from tests.kit.absent import may_be_absent
from tests.mtl import tiny
from tests.mtl.commands.runs_for_commands import TRAINING, made_run
from tests.mtl.commands.test_odd_paths import commands_on_runs

MADE = tuple(name for name in ("importance", "curve") if not may_be_absent([name]))
"""Commands that write tables into a run's folder."""
READING = ("figure", "compare", "energy", "report")
"""Commands that show tables; they come before those that make some, which a foreign file may keep from it."""
OTHERS = {"seed": "--seed=7", "task": "--tasks=[ner]", "encoder": "", "open": "--gates.target_open=0.9"}
"""Runs that differ in one thing."""


def words_for(run: Path, out: Path) -> dict[str, list[str]]:
    """The words of the commands that read a run."""
    out.mkdir(parents=True, exist_ok=True)
    corpus = run.parents[1] / "corpus"
    found = commands_on_runs(run, corpus, corpus, out)
    order = sorted(found, key=lambda name: name not in READING)
    return {name: found[name] for name in order}


Results = dict[str, tuple[int, str, str]]
"""By command its exit code, and what it printed on standard output and as errors."""


def results(base: Path, file: Path | None = None) -> Results:
    """What the commands say of a copy of the run in `base`, with a file of another run in it if one is given.

    The copy is always in the same place, so that what is said of it is the same.
    """
    mine, copy = base / "runs" / "run", base / "copy" / "runs" / "run"
    shutil.rmtree(base / "copy", ignore_errors=True)
    shutil.copytree(mine, copy)
    shutil.copytree(base / "corpus", base / "copy" / "corpus")
    shutil.copytree(mine, base / "copy" / "out" / "second")
    if file is not None:
        folder = next(folder for folder in file.parents if folder.parent == base / "others")
        shutil.copy(file, copy / file.relative_to(folder))
    words = words_for(copy, base / "copy" / "out")
    return {name: call(name, given) for name, given in words.items()}


def call(name: str, words: list[str]) -> tuple[int, str, str]:
    given, out, err = (io.TextIOWrapper(io.BytesIO(text)) for text in (b"The dog sees a cat.\n", b"", b""))
    with patch("sys.stdin", given), redirect_stdout(out), redirect_stderr(err):
        code = main([name, *words])
    return code, *(text(printed) for printed in (out, err))


def text(printed: io.TextIOWrapper) -> str:
    printed.seek(0)
    return printed.read()


@pytest.fixture(scope="module")
def runs(tiny_encoder, tmp_path_factory) -> Path:
    """A folder with a corpus, a run, and an encoder of another family."""
    base = tmp_path_factory.mktemp("foreign")
    measured(made_run(tiny_encoder, base / "corpus", base / "runs" / "run"), base)
    tiny.encoder("roberta", dtype=torch.float32).save(base / "roberta")
    (base / "roberta" / "encoder.json").unlink()
    return base


@pytest.fixture(scope="module")
def undisturbed(runs) -> Callable[[], Results]:
    """What the commands say of the run itself: made once, when it is first asked for."""
    return cache(partial(results, runs))


def measured(run: Path, base: Path) -> Path:
    words = words_for(run, base / "made" / run.name)
    for command in MADE:
        assert main([command, *words[command]]) == 0
    return run


def other_run(name: str, encoder: Path, base: Path) -> Path:
    encoder = base / "roberta" if name == "encoder" else encoder
    words = [f"--encoder.name={encoder}", f"--corpus.path={base / 'corpus'}", *TRAINING, "--pruning=dynamic"]
    words += [f"--runs={base / 'others'}", f"--name={name}", "--importance_every=1"]
    words += ["--importance_sentences=2", *filter(None, [OTHERS[name]])]
    assert main(["train", *words]) == 0
    return measured(base / "others" / name, base)


def plain(name: str, printed: str) -> str:
    """What a command printed, without how long it took: a remark, or the last column of a table."""
    printed = re.sub(r"\[\d+ s.*?\]", "", printed)
    return re.sub(r"(?m) +\d+\.\d │$", "", printed) if name == "collaborate" else printed


def ended(folder: Path) -> Run:
    """A run that has ended and has nothing but small files."""
    run = Run(folder)
    run.create({**dataclasses.asdict(TrainConfig()), "name": "run", "tasks": ["pos"]})
    run.write_metrics({"dev": {"pos": {"accuracy": 50.0}}})
    write_text(run.model / "model.json", "{}")
    run.update_status({"trained": True})
    run_tables.write_counts(run, "test", pl.DataFrame(schema=run_tables.COUNTS_SCHEMA))
    run.finish({"state": "finished"})
    return run


def test_a_run_that_has_ended_knows_its_files(tmp_path):
    run = ended(tmp_path / "run")
    (ended(tmp_path / "other").folder / "model" / "model.json").write_text("{ }")
    run_tables.write_counts(Run(tmp_path / "other"), "test", pl.DataFrame(schema=run_tables.COUNTS_SCHEMA))
    for name, content in {
        "config.yaml": (run.folder / "config.yaml").read_text().replace("seed: 1", "seed: 2"),
        "metrics.json": "{}", "model/model.json": "{ }",
        "sentence_counts/test.parquet": (tmp_path / "other/sentence_counts/test.parquet").read_bytes(),
    }.items():  # fmt: skip
        Run.open(run.folder)
        path = run.folder / name
        before = path.read_bytes()
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        assert path.read_bytes() != before
        with pytest.raises(InputError, match=rf"{path} (is not what it was|was made with)"):
            Run.open(run.folder)
        path.write_bytes(before)


def test_a_corpus_that_was_moved_and_a_run_that_goes_on_are_no_other_run(tmp_path):
    run = ended(tmp_path / "run")
    path = run.folder / "config.yaml"
    text = path.read_text()
    path.write_text(re.sub(r"(?m)^  path: .*", "  path: elsewhere", text))
    assert path.read_text() != text
    Run.open(run.folder)
    run.add_start({"seed": 1})
    (run.folder / "metrics.json").write_text("{}")
    Run.open(run.folder)


def files_of(run: Path) -> list[Path]:
    """All but pictures, which no command reads."""
    files = (path for path in run.rglob("*") if path.is_file() and path.suffix not in (".gif", ".png"))
    return sorted(path.relative_to(run) for path in files)


@pytest.mark.slow
@pytest.mark.usefixtures("as_installed")  # the exporter's sizes are symbols
@pytest.mark.parametrize("other", OTHERS)
def test_a_file_of_another_run_is_named_or_makes_no_difference(other, runs, undisturbed, tiny_encoder):
    mine, theirs = runs / "runs" / "run", other_run(other, tiny_encoder, runs)
    expected = undisturbed()
    assert {code for code, _, _ in expected.values()} == {0}
    for file in files_of(mine):
        if not (theirs / file).is_file() or (theirs / file).read_bytes() == (mine / file).read_bytes():
            continue
        for name, (code, out, err) in results(runs, theirs / file).items():
            if code == 0:
                assert plain(name, out) == plain(name, expected[name][1]), (str(file), name)
                continue
            assert code == 2, (str(file), name, err)
            assert err.count("\n") == 1, (str(file), name, err)
            assert str(runs / "copy" / "runs" / "run" / file.parent) in err, (str(file), name, err)

"""A file of another run in a run folder: every command says so in one line, or it makes no difference."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest
import torch

from mtl.commands.main import main
from tests.mtl import tiny
from tests.mtl.commands.runs_for_commands import TRAINING, made_run
from tests.mtl.commands.test_odd_paths import commands

MADE = ("importance", "probe", "ablate", "relevance", "curve", "evaluate")
"""Commands that write files into a run's folder."""


def words_for(run: Path, out: Path) -> dict[str, list[str]]:
    """The words of the commands that read a run."""
    out.mkdir(parents=True, exist_ok=True)
    corpus = run.parents[1] / "corpus"
    found = commands(run, corpus, corpus, out)
    return {name: words for name, words in found.items() if not name.startswith("data")}


def call(name: str, words: list[str], capsys, monkeypatch) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"The dog sees a cat.\n")))
    code = main([name, *words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.fixture(scope="module")
def runs(tiny_encoder, tmp_path_factory) -> Path:
    """Folders of runs: one, and as many that differ in one thing."""
    base = tmp_path_factory.mktemp("foreign")
    made_run(tiny_encoder, base / "corpus", base / "runs" / "run")
    tiny.encoder("roberta", dtype=torch.float32).save(base / "roberta")
    (base / "roberta" / "encoder.json").unlink()
    for name, more in {
        "seed": ["--seed=7"], "task": ["--tasks=[ner]"], "encoder": [f"--encoder.name={base / 'roberta'}"],
        "open": ["--gates.target_open=0.9"],
    }.items():  # fmt: skip
        words = [f"--encoder.name={tiny_encoder}", f"--corpus.path={base / 'corpus'}", *TRAINING]
        words += ["--pruning=dynamic", f"--runs={base / 'others'}", f"--name={name}", "--importance_every=1"]
        assert main(["train", *words, "--importance_sentences=2", *more]) == 0
    for run in [base / "runs" / "run", *(base / "others").iterdir()]:
        words = words_for(run, base / "made" / run.name)
        for command in MADE:
            assert main([command, *words[command]]) == 0
    return base


def files_of(run: Path) -> list[Path]:
    return sorted(path.relative_to(run) for path in run.rglob("*") if path.is_file())


@pytest.mark.slow
@pytest.mark.parametrize("other", ["seed", "task", "encoder", "open"])
def test_a_file_of_another_run_is_named_or_makes_no_difference(other, runs, tmp_path, capsys, monkeypatch):
    mine, theirs = runs / "runs" / "run", runs / "others" / other

    def results(file: Path | None) -> dict[str, tuple[int, str, str]]:
        base = tmp_path / "copy"
        shutil.rmtree(base, ignore_errors=True)
        copy = base / "runs" / "run"
        shutil.copytree(mine, copy)
        shutil.copytree(runs / "corpus", base / "corpus")
        shutil.copytree(mine, base / "out" / "second")
        if file is not None:
            shutil.copy(theirs / file, copy / file)
        words = words_for(copy, base / "out")
        return {name: call(name, given, capsys, monkeypatch) for name, given in words.items()}

    expected = results(None)
    assert {code for code, _, _ in expected.values()} == {0}
    for file in files_of(mine):
        if not (theirs / file).is_file() or (theirs / file).read_bytes() == (mine / file).read_bytes():
            continue
        for name, (code, out, err) in results(file).items():
            if code == 0:
                assert out == expected[name][1], (str(file), name)
                continue
            assert code == 2, (str(file), name, err)
            assert err.count("\n") == 1, (str(file), name, err)
            assert file.name in err, (str(file), name, err)

"""Odd names in paths: every command gives the same for an oddly named run as for a plainly named copy."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import polars as pl
import pytest
from PIL import Image

from mtl.commands.command_table import COMMANDS, MEASURES
from mtl.commands.main import main
from mtl.probes.tables import table_files
from tests.kit.absent import may_be_absent
from tests.mtl.commands.runs_for_commands import made_run

NAMES = ("lr[1]", "#?%*{é}[red]:x:'\"~$ !", "~")
"""Names with a meaning in patterns, URLs, templates, markup or shells, or as a home folder."""


@pytest.fixture(scope="module")
def run(tiny_encoder, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    return made_run(tiny_encoder, folder / "corpus", folder / "run")


def commands(run: Path, encoder: Path, corpus: Path, out: Path) -> dict[str, list[str]]:
    """The words of every command that reads a run, a model or a corpus."""
    here = [str(run), "--accelerator=cpu"]
    trained = ["--tasks=[pos]", "--max_epochs=1", "--trainer.accelerator=cpu", "--name=next"]
    sources = [f"--train=jsonl:{corpus}/train.jsonl", f"--dev=jsonl:{corpus}/d*v.jsonl"]
    shared = ["--dim=8", "--lengths=[]", "--steps=1", "--accelerator=cpu"]
    tables = [f"--out={out / 'e.csv'}", f"--figure={out / 'e.svg'}"]
    words = {
        "evaluate": [*here, f"--corpus={corpus}", f"--export={out / 'x'}", f"--json_out={out / 's.json'}"],
        **dict.fromkeys(MEASURES, here),
        "show": [str(run), "L0H0", "--sentence=We ate.", f"--output={out / 'h.svg'}", "--accelerator=cpu"],
        "doctor": [f"--runs={out}", f"--json_out={out / 'd.json'}"],
        "init": [str(corpus), f"--out={out / 'i.yaml'}"],
        "probe": [*here, f"--markdown={out / 'p.md'}"],
        "ablate": [*here, "--draws=20", f"--json_out={out / 'a.json'}"],
        "curve": [*here, "--by=importance", "--steps=2"],
        "prune": [*here, f"--out={out / 'pruned'}"],
        "export": [str(run), f"--out={out / 'exported'}"],
        "predict": [*here, "--output=json"],
        "figure": ["masks", str(run), f"--out={out / 'f.png'}"],
        "compare": [str(run), f"--against={out / 'second'}", "--draws=100", f"--out={out / 'c.tex'}"],
        "energy": [str(run), *tables],
        "collaborate": [str(run), f"--out={out / 'shared'}", *shared],
        "report": [str(run.parent), f"--out={out / 'r.html'}"],
        "train": [f"--from={run}", f"--runs={out}", f"--corpus.path={corpus}", *trained],
        "data stats": [str(corpus)],
        "data convert": [*sources, f"--out={out / 'c'}"],
        "data select": [str(corpus), f"--ids={corpus / 'some.ids'}", f"--out={out / 'd'}"],
    }
    return {name: rest for name, rest in words.items() if not may_be_absent(name.split())}


def commands_on_runs(run: Path, encoder: Path, corpus: Path, out: Path) -> dict[str, list[str]]:
    """Those of `commands` that read a run."""
    return {
        name: words
        for name, words in commands(run, encoder, corpus, out).items()
        if not name.startswith("data ") and name not in ("doctor", "init")
    }


def readable(path: Path) -> object:
    """The part of a file's content that does not depend on its place."""
    if path.suffix in (".parquet", ".csv"):
        table = (table_files.read_csv if path.suffix == ".csv" else table_files.read_parquet)(path)
        return table.drop("model", "source", strict=False).rows()
    if path.suffix == ".png":  # beside the picture it has the notes, which name runs
        with Image.open(path) as picture:
            return picture.tobytes()
    return path.read_bytes()


def results(folder: Path, capsys, monkeypatch, encoder: Path, run: Path) -> dict[str, object]:
    """What all commands print and write for a copy of the run, with all paths in a folder of that name."""
    copy, corpus, out = folder / "runs" / folder.name, folder / "corpus", folder / "out"
    shutil.copytree(run, copy)
    shutil.copytree(run, out / "second")
    shutil.copytree(run.parent / "corpus", corpus)
    first = (corpus / "train.jsonl").read_text().split('"id": "', 1)[1].split('"', 1)[0]
    (corpus / "some.ids").write_text(f"{first}\n")
    found: dict[str, object] = {}
    for name, words in commands(copy, encoder, corpus, out).items():
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"The dog sees a cat.\n")))
        code = main([*name.split(), *words])
        printed = capsys.readouterr()
        assert code == 0, (folder.name, name, printed.err)
        if name == "predict":
            found[name] = printed.out
        for line in printed.out.splitlines():
            if line.startswith("wrote ") and name != "report":  # whole, and as it is
                assert str(folder) in line, (folder.name, name, line)
    for table in ("heads.parquet", "curve.parquet", "curve_heads.parquet"):
        found[table] = readable(copy / table)
    for path in ("s.json", "p.md", "a.json", "f.png", "e.csv", "c/train.jsonl", "d/some.jsonl"):
        found[path] = readable(out / path)
    return found


def test_the_commands_that_are_tried_are_all_that_read_a_path(tmp_path):
    made_without = {
        "completion",
        "data ewt5",
        "data ewt10",
        "data toy",
        "demo",
        "translate",
        "study",
        "sweep",
        "serve",
    }
    assert commands(tmp_path, tmp_path, tmp_path, tmp_path).keys() == COMMANDS.keys() - made_without


@pytest.mark.slow
@pytest.mark.usefixtures("as_installed")  # the exporter's sizes are symbols
def test_every_command_does_for_an_odd_name_what_it_does_for_a_plain_one(
    run, tiny_encoder, tmp_path, capsys, monkeypatch
):
    expected = results(tmp_path / "plain", capsys, monkeypatch, tiny_encoder, run)
    for name in NAMES:
        decoy = tmp_path / "lr1" / "runs" / "lr1"
        if not decoy.exists():  # what a pattern would match
            shutil.copytree(run, decoy)
            shutil.copytree(decoy, tmp_path / "lr[1]" / "runs" / "lr1")
            pl.DataFrame({"x": [1]}).write_parquet(decoy / "heads.parquet")
        found = results(tmp_path / name, capsys, monkeypatch, tiny_encoder, run)
        for what, value in expected.items():
            assert found[what] == value, (name, what)

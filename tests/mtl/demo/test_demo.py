"""The demo: its sample, its archive, its steps, and a report in which the new run enters no number."""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console

from mtl.commands.main import main
from mtl.corpora.folder import select_sentences
from mtl.corpora.readers import read_sentences
from mtl.demo.command import Demo
from mtl.files import write_text
from mtl.runs.report.gather import source_of
from mtl.runs.report.write import made_report

PLACE = Path("mtl/demo")
SPLITS = {"train": 240, "dev": 40, "test": 60}


def test_every_sentence_of_the_sample_has_all_five_layers_and_is_there_once():
    words = set()
    for split, count in SPLITS.items():
        sentences = read_sentences(PLACE / "sample" / f"{split}.jsonl", "jsonl")
        assert len(sentences) == count
        for sentence in sentences:
            layers = (sentence.tags, sentence.entities, sentence.arcs, sentence.tree, sentence.frames)
            assert None not in layers, sentence.id
            words.add(sentence.words)
    assert len(words) == sum(SPLITS.values())


def test_the_sample_has_its_licence_and_the_archive_no_sentences_and_no_weights():
    assert "Attribution-ShareAlike 4.0" in (PLACE / "sample" / "LICENSE.txt").read_text(encoding="utf-8")
    assert sum(file.stat().st_size for file in (PLACE / "sample").iterdir()) < 500_000
    with zipfile.ZipFile(PLACE / "archive" / "runs.zip") as archive:
        names = archive.namelist()
        states = [json.loads(archive.read(name))["state"] for name in names if name.endswith("/status.json")]
    assert states == ["finished"] * 33
    kinds = {Path(name).name for name in names}
    assert kinds == {
        "config.yaml", "status.json", "metrics.json", "history.csv", "gates.parquet", "heads.parquet"
    }  # fmt: skip


def test_a_folder_with_other_files_is_left_alone(tmp_path, capsys):
    write_text(tmp_path / "mine.txt", "mine")
    assert main(["demo", f"--out={tmp_path}"]) == 2
    assert capsys.readouterr().err == f"mtl: {tmp_path} holds other files: use another --out\n"
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]
    Demo(tmp_path / "another")._begin()
    assert (tmp_path / "another" / "demo.json").is_file()


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_the_new_run_has_a_card_and_enters_no_number(tmp_path):
    demo = Demo(tmp_path / "demo")
    demo._begin()
    alone, _ = made_report(source_of(demo.folder), "test")
    assert "is not finished: run <code>mtl demo</code> again" in alone.html
    numbers = {number.what: abs(number.estimate) for answer in alone.answers for number in answer.estimates}
    readme = " ".join(Path("README.md").read_text(encoding="utf-8").split())
    assert f"NER and constituency parsing: {numbers['ner, con']:.0f}, and chance" in readme
    assert f"{numbers['MTL-5, pos']:.1f} and {numbers['MTL-5, dep']:.1f} points less than alone" in readme
    for head in ("L1H8 looks at the next word in 86 %", "L0H2 looks at the previous word in 86 %"):
        assert head in " ".join(re.sub("<[^>]+>", " ", alone.html).split())
        assert head.replace("L0H2 looks", "L0H2") in readme
    # A run with masks that would change every number if it were one of the archived ones.
    shutil.copytree(demo.archive / "dep-dynamic-k14-seed11", demo.run.folder)
    config = demo.run.folder / "config.yaml"
    config.write_text(config.read_text(encoding="utf-8").replace("\nseed: 11\n", "\nseed: 14\n"))
    status = json.loads((demo.run.folder / "status.json").read_text(encoding="utf-8"))
    sentences = {"train": 240, "dev": 40, "test": 60}
    write_text(demo.run.folder / "status.json", json.dumps(status | {"sentences": sentences}))
    both, _ = made_report(source_of(demo.folder), "test")
    assert both.tables.keys() == alone.tables.keys()
    for name, table in both.tables.items():
        assert table.equals(alone.tables[name]), name
    assert both.record() == alone.record()
    assert "The new run</h2>" in both.html
    assert f"{demo.run.folder}: five tasks jointly" in both.html
    assert set(both.tables["runs"]["run"].str.split("/").list.first()) == {"archive"}
    for answer in both.answers:
        assert answer.told, answer.question
    assert "ompetition" not in both.html


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_the_steps_of_the_demo_and_a_second_call_that_only_reports(tmp_path, tiny_encoder, capsys):
    ids = []
    for split in SPLITS:
        sentences = read_sentences(PLACE / "sample" / f"{split}.jsonl", "jsonl")[:8]
        write_text(tmp_path / f"{split}.ids", "".join(f"{sentence.id}\n" for sentence in sentences))
        ids.append(tmp_path / f"{split}.ids")
    select_sentences(PLACE / "sample", ids, tmp_path / "corpus", overwrite=False)
    options = (
        "--max_epochs=1", f"--corpus.path={tmp_path / 'corpus'}", f"--encoder.name={tiny_encoder}",
        "--gates.target_open=2",
    )  # fmt: skip
    demo = Demo(tmp_path / "demo", options)
    assert demo.work() == 0
    printed = capsys.readouterr().out
    commands = [line.split()[2] for line in printed.splitlines() if line.startswith("  $ mtl ")]
    assert commands == ["data", "train", "probe", "prune", "predict", "report"]
    assert "epoch 1 of 1: pos " in printed
    assert 3 < len(printed.partition("6/6")[2].splitlines()) <= 15
    assert "every task keeps 2 of " in printed
    assert "2 of " in printed.partition("4/6")[2].partition("5/6")[0]
    assert (demo.folder / "report.html").is_file()
    assert set(pl.read_parquet(demo.run.folder / "heads.parquet")["task"]) >= {"dep"}
    made = {file: file.stat().st_mtime_ns for file in demo.folder.rglob("model/*")}
    assert Demo(demo.folder, options).work() == 0
    assert "epoch 1 of" not in capsys.readouterr().out
    assert {file: file.stat().st_mtime_ns for file in demo.folder.rglob("model/*")} == made


def test_the_commands_of_the_usual_folder_are_short(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    demo = Demo(Path("demo"))
    demo._begin()
    demo._corpus(Console())
    assert "$ mtl data stats demo/corpus" in capsys.readouterr().out
    assert demo._places() == []

"""`mtl collaborate` and `mtl energy`: what they write, and that the result is a model like any other."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import polars as pl
import pytest
import torch

from mtl.collaborative.sharing import recorded_components
from mtl.commands.main import main
from mtl.config.schema import TrainConfig
from mtl.models.encoder import Encoder
from mtl.models.joint import JointModel
from mtl.runs.folder.run import Run
from tests.mtl import tiny
from tests.mtl.commands.runs_for_commands import with_and_without_masks

FULL = tiny.HEADS * tiny.HEAD_DIM


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_encoder: Path, toy: Path) -> Path:
    """A run without masks and one with a mask, each with a collaborative one beside it."""
    folder = tmp_path_factory.mktemp("collaborate")
    with_and_without_masks(tiny_encoder, toy, folder, "pos,dep")
    for name in ("none", "dynamic"):
        made = ["collaborate", str(folder / name), f"--out={folder / f'{name}-shared'}", "--lengths=[]"]
        assert main([*made, f"--dim={FULL}" if name == "none" else "--dim=20"]) == 0
    return folder


def test_an_encoder_is_written_that_others_take(tiny_encoder: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "shared"
    words = ["collaborate", str(tiny_encoder), "--dim=10", f"--out={out}", "--lengths=[8,16]", "--rounds=2"]
    assert main([*words, "--steps=20"]) == 0
    text = capsys.readouterr().out
    assert "million multiply-adds" in text
    assert "encoder parameters" in text
    encoder = Encoder.from_pretrained(str(out))
    assert recorded_components(encoder.transformer.config) == {0: 10, 1: 10, 2: 10}
    table = pl.read_parquet(out / "mixing.parquet")
    assert table.height == tiny.LAYERS * tiny.HEADS * 10
    assert main(["collaborate", str(tiny_encoder), "--dim=10", f"--out={out}"]) == 2
    assert "exists, and is no empty folder: use another --out" in capsys.readouterr().err
    assert main(["collaborate", str(out), "--dim=5", f"--out={tmp_path / 'again'}"]) == 2
    assert "share query and key components already" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["file.txt", "folder"])
def test_nothing_that_is_there_is_replaced(name, tiny_encoder, tmp_path, capsys) -> None:
    (tmp_path / "folder").mkdir()
    files = [tmp_path / "file.txt", tmp_path / "folder" / "notes.txt"]
    for file in files:
        file.write_text("mine")
    assert main(["collaborate", str(tiny_encoder), "--dim=5", f"--out={tmp_path / name}"]) == 2
    faults = {"folder": "exists, and is no empty folder: use another --out", "file.txt": "is a file, not"}
    assert faults[name] in capsys.readouterr().err
    assert [file.read_text() for file in files] == ["mine", "mine"]


@pytest.mark.slow
def test_an_encoder_is_trained_on(tiny_encoder: Path, tmp_path: Path, toy: Path) -> None:
    out = tmp_path / "shared"
    assert main(["collaborate", str(tiny_encoder), "--dim=10", f"--out={out}", "--lengths=[]"]) == 0
    words = [
        "train", f"--corpus.path={toy}", f"--encoder.name={out}", f"--runs={tmp_path}", "--name=run",
        "--tasks=pos", "--max_epochs=1", "--trainer.accelerator=cpu", "--optimizer.encoder_lr=0.01",
    ]  # fmt: skip
    assert main(words) == 0
    path = "encoder.layer.0.attention.self.mixing"
    before = Encoder.from_pretrained(str(out)).transformer.get_parameter(path)
    after = JointModel.from_pretrained(tmp_path / "run").encoder.transformer.get_parameter(path)
    assert after.shape == before.shape == (tiny.HEADS, 10)
    assert not torch.equal(after, before)


@pytest.mark.slow
def test_all_components_keep_the_scores_of_a_run(runs: Path) -> None:
    before, after = (Run.open(runs / name) for name in ("none", "none-shared"))
    for task, scores in before.metrics()["dev"].items():
        assert after.metrics()["dev"][task] == pytest.approx(scores)
    assert after.derivation() == f"collaborative {FULL}"
    assert before.derivation() == ""
    status = json.loads((runs / "none-shared" / "status.json").read_text())
    assert status["collaborated_from"] == str(runs / "none")
    assert (runs / "none-shared" / "mixing.parquet").is_file()


@pytest.mark.slow
def test_a_run_is_evaluated_measured_cut_and_trained_on(
    runs: Path, tmp_path: Path, toy: Path, capsys
) -> None:
    run = str(runs / "dynamic-shared")
    assert main(["evaluate", run, "--split=dev"]) == 0
    assert main(["probe", run, "--split=dev", f"--out={tmp_path}"]) == 0
    for command in ("importance", "ablate"):
        table = tmp_path / f"{command}.parquet"
        assert main([command, run, "--sentences=4", "--split=dev", f"--out={table}"]) == 0
        assert table.is_file()
    assert main(["prune", run, f"--out={tmp_path / 'cut'}"]) == 0
    assert Run.open(tmp_path / "cut").derivation() == "cut, collaborative 20"
    cut = JointModel.from_pretrained(tmp_path / "cut")
    shape = [len(heads) for heads in cut.encoder.tap.remaining]
    assert recorded_components(cut.encoder.transformer.config) == {0: 20, 1: 20, 2: 20}
    words = ["train", f"--from={run}", f"--corpus.path={toy}", f"--runs={tmp_path}", "--name=on"]
    assert main([*words, "--tasks=pos,dep", "--max_epochs=1", "--trainer.accelerator=cpu"]) == 0
    on = JointModel.from_pretrained(tmp_path / "on")
    assert recorded_components(on.encoder.transformer.config) == {0: 20, 1: 20, 2: 20}
    assert sum(shape) <= sum(len(heads) for heads in on.encoder.tap.remaining)
    capsys.readouterr()


@pytest.mark.slow
def test_energy_of_several_models(runs: Path, tiny_encoder: Path, tmp_path: Path, capsys) -> None:
    out, drawn = tmp_path / "energy.parquet", tmp_path / "energy.svg"
    models = [str(tiny_encoder), str(runs / "none"), str(runs / "none-shared")]
    assert main(["energy", *models, f"--out={out}", f"--figure={drawn}"]) == 0
    text = capsys.readouterr().out
    assert "components for 90 % of the variance" in text
    table = pl.read_parquet(out)
    assert table["model"].unique(maintain_order=True).to_list() == models
    assert drawn.stat().st_size > 1000
    assert main(["figure", "energy", str(out), f"--out={tmp_path / 'again.svg'}"]) == 0
    assert (tmp_path / "again.csv").is_file()
    mixed = tmp_path / "mixing.csv"
    assert main(["energy", str(runs / "dynamic-shared"), f"--mixing={mixed}"]) == 0
    assert pl.read_csv(mixed).height == tiny.LAYERS * tiny.HEADS * 20


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["collaborate", "ENCODER", "--dim=0", "--out=x"], f"dim=0: use 1 to {FULL} components"),
        (["collaborate", "ENCODER", f"--dim={FULL + 1}", "--out=x"], f"use 1 to {FULL} components"),
        (["collaborate", "ENCODER", "--dim=5", "--out=x", "--lengths=[2]"], "sentences of 3 to"),
        (["collaborate", "ENCODER", "--dim=5", "--out=x", "--seed=-1"], "seed=-1: use a number from 0"),
        (["collaborate", "ENCODER", "--dim=5", "--out=x", "--rounds=0"], "rounds=0: use at least 1"),
        (["energy", "ENCODER", "ENCODER"], "a model is given twice"),
        (["energy", "ENCODER", "--out=x.txt"], "use a file that ends in .parquet or .csv"),
        (["energy", "ENCODER", "--out=nowhere/x.csv"], "the folder nowhere does not exist"),
        (["energy", "ENCODER", "--figure=x.gif"], "use a file that ends in .pdf, .png, .svg"),
        (["energy", "ENCODER", "--out=x.csv", "--mixing=x.csv"], "name the same file, x.csv"),
        (["energy", "ENCODER", "--mixing=x.csv"], "share no components"),
        (["figure", "energy", "ENCODER/config.json", "--out=x.svg"], "is not a table of captured variance"),
    ],
)
def test_bad_input_is_one_line(words, reason, tiny_encoder, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([word.replace("ENCODER", str(tiny_encoder)) for word in words]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert reason in error
    assert not list(tmp_path.iterdir())


def test_a_damaged_status_is_known_before_the_heads_of_a_run_are_shared(tmp_path, capsys, monkeypatch):
    run, out = tmp_path / "run", tmp_path / "out"
    Run(run).create({**dataclasses.asdict(TrainConfig()), "name": "run", "tasks": ["pos"]})
    (run / "status.json").write_text('{"state": "finis')
    monkeypatch.setattr("mtl.models.joint.JointModel.from_pretrained", lambda *_: pytest.fail("read"))
    assert main(["collaborate", str(run), f"--out={out}", "--dim=8"]) == 2
    assert capsys.readouterr().err.startswith(f"mtl: {run / 'status.json'} is no JSON (Unterminated string")
    assert not out.exists()

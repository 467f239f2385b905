"""Pruning curves of the models after epochs of a training."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from rich.console import Console

from mtl.commands.main import main
from mtl.config.schema import BatchConfig, CorpusConfig, EncoderConfig, TrainConfig, TrainerConfig
from mtl.corpora.toy.corpus import write_toy
from mtl.runs.folder.run import Run
from mtl.training.train import train


@pytest.mark.slow
def test_each_model_that_is_kept_has_a_curve(tiny_encoder: Path, tmp_path: Path, capsys) -> None:
    write_toy(tmp_path / "toy", 18, 6, 6, seed=1)
    config = TrainConfig(
        name="run", runs=str(tmp_path), corpus=CorpusConfig(str(tmp_path / "toy")), tasks=("pos",),
        max_epochs=3, snapshots=2, encoder=EncoderConfig(str(tiny_encoder)), batch=BatchConfig(sentences=6),
        trainer=TrainerConfig(accelerator="cpu", precision="32-true"),
    )  # fmt: skip
    run = train(config, console=Console(quiet=True))
    history = pl.read_csv(run.folder / "history.csv")
    words = ["curve", str(run.folder), "--by=[-importance]", "--steps=2", "--split=dev"]
    for epoch in (2, 3, 3):
        assert main([*words, f"--epoch={epoch}"]) == 0
        made = Run.open(run.folder / "curve" / f"epoch-{epoch}")
        points = pl.read_parquet(made.folder / "curve.parquet")
        # With all heads, the model scores as it did in training.
        [score] = history.filter(epoch=epoch)["dev/pos/accuracy"]
        assert points.filter(share=1.0)["score"].item() == pytest.approx(score, abs=1e-3)
        assert made.metrics()["dev"]["pos"]["accuracy"] == pytest.approx(score, abs=1e-3)
        assert points["kept"].to_list() == [12, 6, 0]
    assert not (run.folder / "curve.parquet").exists()
    out = tmp_path / "epochs.pdf"
    assert main(["figure", "curve-epochs", str(run.folder), "--split=dev", f"--out={out}"]) == 0
    drawn = pl.read_parquet(out.with_suffix(".parquet"))
    assert drawn.select("by", "epoch", "percent").rows() == [
        ("-importance", epoch, percent) for epoch in (2, 3) for percent in (100.0, 50.0, 0.0)
    ]
    capsys.readouterr()
    for options, message in {
        "--epoch=1": "has no model after epoch 1: it keeps epoch-2, epoch-3",
        "--epoch=2 --log": "--log is for curves of the run's own model",
    }.items():
        assert main([*words, *options.split()]) == 2
        assert message in capsys.readouterr().err
    assert main(["figure", "curve-epochs", str(run.folder / "curve" / "epoch-2"), f"--out={out}"]) == 2
    assert "has no curves after epochs: left out" in capsys.readouterr().err

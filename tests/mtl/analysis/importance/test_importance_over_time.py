"""Importance at every evaluation of a run."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import polars as pl
import pytest
import torch
from rich.console import Console

from mtl.analysis.importance import task_importance
from mtl.analysis.observers import default_observers, first_annotated
from mtl.config.effective import only_used
from mtl.config.schema import BatchConfig, CorpusConfig, EncoderConfig, TrainConfig, TrainerConfig
from mtl.corpora.formats.jsonl import read_jsonl
from mtl.errors import InputError
from mtl.models.joint import JointModel
from mtl.runs.folder.run import Run
from mtl.runs.folder.run_tables import IMPORTANCE_SCHEMA, add_importance, read_importance
from mtl.training.train import train
from tests.mtl import tiny
from tests.mtl.analysis import worth
from tests.mtl.stopped import StopAt, weights

QUIET = Console(quiet=True)


@pytest.fixture
def config(toy, tiny_encoder, tmp_path) -> TrainConfig:
    """A short run of two tasks, with importance at every second evaluation."""
    return TrainConfig(
        name="run", runs=str(tmp_path / "runs"), corpus=CorpusConfig(str(toy)), tasks=("pos", "dep"),
        encoder=EncoderConfig(str(tiny_encoder)), batch=BatchConfig(sentences=24), max_epochs=3,
        trainer=TrainerConfig(accelerator="cpu", checkpoint_minutes=0.0), keep="last",
        importance_every=2, importance_sentences=5,
    )  # fmt: skip


@pytest.mark.slow
def test_it_changes_no_weight_and_is_that_of_the_model_at_the_evaluation(config, toy) -> None:
    watched = train(config, console=QUIET, observers=default_observers(config, QUIET))
    plain_config = dataclasses.replace(config, name="plain", importance_every=0)
    plain = train(plain_config, console=QUIET, observers=default_observers(plain_config, QUIET))
    first, second = weights(watched), weights(plain)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not (plain.folder / "importance.parquet").exists()
    table = read_importance(watched)
    steps = table["step"].unique().sort().to_list()
    history = pl.read_csv(watched.folder / "history.csv")
    assert steps == history.filter(pl.col("epoch") >= 2)["update"].to_list()  # the second, and the last
    assert table.height == 2 * 2 * tiny.LAYERS * tiny.HEADS
    model = JointModel.from_pretrained(watched.model).eval()
    measured = task_importance(model, worth.loader(model, worth.corpus(model, toy, 5), 500))
    for task, gradients in measured.items():
        last = table.filter((pl.col("step") == steps[-1]) & (pl.col("task") == task)).sort("layer", "head")
        expected = torch.tensor(gradients.value("importance").ravel())
        torch.testing.assert_close(
            torch.tensor(last["value"].to_list()), expected, rtol=1e-4, atol=1e-7, check_dtype=False
        )


@pytest.mark.slow
def test_a_resumed_run_has_no_step_twice(config) -> None:
    config = dataclasses.replace(config, tasks=("pos",), importance_every=1, max_epochs=2)
    whole = train(
        dataclasses.replace(config, name="whole"), console=QUIET, observers=default_observers(config, QUIET)
    )
    per_epoch = int(pl.read_csv(whole.folder / "history.csv")["update"][0])
    observers = [*default_observers(config, QUIET), StopAt(per_epoch + 1)]
    with pytest.raises(RuntimeError, match="power"):
        train(config, console=QUIET, observers=observers)
    broken = Run(whole.folder.with_name("run"))
    # As if it had been killed between the evaluation and its checkpoint: a row of a later update is there.
    late = read_importance(broken).with_columns(step=pl.lit(2 * per_epoch), value=pl.lit(-1.0))
    add_importance(broken, late)
    train(config, console=QUIET, observers=default_observers(config, QUIET))
    assert read_importance(broken).equals(read_importance(whole))


def test_each_task_has_its_sentences(toy: Path) -> None:
    model = worth.joint_model(toy, ("pos", "dep"))
    sentences = read_jsonl(toy / "dev.jsonl")[:6]
    halves = [dataclasses.replace(each, arcs=None) for each in sentences[:3]] + sentences[3:]
    assert first_annotated(halves, model.tasks, 2) == [*halves[:2], *halves[3:5]]
    assert first_annotated(halves, model.tasks, 100) == halves


def test_keys_that_a_run_does_not_use_do_not_count(config) -> None:
    unused = dataclasses.replace(config, importance_every=0, importance_sentences=7)
    assert only_used(unused).importance_sentences == TrainConfig().importance_sentences
    assert only_used(config).importance_sentences == 5


def test_a_run_without_it_is_told_how(tmp_path) -> None:
    with pytest.raises(InputError, match="importance_every"):
        read_importance(Run(tmp_path))
    (tmp_path / "importance.parquet").write_text("no table")
    with pytest.raises(InputError, match="cannot be read"):
        read_importance(Run(tmp_path))
    assert "value" in IMPORTANCE_SCHEMA

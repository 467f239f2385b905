"""A run in loggers: its updates in Lightning's table and TensorBoard; without them nothing is otherwise."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
import types
from typing import ClassVar

import polars as pl
import pytest
import torch
from rich.console import Console

from mtl.analysis import observers
from mtl.analysis.observers import default_observers
from mtl.config.schema import (
    BalancerConfig,
    BatchConfig,
    CorpusConfig,
    EncoderConfig,
    OptimizerConfig,
    TrainConfig,
    TrainerConfig,
    WandbConfig,
)
from mtl.errors import InputError
from mtl.runs.folder.run import Run
from mtl.training.check import check_settings, said_of_unused
from mtl.training.train import train
from tests.mtl.stopped import StopAt, weights

QUIET = Console(quiet=True)
CLOCK = "updates/sentences_per_second"


@pytest.fixture
def config(few, tiny_encoder, tmp_path) -> TrainConfig:
    """A short run of two tasks, with a row for every second update."""
    return TrainConfig(
        name="run", runs=str(tmp_path / "runs"), corpus=CorpusConfig(str(few)), tasks=("pos", "dep"),
        encoder=EncoderConfig(str(tiny_encoder)), batch=BatchConfig(sentences=3, mode="separate"),
        max_epochs=2, trainer=TrainerConfig(accelerator="cpu", checkpoint_minutes=0.0), keep="last",
        balancer=BalancerConfig(name="moving_average"), pruning="dynamic",
        optimizer=OptimizerConfig(accumulate=2), loggers=("csv",), log_every=2,
    )  # fmt: skip


def logged(run: Run) -> pl.DataFrame:
    """The table of a run, without what the clock says."""
    return pl.read_csv(run.folder / "csv" / "metrics.csv", infer_schema_length=None).drop(CLOCK)


class Writer:
    """In place of TensorBoard's own writer."""

    made: ClassVar[list[Writer]] = []

    def __init__(self, log_dir: str, **settings: object) -> None:
        self.log_dir, self.scalars, self.images = log_dir, {}, {}
        self.closed = False
        Writer.made.append(self)

    def add_scalar(self, key: str, value: float, step: int) -> None:
        self.scalars[key, step] = value

    def add_image(self, key: str, image: object, step: int, dataformats: str) -> None:
        self.images[key, step] = image.shape

    def _get_file_writer(self) -> Writer:
        return self

    def add_summary(self, summary: object, step: int) -> None:
        pass

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def tensorboard(monkeypatch) -> None:
    """A library for TensorBoard, as far as Lightning uses it."""
    library, summary = types.ModuleType("tensorboardX"), types.ModuleType("tensorboardX.summary")
    monkeypatch.setattr(library, "SummaryWriter", Writer, raising=False)
    monkeypatch.setattr(summary, "hparams", lambda settings, metrics: (None,) * 3, raising=False)
    monkeypatch.setitem(sys.modules, "tensorboardX", library)
    monkeypatch.setitem(sys.modules, "tensorboardX.summary", summary)
    monkeypatch.setattr("lightning_fabric.loggers.tensorboard._TENSORBOARD_AVAILABLE", False)
    monkeypatch.setattr("lightning_fabric.loggers.tensorboard._TENSORBOARDX_AVAILABLE", True)
    monkeypatch.setattr("mtl.training.check.importlib.util.find_spec", lambda name: object())


@pytest.mark.slow
def test_rows_of_updates_agree_with_those_of_evaluations(config, tensorboard) -> None:
    config = dataclasses.replace(config, log_every=1, loggers=("tensorboard", "csv"))
    run = train(config, console=QUIET, observers=default_observers(config, QUIET))
    rows, history = logged(run), pl.read_csv(run.folder / "history.csv")
    updates = rows.drop_nulls("updates/gradient_norm")
    per_epoch = history["update"][0]
    assert updates["step"].to_list() == list(range(1, 2 * per_epoch + 1))
    for epoch, row in enumerate(history.rows(named=True)):
        of_epoch = updates.slice(epoch * per_epoch, per_epoch)
        for task in config.tasks:  # the epoch's mean loss is over the updates that have the task
            assert of_epoch[f"updates/loss/{task}"].mean() == pytest.approx(row[f"loss/{task}"], abs=1e-4)
            assert of_epoch[f"updates/loss/{task}"].null_count() > 0
    peak, rising = config.rates()["encoder_lr"], 0.1 * 2 * per_epoch
    factors = [
        (done + 1) / (rising + 1) if done < rising else (2 * per_epoch - done) / (2 * per_epoch - rising)
        for done in range(2 * per_epoch)
    ]
    rates = updates["updates/learning_rate/encoder"].to_list()
    assert rates == pytest.approx([peak * factor for factor in factors])
    assert updates["updates/gradient_norm"].min() > 0
    [final] = rows.drop_nulls("final/dev/mean")["final/test/pos/accuracy"].to_list()
    assert final == pytest.approx(run.metrics()["test"]["pos"]["accuracy"])
    # TensorBoard has the same numbers, and a picture of the masks at each evaluation.
    [writer] = Writer.made
    assert (writer.log_dir, writer.closed) == (str(run.folder / "tensorboard"), True)
    same = {
        (key, row["step"]): row[key]
        for row in rows.rows(named=True)
        for key in row
        if key != "step" and row[key] is not None
    }
    assert {key for key in writer.scalars if key[0] != CLOCK} == same.keys()
    assert {key: writer.scalars[key] for key in same} == pytest.approx(same)
    assert writer.images.keys() == {("masks", update) for update in history["update"]}


@pytest.mark.slow
def test_a_resumed_run_has_each_row_once(config) -> None:
    plain = dataclasses.replace(config, name="plain", loggers=())
    without = train(plain, console=QUIET, observers=default_observers(plain, QUIET))
    whole = dataclasses.replace(config, name="whole")
    whole = train(whole, console=QUIET, observers=default_observers(whole, QUIET))
    with pytest.raises(RuntimeError, match="power"):
        train(config, console=QUIET, observers=[*default_observers(config, QUIET), StopAt(3)])
    broken = Run(whole.folder.with_name("run"))
    # As if it had been killed after rows whose checkpoint was not written, while it wrote another row.
    rows = (whole.folder / "updates.jsonl").read_text().splitlines(keepends=True)
    late = [row for row in rows if json.loads(row)["update"] <= 6]
    (broken.folder / "updates.jsonl").write_text("".join(late) + rows[0][:20])
    train(config, console=QUIET, observers=default_observers(config, QUIET))
    assert logged(broken).equals(logged(whole))
    # Loggers change nothing of what is trained.
    first, second = weights(without), weights(whole)
    assert all(torch.equal(first[key], second[key]) for key in first)
    tables = [pl.read_csv(run.folder / "history.csv").drop("seconds") for run in (without, whole, broken)]
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])
    assert not (without.folder / "updates.jsonl").exists()


def test_tensorboard_is_refused_where_it_is_not_installed(config, monkeypatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        "mtl.training.check.importlib.util.find_spec",
        lambda name: None if name.startswith("tensorboard") else real(name),
    )
    with pytest.raises(InputError, match="install the package tensorboard"):
        check_settings(dataclasses.replace(config, loggers=("csv", "tensorboard")))


@pytest.mark.parametrize(
    ("loggers", "mode", "variable", "expected"),
    [
        ((), None, "", ()),
        (("csv", "csv"), None, "online", ("csv",)),
        (("csv", "wandb"), None, "", ("wandb", "csv")),
        (("wandb",), None, "disabled", ()),
        ((), "offline", "disabled", ("wandb",)),
        (("wandb", "csv"), "disabled", "", ("csv",)),
    ],
)
def test_which_loggers_a_run_has(monkeypatch, loggers, mode, variable, expected) -> None:
    monkeypatch.setenv("WANDB_MODE", variable)
    config = TrainConfig(loggers=loggers, wandb=WandbConfig(mode=mode))
    assert observers.loggers_of(config) == expected


def test_settings_of_loggers_that_cannot_be(config) -> None:
    for wandb, said in (
        (WandbConfig(id="a/b"), "ids with /"),
        (WandbConfig(id=""), "1 to 128"),
        (WandbConfig(mode="offline", resume="must"), "asks the server"),
    ):
        with pytest.raises(InputError, match=said):
            check_settings(dataclasses.replace(config, wandb=wandb))
    off = dataclasses.replace(config, loggers=(), wandb=WandbConfig(notes="x", log_model=True))
    lines = " ".join(said_of_unused(off))
    assert "wandb.notes, wandb.log_model" in lines
    assert "log_every" in lines

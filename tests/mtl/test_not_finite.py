"""Values that are not finite, planted wherever they can arise: the work ends there, and they are named."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import optuna
import polars as pl
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

from mtl.analysis.keyed_table import KeyedTable
from mtl.commands.main import main
from mtl.config.parse import configured
from mtl.config.schema import TrainConfig
from mtl.errors import InputError, RunError
from mtl.heads.gates import HeadGates
from mtl.heads.target import HeadTarget
from mtl.models.joint import JointModel
from mtl.probes.tables import curve_table, heads_table
from mtl.probes.tables.energy_table import ENERGY
from mtl.runs.compare.heads import heads_of
from mtl.runs.figures.table import draw
from mtl.runs.folder import sentence_counts
from mtl.runs.folder.heads_file import write_measures
from mtl.runs.folder.run import Run
from mtl.study.sweep.file import Sweep
from mtl.study.sweep.folder import SweepFolder
from mtl.study.sweep.report import _row
from mtl.study.sweep.status import best_of
from mtl.training import evaluation
from mtl.training.observer import Observer
from mtl.training.step import JointTraining
from mtl.training.train import train
from tests.mtl.unrecorded import forget_files

BAD = (math.nan, math.inf, -math.inf)
WORDS = (
    "--tasks=pos,srl", "--max_epochs=2", "--batch.sentences=40", "--trainer.accelerator=cpu",
    "--trainer.precision=32-true", "--pruning=dynamic",
)  # fmt: skip
UPDATES = 4
"""Per epoch."""


class Planted(Observer):
    """Calls a function with the module before or after the second epoch's first or last batch."""

    def __init__(self, plant: Callable[[JointTraining], None], update: int, after: bool = False) -> None:
        self.plant, self.update, self.after = plant, update, after

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if not self.after and trainer.global_step == self.update:
            self.plant(pl_module)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        if self.after and trainer.global_step == self.update:
            self.plant(pl_module)


def weight(module: JointTraining) -> None:
    next(module.model.decoder("srl").parameters()).data.flatten()[0] = math.nan


def gradient(module: JointTraining) -> None:
    next(module.model.decoder("srl").parameters()).register_hook(lambda grad: grad * math.inf)


def gate(module: JointTraining) -> None:
    module.gate_loss.gates.log_alpha.data[0, 0, 0] = math.inf


def balance(module: JointTraining) -> None:
    module.model.losses = lambda batch, scores, losses=module.model.losses: {
        name: loss * (math.nan if name == "srl" else 1.0) for name, loss in losses(batch, scores).items()
    }


PLACES = {
    "loss": (Planted(balance, UPDATES), "update 5 (epoch 2): the loss of srl is nan"),
    "weight": (Planted(weight, UPDATES), "update 5 (epoch 2): the loss of srl is nan"),
    "gradient": (Planted(gradient, UPDATES), "update 5 (epoch 2): the gradient of model.decoders.srl."),
    "gate": (Planted(gate, UPDATES), "update 5 (epoch 2): "),
    "weight after the last update": (Planted(weight, 2 * UPDATES, after=True), "model.decoders.srl."),
}


def fast(chosen: Sequence[str], names: Iterable[str]) -> list[Any]:
    """The names, all but the chosen ones marked as slow."""
    return [name if name in chosen else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("place", fast(("gradient", "score"), [*PLACES, "score"]))
def test_training_ends_where_a_value_is_not_finite(place, toy, tiny_encoder, tmp_path, monkeypatch):
    words = [*WORDS, f"--corpus.path={toy}", f"--encoder.name={tiny_encoder}", f"--runs={tmp_path}"]
    config = configured("mtl train", TrainConfig, [*words, "--name=run"])
    observers, said = [], "evaluation after epoch 2: the accuracy of pos on dev is nan"
    if place == "score":
        real, calls = evaluation.evaluate, []

        def broken(*arguments: Any) -> Any:
            scores = real(*arguments)
            calls.append(scores)
            if len(calls) == 2:
                scores["pos"]["accuracy"] = math.nan
            return scores

        monkeypatch.setattr(evaluation, "evaluate", broken)
    else:
        planted, said = PLACES[place]
        observers = [planted]
    with pytest.raises(RunError) as caught:
        train(config, console=Console(quiet=True), observers=observers)
    run = Run(tmp_path / "run")
    assert said in str(caught.value)
    assert f"the last good state, of update {UPDATES}, is in {run.resume_checkpoint}" in str(caught.value)
    assert run.status()["state"] == "failed"
    assert said in run.status()["error"]
    state = torch.load(run.resume_checkpoint, weights_only=True)["state_dict"]
    assert all(value.isfinite().all() for value in state.values() if value.is_floating_point())
    assert len((run.folder / "history.csv").read_text().splitlines()) == 2
    assert not (run.folder / "metrics.json").exists()


@pytest.fixture(scope="module")
def broken_run(toy, tiny_encoder, tmp_path_factory) -> Path:
    """A finished run, one of whose weights was made NaN afterwards."""
    runs = tmp_path_factory.mktemp("broken")
    words = [f"--corpus.path={toy}", f"--encoder.name={tiny_encoder}", f"--runs={runs}", "--name=run"]
    config = configured("mtl train", TrainConfig, [*WORDS, *words, "--max_epochs=1", "--pruning=none"])
    run = train(config, console=Console(quiet=True))
    file = run.model / "decoders.safetensors"
    weights = load_file(file)
    name = next(iter(weights))
    weights[name].flatten()[0] = math.nan
    save_file(weights, file)
    return forget_files(run.folder)


@pytest.mark.parametrize(
    "command",
    fast(("evaluate", "from"), ["importance", "ablate", "relevance", "curve", "evaluate", "probe", "from"]),
)
def test_a_model_that_is_not_finite_is_refused_by_every_command(command, broken_run, tmp_path, capsys):
    words = [command, str(broken_run)]
    if command == "from":
        config = [f"--corpus.path={broken_run.parent}", f"--from={broken_run}", f"--runs={tmp_path}"]
        words = ["train", *WORDS, *config, "--pruning=none", "--name=other"]
        toy = Run(broken_run).config()["corpus"]["path"]
        words.append(f"--corpus.path={toy}")
    before = sorted(path.name for path in broken_run.iterdir())
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "has values that are not finite" in said
    assert said.count("\n") == 1
    assert sorted(path.name for path in broken_run.iterdir()) == before


@pytest.mark.parametrize("bad", BAD)
def test_what_is_not_finite_is_not_chosen_written_or_ranked(bad, tmp_path):
    gates = HeadGates(2, 4)
    target = HeadTarget(gates, 0.5)
    gates.log_alpha.data[0, 1, 2] = bad
    with pytest.raises(RunError, match="cannot be chosen"):
        target.project(gates, 0.9)

    row = {
        "measure": "importance", "task": "pos", "label": "", "attention": "self", "layer": 1, "head": 2,
        "value": bad, "count": 1, "choice": "",
    }  # fmt: skip
    rows = pl.DataFrame([row, row | {"value": 1.0}], schema=heads_table.SCHEMA)
    file = tmp_path / "probed" / "heads.parquet"
    with pytest.raises(
        InputError, match=r"1 value not finite.* at measure importance, task pos, .*layer 1, head 2"
    ):
        write_measures(file, rows, ["importance"], {})
    assert not file.exists()
    for name, schema in curve_table.SCHEMAS.items():
        values = {key: bad if kind.is_float() else None for key, kind in schema.items()}
        if any(kind.is_float() for kind in schema.values()):
            table = KeyedTable(tmp_path / name, schema, "mtl curve")
            with pytest.raises(InputError, match="not finite"):
                table.put({}, "key", pl.DataFrame([values], schema=schema))

    file.parent.mkdir()  # a table from before values were watched
    heads_table.write(file, rows, {"target": "minilm"})
    table, notes = heads_of([file.parent])
    assert table["value"].is_finite().all()
    assert any("1 value not finite: left out" in note for note in notes)


@pytest.mark.parametrize("bad", BAD)
def test_tables_from_before_values_were_watched_are_refused(bad, tmp_path):
    """Writers refuse such values now; readers would compare, average and draw them."""
    for name, schema in curve_table.SCHEMAS.items():
        values = {key: bad if kind.is_float() else None for key, kind in schema.items()}
        pl.DataFrame([values], schema=schema).write_parquet(tmp_path / name)
        if any(kind.is_float() for kind in schema.values()):
            with pytest.raises(
                ValueError, match=f"{name}: 1 value not finite; make it again with 'mtl curve'"
            ):
                curve_table.read(tmp_path / name)
        else:
            assert curve_table.read(tmp_path / name)[0].height == 1
    run = Run(tmp_path / "run")
    run.folder.mkdir()
    rows = [{"task": "pos", "sentence": 0, "key": 0, "counts": [1.0, bad]}]
    sentence_counts.write(run, "test", pl.DataFrame(rows, schema=sentence_counts.SCHEMA))
    with pytest.raises(InputError, match=r"test\.parquet has counts that are not finite; write it again"):
        sentence_counts.read(run, "test")
    row = {"model": "m", "attention": "self", "layer": 0, "head": None, "matrix": "key", "component": 1}
    pl.DataFrame([row | {"captured": bad}], schema=ENERGY).write_parquet(tmp_path / "energy.parquet")
    with pytest.raises(InputError, match="have values that are not finite: make them again with"):
        draw("energy", [tmp_path / "energy.parquet"])


@pytest.mark.parametrize("bad", BAD)
def test_a_trial_that_is_not_finite_has_no_place_among_the_others(bad):
    folder = Mock(spec=SweepFolder)
    folder.progress.return_value = Mock(state="finished", seconds=1.0)
    row = _row(folder, optuna.trial.create_trial(value=bad if not math.isnan(bad) else -math.inf))
    assert row.score is None


def test_a_trial_that_is_not_finite_is_never_the_best():
    sweep = Mock(spec=Sweep)
    sweep.metric = Mock()
    sweep.metric.better = lambda one, other: one < other
    trials = [optuna.trial.create_trial(value=value) for value in (-math.inf, 2.0, math.inf, 1.0)]
    assert best_of(sweep, trials) is trials[3]
    assert best_of(sweep, trials[:1]) is None


def test_a_model_that_is_not_finite_does_not_load(broken_run):
    with pytest.raises(InputError, match="not finite"):
        JointModel.from_pretrained(broken_run)

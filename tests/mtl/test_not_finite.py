"""Values that are not finite, planted wherever they can arise: the work ends there, and they are named."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

from mtl.analysis.trained import KeyedTable
from mtl.commands.command_table import MEASURES
from mtl.commands.main import main
from mtl.config.parse import configured
from mtl.config.schema import TrainConfig
from mtl.errors import InputError, RunError
from mtl.heads.gates import HeadGates
from mtl.heads.target import HeadTarget
from mtl.models.joint import JointModel
from mtl.probes.tables import heads_table
from mtl.runs.compare.heads import heads_of
from mtl.runs.compare.run_set import MeasuredHeads, RunSet
from mtl.runs.folder import run_tables
from mtl.runs.folder.run import Run
from mtl.runs.folder.run_tables import write_measures
from mtl.training import evaluation
from mtl.training.evaluation import Observer
from mtl.training.step import JointTraining
from mtl.training.train import train
from tests.kit.absent import may_be_absent
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
        real, calls = evaluation.evaluate_model, []

        def broken(*arguments: Any) -> Any:
            scores = real(*arguments)
            calls.append(scores)
            if len(calls) == 2:
                scores["pos"]["accuracy"] = math.nan
            return scores

        monkeypatch.setattr(evaluation, "evaluate_model", broken)
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


OTHERS = [name for name in ("curve",) if not may_be_absent([name])]


@pytest.mark.parametrize(
    "command",
    fast(("evaluate", "from"), [*MEASURES, "ablate", *OTHERS, "evaluate", "probe", "from"]),
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
    table = KeyedTable(tmp_path / "parts.parquet", pl.Schema({"value": pl.Float64}), "mtl parts")
    with pytest.raises(InputError, match="not finite"):
        table.put({}, "key", pl.DataFrame({"value": [bad]}))

    file.parent.mkdir()  # a table from before values were watched
    heads_table.write_heads_table(file, rows, {"target": "minilm"})
    measured = RunSet([], bare=[MeasuredHeads(file)])
    assert heads_of(measured)["value"].is_finite().all()
    assert any("1 value not finite: left out" in note for note in measured.notes)


@pytest.mark.parametrize("bad", BAD)
def test_tables_from_before_values_were_watched_are_refused(bad, tmp_path):
    """Writers refuse such values now; readers would compare, average and draw them."""
    run = Run(tmp_path / "run")
    run.folder.mkdir()
    rows = [{"task": "pos", "sentence": 0, "key": 0, "counts": [1.0, bad]}]
    run_tables.write_counts(run, "test", pl.DataFrame(rows, schema=run_tables.COUNTS_SCHEMA))
    with pytest.raises(InputError, match=r"test\.parquet has counts that are not finite; write it again"):
        run_tables.read_counts(run, "test")


def test_a_model_that_is_not_finite_does_not_load(broken_run):
    with pytest.raises(InputError, match="not finite"):
        JointModel.from_pretrained(broken_run)

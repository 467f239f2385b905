"""Training under masks from a file, and everything that reads such a run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from mtl.commands.main import main
from mtl.config.effective import counting_settings, only_used, plain
from mtl.config.schema import (
    BatchConfig,
    CorpusConfig,
    EncoderConfig,
    GatesConfig,
    TrainConfig,
    TrainerConfig,
)
from mtl.errors import InputError
from mtl.heads.gates import FixedGates
from mtl.models.joint import JointModel
from mtl.runs.compare.heads import worth_of
from mtl.runs.folder.run import Run
from mtl.runs.report.gather import gather
from mtl.training.check import check_settings
from mtl.training.evaluation import Observer
from mtl.training.train import train
from tests.mtl.models.test_mask_file import table
from tests.mtl.tiny import HEADS, LAYERS

QUIET = Console(quiet=True)
POS = np.tile([1, 0, 0.5, 0], (LAYERS, 1))
DEP = np.tile([0, 1, 1, 0], (LAYERS, 1))


@pytest.fixture(scope="module")
def masks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("masks") / "masks.parquet"
    table({"pos": POS, "dep": DEP}).write_parquet(path)
    return path


def settings(corpus: Path, encoder: Path, runs: Path, masks: Path, **changes) -> TrainConfig:
    return TrainConfig(
        name="run", runs=str(runs), corpus=CorpusConfig(str(corpus)), tasks=("pos", "dep"), max_epochs=2,
        encoder=EncoderConfig(str(encoder)), batch=BatchConfig(sentences=8), pruning="fixed",
        gates=GatesConfig(masks=str(masks), scope="per_task"),
        trainer=TrainerConfig(accelerator="cpu", checkpoint_minutes=0.0), **changes,
    )  # fmt: skip


@pytest.fixture(scope="module")
def finished(few, tiny_encoder, masks, tmp_path_factory) -> Run:
    return train(settings(few, tiny_encoder, tmp_path_factory.mktemp("runs"), masks), console=QUIET)


def test_the_run_keeps_its_masks_and_nothing_of_what_learning_them_costs(finished):
    model = JointModel.from_pretrained(finished.model)
    assert isinstance(model.gates, FixedGates)
    assert model.gates.masks == ("pos", "dep")
    assert model.gates.gate().tolist() == [POS.tolist(), DEP.tolist()]
    gates = pl.read_parquet(finished.folder / "gates.parquet")
    assert gates["log_alpha"].null_count() == gates.height == 2 * 2 * LAYERS * HEADS
    assert gates.filter(task="pos", step=gates["step"].max())["open"].sum() == 2 * LAYERS
    header = (finished.folder / "history.csv").read_text().splitlines()[0].split(",")
    of_gates = [name for name in header if name.startswith("gates/")]
    assert of_gates == ["gates/pos/open", "gates/dep/open"]
    assert "choices" not in finished.status()


def test_no_parameter_and_no_optimiser_state_belongs_to_fixed_masks(few, tiny_encoder, masks, tmp_path):
    seen = []

    class Watch(Observer):
        def on_train_batch_end(self, trainer, training, *_) -> None:
            if not seen:
                grouped = sum(len(group["params"]) for group in trainer.optimizers[0].param_groups)
                seen.append((training.gate_loss, grouped, len(list(training.model.parameters()))))

    config = settings(few, tiny_encoder, tmp_path, masks)
    train(dataclasses.replace(config, max_epochs=1), console=QUIET, observers=[Watch()])
    [(gate_loss, grouped, parameters)] = seen
    assert gate_loss is None
    assert grouped == parameters


def test_closed_heads_get_no_gradient_from_their_task(finished):
    """Weights of heads that both tasks close stay as the pretrained encoder has them, but for the decay."""
    trained = load_file(finished.model / "model.safetensors")
    config = finished.config()
    before = load_file(Path(config["encoder"]["name"]) / "model.safetensors")
    size = next(value for key, value in before.items() if key.endswith("query.weight")).shape[0] // HEADS
    for layer in range(LAYERS):
        [name] = [key for key in before if key.endswith(f"layer.{layer}.attention.self.value.weight")]
        change = (trained[name] - before[name]).view(HEADS, size, -1).abs().amax((1, 2))
        decay = (
            config["optimizer"]["weight_decay"] * config["optimizer"]["encoder_lr"] * before[name].abs().max()
        )
        assert change[3] < 20 * decay  # closed in both masks
        assert (change[:3] > 10 * change[3]).all()


class StopAt(Observer):
    """Fails during an update, after the checkpoint of the update before."""

    def __init__(self, update: int) -> None:
        self.update = update

    def on_train_batch_end(self, trainer, *_) -> None:
        if trainer.global_step == self.update:
            raise RuntimeError("the power is gone")


@pytest.mark.slow
def test_a_killed_run_resumes_exactly(finished, few, tiny_encoder, masks, tmp_path):
    config = settings(few, tiny_encoder, tmp_path, masks)
    with pytest.raises(RuntimeError, match="the power is gone"):
        train(config, console=QUIET, observers=[StopAt(5)])
    resumed = train(config, console=QUIET)
    for file in ("model.safetensors", "decoders.safetensors"):
        ours, theirs = load_file(resumed.model / file), load_file(finished.model / file)
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    assert resumed.metrics() == finished.metrics()


def test_the_content_of_the_file_counts(finished, few, tiny_encoder, masks, tmp_path):
    config = settings(few, tiny_encoder, finished.folder.parent, masks)
    original = masks.read_bytes()
    table({"pos": DEP, "dep": POS}).write_parquet(masks)
    try:
        with pytest.raises(InputError, match=r"under other masks: gates\.masks was changed since it started"):
            train(config, console=QUIET)
    finally:
        masks.write_bytes(original)
    assert train(config, console=QUIET).folder == finished.folder  # finished already


def test_the_path_does_not_count_and_neither_do_settings_of_learned_masks():
    config = TrainConfig(pruning="fixed", gates=GatesConfig(masks="a.parquet"))
    other = TrainConfig(
        pruning="fixed", gates=GatesConfig(masks="b/c.parquet", penalty=3.0, target_open=5.0, init_mean=1.0)
    )
    of_one, of_other = (
        counting_settings(plain(dataclasses.asdict(only_used(given)))) for given in (config, other)
    )
    assert of_one == of_other
    assert only_used(dataclasses.replace(other, pruning="dynamic")).gates.masks is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pruning": "fixed"}, "pruning=fixed takes its masks from a file: use gates.masks=FILE"),
        ({"gates": GatesConfig(masks="m")}, "gates.masks=m is for pruning=fixed, and pruning=none"),
    ],
)
def test_masks_without_the_regime_and_the_regime_without_masks_are_one_line(changes, message):
    with pytest.raises(InputError, match=message):
        check_settings(TrainConfig(**changes))


def test_a_mask_of_another_shape_is_refused_before_anything_is_written(few, tiny_encoder, tmp_path, capsys):
    path = tmp_path / "masks.parquet"
    table({"pos": np.ones((6, 12))}).write_parquet(path)
    words = [
        "train", f"--corpus.path={few}", f"--encoder.name={tiny_encoder}", f"--runs={tmp_path / 'runs'}",
        "--tasks=pos", "--max_epochs=1", "--pruning=fixed", f"--gates.masks={path}",
        "--trainer.accelerator=cpu",
    ]  # fmt: skip
    assert main(words) == 2
    errors = capsys.readouterr().err
    assert "a mask over 6 layers of 12 heads, but the encoder" in errors
    assert "has 3 layers of 4 heads: use masks that were learned on it" in errors
    assert errors.count("\n") == 1
    assert not (tmp_path / "runs").exists() or not any(
        path.is_dir() for path in (tmp_path / "runs").iterdir()
    )


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_what_reads_a_run_reads_this_one(finished, tmp_path, capsys):
    run = str(finished.folder)
    assert main(["evaluate", run, "--split=dev", f"--json-out={tmp_path / 'scores.json'}"]) == 0
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores["dev"]["dep"]["las"] == pytest.approx(finished.metrics()["dev"]["dep"]["las"])
    assert main(["probe", run]) == 0
    assert main(["importance", run, "--sentences=5"]) == 0
    assert main(["prune", run, "--task=dep", f"--out={tmp_path / 'cut'}"]) == 0
    assert f"{2 * LAYERS} of {LAYERS * HEADS} heads kept" in capsys.readouterr().out
    assert main(["report", str(finished.folder.parent)]) == 0
    data = gather(finished.folder.parent, "test", TrainConfig().main_scores())
    assert data.gates is not None
    assert set(data.gates["task"]) == {"dep"}
    assert any(note.startswith("pos in ") and "nothing was learned" in note for note in data.notes)
    values, _ = worth_of([finished.folder])
    assert "importance" in set(values["measure"])
    assert "log_alpha" not in set(values["measure"])

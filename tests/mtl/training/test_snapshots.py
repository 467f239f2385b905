"""Models of the last evaluations or updates, and their average."""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.numpy import load_file

from mtl.config.schema import (
    BatchConfig,
    CorpusConfig,
    EncoderConfig,
    OptimizerConfig,
    TrainConfig,
    TrainerConfig,
)
from mtl.corpora.formats.jsonl import read_jsonl
from mtl.corpora.toy.corpus import write_toy
from mtl.errors import InputError
from mtl.models.batches import examples
from mtl.models.evaluate import batches, evaluate_model
from mtl.models.joint import JointModel
from mtl.training.check import check_settings
from mtl.training.evaluation import Observer
from mtl.training.train import train
from tests.mtl.stopped import StopAt

QUIET = Console(quiet=True)


@pytest.fixture
def config(tiny_encoder, tmp_path) -> TrainConfig:
    write_toy(tmp_path / "toy", 18, 6, 6, seed=1)
    return TrainConfig(
        name="plain", runs=str(tmp_path / "runs"), corpus=CorpusConfig(str(tmp_path / "toy")), tasks=("pos",),
        max_epochs=3, keep="last", encoder=EncoderConfig(str(tiny_encoder)), batch=BatchConfig(sentences=6),
        trainer=TrainerConfig(accelerator="cpu", precision="32-true"),
    )  # fmt: skip


def weights(folder):
    return load_file(folder / "model.safetensors")


@pytest.mark.slow
def test_the_last_models_are_kept_and_averaged_and_training_stays_the_same(config):
    plain = train(config, console=QUIET)
    every = train(dataclasses.replace(config, name="every", snapshots=9), console=QUIET)
    assert [path.name for path in every.snapshots()] == ["epoch-1", "epoch-2", "epoch-3"]
    last = weights(plain.model)
    assert all(np.array_equal(value, last[name]) for name, value in weights(every.snapshot(3)).items())
    # Stopped in its last epoch, and resumed.
    averaging = dataclasses.replace(config, name="average", keep="average", snapshots=2)
    with pytest.raises(RuntimeError, match="the power is gone"):
        train(averaging, console=QUIET, observers=[StopAt(8)])
    run = train(averaging, console=QUIET)
    assert [path.name for path in run.snapshots()] == ["epoch-2", "epoch-3"]
    parts = [weights(every.snapshot(epoch)) for epoch in (2, 3)]
    found = weights(run.model)
    assert found.keys() == last.keys()
    for name, value in found.items():
        np.testing.assert_allclose(value, (parts[0][name] + parts[1][name]) / 2, rtol=1e-6, atol=1e-9)
    assert any(not np.array_equal(value, last[name]) for name, value in found.items())
    model = JointModel.from_pretrained(run.model)
    dev = examples(
        list(read_jsonl(Path(str(config.corpus.path)) / "dev.jsonl")),
        model.tokenizer,
        model.tasks,
        model.labels,
    )
    scores = evaluate_model(model, batches(dev, model))
    assert run.metrics()["dev"]["pos"]["accuracy"] == pytest.approx(scores["pos"]["accuracy"])
    if find_spec("mtl.sweep"):  # it judges the model that is kept
        outcome = resolve_name("mtl.sweep.trial:outcome")(run, "dev/mean")
        assert outcome.value == pytest.approx(scores["pos"]["accuracy"])


class AfterUpdates(Observer):
    """Keeps the weights after each update in memory."""

    def __init__(self) -> None:
        self.weights: dict[int, dict[str, torch.Tensor]] = {}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        state = pl_module.model.encoder.transformer.state_dict()
        self.weights[trainer.global_step] = {name: value.clone() for name, value in state.items()}


@pytest.mark.slow
@pytest.mark.parametrize(("accumulate", "kept"), [(1, [6, 8, 9]), (2, [2, 4, 6])])
def test_models_are_kept_by_updates(config, accumulate, kept):
    # Three epochs of three batches: nine updates, or six, the second of each epoch of one batch.
    config = dataclasses.replace(
        config,
        keep="average",
        snapshots=3,
        snapshot_updates=2,
        optimizer=OptimizerConfig(accumulate=accumulate),
    )
    seen = AfterUpdates()
    whole = train(dataclasses.replace(config, name="whole"), console=QUIET, observers=[seen])
    assert [path.name for path in whole.snapshots()] == [f"update-{update}" for update in kept]
    with pytest.raises(RuntimeError, match="the power is gone"):
        train(config, console=QUIET, observers=[StopAt(kept[1])])
    run = train(config, console=QUIET)
    assert [path.name for path in run.snapshots()] == [path.name for path in whole.snapshots()]
    encoders = [JointModel.from_pretrained(path).encoder.transformer.state_dict() for path in run.snapshots()]
    for update, encoder in zip(kept, encoders, strict=True):
        assert all(torch.equal(value, seen.weights[update][name]) for name, value in encoder.items())
    means = JointModel.from_pretrained(run.model).encoder.transformer.state_dict()
    for name, value in means.items():
        mean = sum(encoder[name].double() for encoder in encoders) / 3
        torch.testing.assert_close(value, mean.to(value.dtype))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keep": "average"}, "say of how many by snapshots"),
        (
            {"keep": "average", "snapshots": 2, "pruning": "dynamic"},
            "pruning=dynamic learns them: use keep=last",
        ),
    ],
)
def test_what_cannot_be_averaged_is_refused(config, changes, message):
    with pytest.raises(InputError, match=message):
        check_settings(dataclasses.replace(config, **changes))
    check_settings(dataclasses.replace(config, **{**changes, "keep": "last"}))

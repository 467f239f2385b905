"""Training in bfloat16 with copies of float32 weights, and TF32 in training steps alone."""

from __future__ import annotations

import copy
import dataclasses
import io
import itertools
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import pytorch_lightning
import torch
from pytorch_lightning.plugins import Precision
from rich.console import Console
from torch import Tensor, nn
from torch.utils.data import DataLoader

from mtl.config.schema import (
    BatchConfig,
    CorpusConfig,
    EncoderConfig,
    GatesConfig,
    OptimizerConfig,
    TrainConfig,
    TrainerConfig,
)
from mtl.corpora.toy.corpus import write_toy
from mtl.heads.gate_file import read_gates
from mtl.models.inputs import InputCache
from mtl.models.passes import rounded_weights
from mtl.runs.folder.run import Run
from mtl.training.assembly import RoundedProducts, quiet_lightning
from mtl.training.train import train
from tests.launches import Launches
from tests.mtl import tiny
from tests.mtl.stopped import StopAt, weights

QUIET = Console(quiet=True)


def loss_of(transformer: nn.Module) -> Tensor:
    ids, mask = tiny.batch()
    output = transformer(input_ids=ids, attention_mask=mask).last_hidden_state.float()
    total: Tensor = (output * torch.linspace(-1, 1, output.shape[-1])).sum()
    return total


def gradients(transformer: nn.Module) -> dict[str, Tensor | None]:
    return {name: part.grad for name, part in transformer.named_parameters()}


@pytest.mark.parametrize("name", ["bert", "albert", "gpt2"])
def test_gradients_are_those_of_a_model_in_bfloat16_and_reach_the_weights_in_float32(name: str):
    exact = tiny.encoder(name, dtype=torch.float32).transformer
    before = {key: value.clone() for key, value in exact.state_dict().items()}
    narrow = copy.deepcopy(exact).to(torch.bfloat16)
    with rounded_weights([exact]):
        loss = loss_of(exact)
    loss.backward()
    loss_of(narrow).backward()
    mine, theirs = gradients(exact), gradients(narrow)
    assert any(gradient is not None for gradient in theirs.values())
    for key, gradient in theirs.items():
        found = mine[key]
        if gradient is None or found is None:
            assert found is gradient is None, key
        else:
            assert found.dtype == torch.float32
            assert torch.equal(found, gradient.float()), key
    assert all(torch.equal(value, before[key]) for key, value in exact.state_dict().items())


def test_frozen_weights_get_no_gradient_and_change_no_other():
    whole = tiny.encoder("bert", dtype=torch.float32).transformer
    part = copy.deepcopy(whole)
    part.embeddings.requires_grad_(False)
    part.encoder.layer[0].requires_grad_(False)
    counts = []
    for model in (whole, part):
        with rounded_weights([model]):
            loss = loss_of(model)
        with Launches() as counted:
            loss.backward()
        counts.append(counted.total())
    for (key, one), other in zip(gradients(whole).items(), gradients(part).values(), strict=True):
        frozen = key.startswith(("embeddings", "encoder.layer.0"))
        assert other is None if frozen else torch.equal(one, other), key
    assert counts[1] < 0.8 * counts[0]


def test_gradients_of_some_weights_cost_no_whole_backward_pass():
    model = tiny.encoder("bert", dtype=torch.float32).transformer
    last = list(model.encoder.layer[-1].parameters())
    counts, found = [], []
    for apart in (last, []):
        with rounded_weights([model], apart):
            loss = loss_of(model)
        with Launches() as counted:
            found.append(torch.autograd.grad(loss, last, retain_graph=True))
        counts.append(counted.total())
    assert counts[0] < 0.6 * counts[1]
    assert all(map(torch.equal, *found))


class Steps(pytorch_lightning.LightningModule):
    """Notes how exact products are in each part of training."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.linear, self.fails = nn.Linear(2, 1), fails
        self.noted: dict[str, str] = {}

    def note(self, where: str) -> None:
        self.noted[where] = torch.get_float32_matmul_precision()

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        self.note("forward")
        if self.fails:
            raise RuntimeError("planted")
        loss: Tensor = self.linear(batch).sum()
        loss.register_hook(lambda _: self.note("backward"))
        return loss

    def on_before_optimizer_step(self, *_: Any) -> None:
        self.note("update")

    def on_train_batch_end(self, *_: Any) -> None:
        self.note("between")

    def on_train_epoch_end(self) -> None:
        self.note("evaluation")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def steps(plugin: Precision, fails: bool = False) -> Mapping[str, str]:
    module = Steps(fails)
    trainer = pytorch_lightning.Trainer(
        accelerator="cpu", max_epochs=1, plugins=[plugin], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    assert trainer.precision == "tf32"
    with quiet_lightning(), pytest.raises(RuntimeError, match="planted") if fails else nullcontext():
        trainer.fit(module, DataLoader([torch.ones(3, 2)], batch_size=None))
    return module.noted


def test_products_are_rounded_in_steps_and_nowhere_else():
    before = torch.get_float32_matmul_precision()
    other = dict.fromkeys(("update", "between", "evaluation"), before)
    assert steps(RoundedProducts("tf32", True)) == {"forward": "high", "backward": "high", **other}
    assert steps(RoundedProducts("tf32", False)) == {"forward": before, "backward": before, **other}
    assert steps(RoundedProducts("tf32", True), fails=True) == {"forward": "high"}
    assert torch.get_float32_matmul_precision() == before


# Whole runs


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    write_toy(folder, 30, 6, 6, seed=1)
    return folder


@pytest.fixture
def config(toy: Path, tiny_encoder: Path, tmp_path: Path) -> TrainConfig:
    """Two tasks with a mask each."""
    return TrainConfig(
        runs=str(tmp_path / "runs"), corpus=CorpusConfig(str(toy)), tasks=("pos", "dep"), max_epochs=2,
        encoder=EncoderConfig(str(tiny_encoder)), batch=BatchConfig(sentences=6), keep="last",
        pruning="dynamic", gates=GatesConfig(scope="per_task", target_open=0.5),
        optimizer=OptimizerConfig(encoder_lr=1e-3),
        trainer=TrainerConfig(
            accelerator="cpu", precision="bf16-master", threads=1
        ),
    )  # fmt: skip


@pytest.mark.slow
def test_a_run_is_resumed_exactly_and_keeps_its_float32_weights(config: TrainConfig):
    console = Console(record=True, width=200, file=io.StringIO())
    often = dataclasses.replace(config.trainer, checkpoint_minutes=0.0)
    config = dataclasses.replace(config, trainer=often)
    unbroken = train(dataclasses.replace(config, name="unbroken"), console=console)
    assert "1 thread, bf16-master" in console.export_text()
    config = dataclasses.replace(config, name="broken")
    with pytest.raises(RuntimeError, match="power"):
        train(config, console=QUIET, observers=[StopAt(7)])
    broken = train(config, console=QUIET)
    first, second = weights(unbroken), weights(broken)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    words = next(value for key, value in first.items() if key.endswith("query.weight"))
    assert words.dtype == torch.float32
    assert not torch.equal(words, words.bfloat16().float())


def open_heads(run: Run) -> dict[str, set[tuple[int, int]]]:
    gates = read_gates(run.folder / "gates.parquet")
    last = gates.filter(pl.col("step") == pl.col("step").max(), pl.col("open"))
    return {str(task): set(rows.select("layer", "head").rows()) for (task,), rows in last.group_by("task")}


def agreement(one: Run, other: Run) -> float:
    mine, theirs = open_heads(one), open_heads(other)
    return float(np.mean([len(mine[task] & theirs[task]) / len(mine[task] | theirs[task]) for task in mine]))


def losses(run: Run) -> np.ndarray:
    return pl.read_csv(run.folder / "history.csv").select("^loss/.*$").to_numpy()


@pytest.mark.slow
def test_losses_and_masks_are_those_of_float32_within_the_spread_of_seeds(config: TrainConfig):
    inputs = InputCache(keep=True)

    def run(precision: Any, seed: int) -> Run:
        trainer = dataclasses.replace(config.trainer, precision=precision)
        name = f"{precision}-{seed}"
        return train(
            dataclasses.replace(config, name=name, seed=seed, trainer=trainer), console=QUIET, inputs=inputs
        )

    exact = {seed: run("32-true", seed) for seed in (1, 2, 3)}
    narrow = {seed: run("bf16-master", seed) for seed in (1, 2, 3)}
    of_precision = [np.abs(losses(exact[seed]) / losses(narrow[seed]) - 1).mean() for seed in exact]
    pairs = list(itertools.combinations(exact, 2))
    of_seed = [np.abs(losses(exact[a]) / losses(exact[b]) - 1).mean() for a, b in pairs]
    assert np.max(of_precision) < 0.5 * np.mean(of_seed), (of_precision, of_seed)
    same = [agreement(exact[seed], narrow[seed]) for seed in exact]
    apart = [agreement(exact[a], exact[b]) for a, b in pairs]
    assert np.mean(same) > np.mean(apart), (same, apart)

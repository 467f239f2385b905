"""Training in float16: scaled losses make the same updates, and updates that overflow are not made."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor

from mtl.config.schema import (
    BalancerConfig,
    BatchConfig,
    CorpusConfig,
    EncoderConfig,
    GatesConfig,
    OptimizerConfig,
    TrainConfig,
    TrainerConfig,
)
from mtl.corpora.formats.jsonl import read_jsonl
from mtl.corpora.toy.corpus import write_toy
from mtl.errors import InputError, RunError
from mtl.models.batches import collate, examples
from mtl.models.joint import JointModel
from mtl.tasks.structured import Con, Dep, Ner, Pos, Srl
from mtl.tasks.task import Task
from mtl.training import assembly
from mtl.training.assembly import check_machine
from mtl.training.balancers import LossScale
from mtl.training.check import check_settings
from mtl.training.evaluation import Observer
from mtl.training.step import JointTraining
from mtl.training.train import train
from tests.mtl import tiny
from tests.mtl.stopped import StopAt, weights

QUIET = Console(quiet=True)


def test_the_factor_follows_the_rule_of_torchs_own():
    rng = random.Random(1)
    mine = LossScale(2.0**30, interval=3)
    theirs = torch.amp.GradScaler("cpu", init_scale=2.0**30, growth_interval=3)
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], 0.1)
    seen = []
    for _ in range(60):
        overflows = rng.random() < 0.25
        theirs.scale(weight.sum()).backward()
        weight.grad = torch.full((2,), torch.inf if overflows else 1.0)
        theirs.step(optimizer)
        theirs.update()
        mine.follow(torch.tensor(float(overflows)))
        assert mine.factor.item() == theirs.get_scale()
        seen.append(mine.factor.item())
    assert min(seen) < 2.0**30
    assert any(np.diff(seen) > 0)


def test_overflows_are_excused_as_long_as_the_factor_may_be_their_cause():
    scale = LossScale(2.0)
    norms = torch.tensor([1.0, torch.inf, torch.nan])
    assert scale.without_overflows(norms).tolist() == [1.0, 0.0, 0.0]
    for _ in range(2):
        scale.follow(torch.tensor(1.0))
    assert scale.factor.item() == 1.0
    torch.testing.assert_close(scale.without_overflows(norms), norms, equal_nan=True)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    write_toy(folder, 30, 6, 6, seed=1)
    return folder


@pytest.fixture
def config(toy: Path, tiny_encoder: Path, tmp_path: Path) -> TrainConfig:
    """Two tasks with a mask each, learned weights of losses, and updates of two batches."""
    return TrainConfig(
        name="run", runs=str(tmp_path / "runs"), corpus=CorpusConfig(str(toy)), tasks=("pos", "dep"),
        max_epochs=2, encoder=EncoderConfig(str(tiny_encoder)), batch=BatchConfig(sentences=4), keep="last",
        pruning="dynamic", gates=GatesConfig(scope="per_task", target_open=0.5),
        balancer=BalancerConfig("uncertainty"), optimizer=OptimizerConfig(encoder_lr=1e-3, accumulate=2),
        trainer=TrainerConfig(accelerator="cpu", precision="32-true", threads=1),
    )  # fmt: skip


@pytest.fixture
def scaled(monkeypatch: pytest.MonkeyPatch) -> LossScale:
    """Runs scale their losses with this, whatever their precision."""
    scale = LossScale()

    def made(*arguments: Any, **named: Any) -> JointTraining:
        return JointTraining(*arguments, **{**named, "loss_scale": scale})

    monkeypatch.setattr(assembly, "JointTraining", made)
    return scale


class Overflow(Observer):
    """Makes one gradient infinite in the updates from `first` to `last`, and notes all state after each."""

    def __init__(self, first: int, last: int) -> None:
        self.updates = range(first, last + 1)
        self.noted: dict[int, list[Tensor]] = {}

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        bad = torch.tensor(torch.inf)
        next(pl_module.model.decoder("dep").parameters()).register_hook(
            lambda grad: grad * bad if trainer.global_step + 1 in self.updates else None
        )

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        model = [value.clone() for value in pl_module.model.state_dict().values()]
        optimizer = trainer.optimizers[0]
        states = [part.clone() for of in optimizer.state_dict()["state"].values() for part in of.values()]
        learned = [value.clone() for value in pl_module.balancer.parameters()]
        self.noted[trainer.global_step] = [*model, *states, *learned]


@pytest.mark.slow
def test_scaled_losses_make_the_same_updates(config: TrainConfig, request: pytest.FixtureRequest):
    plain = weights(train(config, console=QUIET))
    factor = request.getfixturevalue("scaled").factor
    found = weights(train(dataclasses.replace(config, name="scaled"), console=QUIET))
    assert factor.item() == 2.0**16
    assert plain.keys() == found.keys()
    assert all(torch.equal(value, found[name]) for name, value in plain.items())


@pytest.mark.slow
def test_an_update_that_overflows_is_not_made(config: TrainConfig, scaled: LossScale):
    watched = Overflow(3, 4)
    train(config, console=QUIET, observers=[watched])
    same = {
        update: all(map(torch.equal, watched.noted[update - 1], watched.noted[update]))
        for update in range(2, max(watched.noted) + 1)
    }
    assert [update for update, unchanged in same.items() if unchanged] == [3, 4]
    assert scaled.factor.item() == 2.0**14


@pytest.mark.slow
def test_an_overflow_at_a_factor_of_one_ends_the_run(config: TrainConfig, scaled: LossScale):
    scaled.factor.fill_(2.0)
    with pytest.raises(RunError, match=r"update 4 .*: the gradient of model\.decoders\.dep\..* is (inf|nan)"):
        train(config, console=QUIET, observers=[Overflow(3, 9)])


@pytest.mark.slow
def test_a_run_in_float16_is_resumed_exactly(config: TrainConfig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(assembly, "has_float16", lambda on_gpu: True)
    trainer = dataclasses.replace(config.trainer, precision="16-mixed", checkpoint_minutes=0.0)
    tasks = ("pos", "ner", "dep", "con", "srl")
    config = dataclasses.replace(config, trainer=trainer, tasks=tasks)
    unbroken = train(dataclasses.replace(config, name="unbroken"), console=QUIET, observers=[Overflow(2, 2)])
    with pytest.raises(RuntimeError, match="the power is gone"):
        train(config, console=QUIET, observers=[Overflow(2, 2), StopAt(5)])
    state = torch.load(Path(config.runs) / "run" / "checkpoints" / "last.ckpt", weights_only=True)[
        "state_dict"
    ]
    assert state["loss_scale.factor"].item() <= 2.0**15
    assert state["loss_scale.made"].item() == 2  # updates 3 and 4
    first, second = weights(unbroken), weights(train(config, console=QUIET))
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert all(value.dtype != torch.float16 for value in first.values())


DECODERS = (
    Pos(), Ner(), Dep(), Con(), Srl(), Ner(decoder="bio"), Srl(decoder="spans"), Dep(decoder="crf"),
    Dep(decoder="crf2o"), Dep(decoder="vi"), Dep(projective=True),
)  # fmt: skip


@pytest.mark.parametrize("task", DECODERS, ids=repr)
def test_losses_and_gradients_are_those_of_float32(task: Task, toy: Path):
    """With the first factor nothing overflows here, and no gradient that matters is lost."""
    torch.manual_seed(1)
    sentences = read_jsonl(toy / "train.jsonl")[:6]
    encoder = tiny.encoder("bert", dtype=torch.float32)
    labels = {task.name: task.labels(sentences)}
    model = JointModel(encoder, {task.name: task}, labels).eval()
    batch = collate(
        examples(sentences, encoder.tokenizer, model.tasks, labels), encoder.tokenizer, model.tasks
    )
    found = []
    for narrow in (False, True):
        model.zero_grad()
        scale = LossScale(2.0**10)
        with torch.autocast("cpu", torch.float16, enabled=narrow):
            [loss] = model.losses(batch, model(batch)).values()
        scale(loss.float()).backward()
        gradients = [part.grad.flatten() for part in model.parameters() if part.grad is not None]
        found.append((loss.item(), torch.cat(gradients) / scale.factor))
    (exact, theirs), (close, mine) = found
    assert close == pytest.approx(exact, rel=0.01)
    assert torch.cosine_similarity(mine, theirs, dim=0) > 0.999
    torch.testing.assert_close(mine.norm(), theirs.norm(), rtol=0.02, atol=0.0)


def test_float16_is_for_devices_that_have_it_and_balancers_of_whole_losses(config, monkeypatch):
    half = TrainerConfig(accelerator="cpu", precision="16-mixed")
    monkeypatch.setattr(assembly, "has_float16", lambda on_gpu: False)
    with pytest.raises(InputError, match="does not multiply float16: use bf16-mixed or 32-true"):
        check_machine(half)
    monkeypatch.setattr(assembly, "has_float16", lambda on_gpu: True)
    check_machine(half)
    for name, accumulate, refused in (
        ("uniform", 2, False), ("uncertainty", 2, False), ("moving_average", 1, False),
        ("moving_average", 2, True), ("pcgrad", 1, True), ("gradnorm", 1, True),
    ):  # fmt: skip
        settings = dataclasses.replace(
            config, pruning="none", trainer=half, balancer=BalancerConfig(name),
            optimizer=OptimizerConfig(accumulate=accumulate),
        )  # fmt: skip
        if refused:
            with pytest.raises(InputError, match=f"16-mixed scales the loss, and balancer {name} takes"):
                check_settings(settings)
        else:
            check_settings(settings)

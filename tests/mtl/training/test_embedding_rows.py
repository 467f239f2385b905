"""Rows of an embedding updated as they are read, against AdamW on the whole of it."""

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from mtl.config.schema import BatchConfig
from mtl.corpora.formats.jsonl import read_jsonl
from mtl.models.batches import BatchLoader, examples
from mtl.models.joint import JointModel
from mtl.tasks.catalogue import TASKS
from mtl.training.assembly import quiet_lightning
from mtl.training.balancers import Uniform
from mtl.training.data import EpochBatches
from mtl.training.on_cpu import EmbeddingRows, sole_embedding
from mtl.training.step import JointTraining
from tests.mtl import tiny

ROWS, HIDDEN = 60, 8


def batches(number: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Ids and directions of the loss; later batches read rows that earlier ones did not."""
    generator = torch.Generator().manual_seed(7)
    for step in range(number):
        ids = torch.randint(0, 5 + min(step, 45), (2, 4), generator=generator)
        yield ids, torch.randn(2, 4, HIDDEN, generator=generator)


def optimizer_of(embedding: nn.Embedding) -> torch.optim.AdamW:
    return torch.optim.AdamW(embedding.parameters(), lr=0.01, weight_decay=0.1, fused=True)


def train(
    embedding: nn.Embedding, optimizer: torch.optim.AdamW, steps: range, *, by_rows: bool
) -> EmbeddingRows | None:
    """These updates of 40: with a falling rate, scaled gradients, two batches an update, one left out."""
    rows = EmbeddingRows(embedding, optimizer) if by_rows else None
    made = list(batches(2 * steps.stop))
    for step in steps:
        optimizer.param_groups[0]["lr"] = 0.01 * (1 - step / 50)
        for ids, direction in made[2 * step : 2 * step + 2]:
            (embedding(ids) * direction).sum().backward()
        if rows is not None:
            rows.take_gradient()
        vars(optimizer).update(grad_scale=torch.tensor(1.7), found_inf=torch.tensor(float(step == 3)))
        optimizer.step()
        optimizer.zero_grad()
    return rows


@pytest.fixture
def pair() -> tuple[nn.Embedding, nn.Embedding]:
    torch.manual_seed(1)
    first = nn.Embedding(ROWS, HIDDEN, padding_idx=0)
    return first, copy.deepcopy(first)


@pytest.mark.parametrize("updates", [1, 5, 40])
def test_rows_get_the_updates_of_adamw(pair: tuple[nn.Embedding, nn.Embedding], updates: int) -> None:
    """Weights, moments and the number of updates; rows never read, and read again late, are among them."""
    whole, by_rows = pair
    optimizers = [optimizer_of(embedding) for embedding in pair]
    train(whole, optimizers[0], range(updates), by_rows=False)
    rows = train(by_rows, optimizers[1], range(updates), by_rows=True)
    assert rows is not None
    if updates == 40:
        assert not torch.allclose(whole.weight, by_rows.weight, atol=1e-6)  # rows wait
    expected, state = optimizers[0].state_dict(), optimizers[1].state_dict()
    assert torch.allclose(whole.weight, by_rows.weight, atol=1e-6)
    for name in ("step", "exp_avg", "exp_avg_sq"):
        assert torch.allclose(expected["state"][0][name], state["state"][0][name], atol=1e-6), name
    rows.close()
    assert not by_rows.sparse
    assert not by_rows._forward_pre_hooks


def test_what_is_read_is_up_to_date(pair: tuple[nn.Embedding, nn.Embedding]) -> None:
    """A forward pass, and a state_dict, between updates."""
    whole, by_rows = pair
    train(whole, optimizer_of(whole), range(20), by_rows=False)
    train(by_rows, optimizer_of(by_rows), range(20), by_rows=True)
    ids = torch.tensor([[3, 50, 59]])
    with torch.inference_mode():
        assert torch.allclose(whole(ids), by_rows(ids), atol=1e-6)
    assert not torch.allclose(whole.weight, by_rows.weight, atol=1e-6)
    assert torch.allclose(whole.weight, nn.Sequential(by_rows).state_dict()["0.weight"], atol=1e-6)


def test_a_resumed_run_is_the_same_bit_for_bit(pair: tuple[nn.Embedding, nn.Embedding]) -> None:
    """Through the states that a checkpoint has."""
    straight, stopped = pair
    rows = train(straight, optimizer_of(straight), range(30), by_rows=True)
    optimizer = optimizer_of(stopped)
    train(stopped, optimizer, range(12), by_rows=True)
    resumed = nn.Embedding(ROWS, HIDDEN, padding_idx=0)
    resumed.load_state_dict(stopped.state_dict())
    restored = optimizer_of(resumed)
    restored.load_state_dict(optimizer.state_dict())
    finished = train(resumed, restored, range(12, 30), by_rows=True)
    for each in (rows, finished):
        assert each is not None
        each.catch_up()
    assert torch.equal(straight.weight, resumed.weight)


def test_which_embeddings_can_have_sparse_gradients() -> None:
    """Not tied ones, frozen ones, those with a norm to keep, and modules that are something else."""
    plain, tied, frozen = nn.Embedding(4, 2), nn.Embedding(4, 2), nn.Embedding(4, 2)
    head = nn.Linear(2, 4, bias=False)
    head.weight = tied.weight
    frozen.weight.requires_grad_(False)
    model = nn.ModuleList([plain, tied, frozen, head])
    assert sole_embedding(model, plain) is plain
    for other in (tied, frozen, nn.Embedding(4, 2, max_norm=1.0), nn.Embedding(4, 2).double(), head):
        assert sole_embedding(model, other) is None


@pytest.mark.parametrize("accumulated", [1, 2])
def test_a_training_has_the_losses_of_a_dense_embedding(
    toy: Path, monkeypatch: pytest.MonkeyPatch, accumulated: int
) -> None:
    """Of the third epoch, on batches of three sentences; without the updates of rows they are others.

    Weights say less: where a gradient is rounding, AdamW makes whole steps of it.
    """
    sentences = read_jsonl(toy / "train.jsonl")[:12]
    tasks = {name: TASKS[name]() for name in ("pos", "dep")}
    labels = {name: task.labels(sentences) for name, task in tasks.items()}

    def losses() -> dict[str, float]:
        pl.seed_everything(1, verbose=False)
        model = JointModel(tiny.encoder("bert", dtype=torch.float32), tasks, labels)
        corpus = examples(sentences, model.encoder.tokenizer, model.tasks, labels)
        steps = EpochBatches(BatchConfig(sentences=3), 1, corpus, tuple(tasks))(0)
        trainer = pl.Trainer(
            accelerator="cpu", max_epochs=3, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=accumulated,
        )  # fmt: skip
        module = JointTraining(model, Uniform(), updates=12, encoder_lr=1e-3, clip=0.5)
        with quiet_lightning():
            trainer.fit(module, BatchLoader(corpus, model.encoder.tokenizer, model.tasks, steps))
        return module.mean_losses()

    by_rows = losses()
    with monkeypatch.context() as patch:
        patch.setattr("mtl.training.step.sole_embedding", lambda model, embedding: None)
        assert by_rows == pytest.approx(losses(), rel=1e-4)
    monkeypatch.setattr(EmbeddingRows, "_update", lambda self, gradient: None)
    assert by_rows != pytest.approx(losses(), rel=1e-4)

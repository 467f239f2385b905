"""A joint step starts few operations on a device that is not the CPU, and few for each further word."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mtl.corpora.formats.jsonl import read_jsonl
from mtl.models.batches import Batch, collate, examples
from mtl.models.joint import JointModel
from mtl.tasks.catalogue import STRUCTURED
from mtl.tasks.decoders import con, crf
from mtl.tasks.decoders.crf import BioCrf
from tests.launches import Launches
from tests.mtl import tiny

DECODERS, WIDTH, WORD = 540, 6, 3
"""Most operations of five decoders, their losses and gradients beyond those of the encoder, but for the
operations of each further word: for constituents of its number of words, and for its roles."""


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU computes structures as other devices do."""
    monkeypatch.setattr(con, "_fastest", lambda scores: con.inside_outside_by_tensors)
    monkeypatch.setattr(crf, "_partition", crf.log_partition_by_tensors)


def launches(job: Callable[[], object]) -> Launches:
    with Launches() as counted:
        job()
    return counted


def joint(toy: Path) -> tuple[JointModel, Batch]:
    sentences = read_jsonl(toy / "train.jsonl")[:6]
    encoder = tiny.encoder("bert", dtype=torch.float32)
    tasks = {task.name: task() for task in STRUCTURED}
    labels = {name: task.labels(sentences) for name, task in tasks.items()}
    model = JointModel(encoder, tasks, labels).train()
    made = examples(sentences, encoder.tokenizer, tasks, labels)
    return model, collate(made, encoder.tokenizer, tasks)


def test_of_five_tasks(toy: Path, as_on_a_gpu):
    model, batch = joint(toy)

    def encoder() -> None:
        model.encoder(batch.subwords).sum().backward()

    def step() -> None:
        torch.stack([*model.losses(batch, model(batch)).values()]).sum().backward()

    of_encoder, of_step = launches(encoder), launches(step)
    words = batch.mask.shape[1]
    assert of_step.total() - of_encoder.total() - (WIDTH + WORD) * words <= DECODERS, of_step.by_name


def test_of_a_further_word():
    def roles(words: int) -> int:
        model, scores = BioCrf(4), torch.randn(5, words, 9, requires_grad=True)
        lengths = torch.full((5,), words)
        return launches(
            lambda: crf.log_partition_by_tensors(scores, lengths, model.transitions()).sum().backward()
        ).total()

    def constituents(words: int) -> int:
        scores, lengths = torch.randn(5, words + 1, words + 1), torch.full((5,), words)
        return launches(lambda: con.inside_outside_by_tensors(scores, lengths)).total()

    assert roles(20) - roles(10) == 10 * WORD
    assert constituents(20) - constituents(10) == 10 * WIDTH

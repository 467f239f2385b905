"""Masks of several tasks in one pass: the same losses and gradients as task after task."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from mtl.analysis.importance.gradients import of_tasks
from mtl.corpora.formats.jsonl import read_jsonl
from mtl.heads.gates import HeadGates
from mtl.models.batches import Batch, collate, examples
from mtl.models.joint import JointModel
from mtl.tasks.catalogue import STRUCTURED
from tests.mtl import tiny


@pytest.fixture(scope="module")
def model(toy: Path) -> JointModel:
    """Five tasks on a tiny random encoder, in evaluation mode (no dropout), with scattered gates."""
    torch.manual_seed(0)
    encoder = tiny.encoder("bert", dtype=torch.float32, word_dropout=0.0)
    tasks = {task.name: task() for task in STRUCTURED}
    sentences = read_jsonl(toy / "train.jsonl")
    labels = {name: task.labels(sentences) for name, task in tasks.items()}
    gates = HeadGates(encoder.layers, encoder.heads, masks=tuple(tasks), init_mean=0.0, init_std=2.0)
    return JointModel(encoder, tasks, labels, gates).eval()


@pytest.fixture(scope="module")
def batch(model: JointModel, toy: Path) -> Batch:
    """Sentences of which some lack some layers."""
    sentences = read_jsonl(toy / "train.jsonl")[:12]
    sentences[1] = dataclasses.replace(sentences[1], frames=None, tree=None)
    sentences[4] = dataclasses.replace(sentences[4], entities=None)
    sentences[7] = dataclasses.replace(sentences[7], arcs=None, tags=None, upos=None)
    tokenizer = model.encoder.tokenizer
    return collate(examples(sentences, tokenizer, model.tasks, model.labels), tokenizer, model.tasks)


def single(batch: Batch, name: str) -> Batch:
    return of_tasks(batch, [name])


def gradients(model: JointModel) -> dict[str, torch.Tensor]:
    return {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def test_one_pass_over_all_tasks_equals_a_pass_per_task(model, batch):
    model.zero_grad()
    together = model.losses(batch, model(batch))
    sum(together.values()).backward()
    joint = gradients(model)
    model.zero_grad()
    for name in model.tasks:
        only = single(batch, name)
        alone = model.losses(only, model(only))[name]
        alone.backward()
        torch.testing.assert_close(alone, together[name], rtol=1e-5, atol=1e-5)
    parted = gradients(model)
    assert joint.keys() == parted.keys()
    for name, gradient in joint.items():
        torch.testing.assert_close(gradient, parted[name], rtol=1e-5, atol=1e-5)


def test_each_task_runs_under_its_own_mask(model, batch):
    masks = model.gates.gate()
    for name in model.tasks:
        scale = masks[model.scales.index(name)]
        words = model.encoder(batch.subwords, scale)[batch.rows[name]]
        expected = model.decoder(name)(words, batch.mask[batch.rows[name]])
        got = model(batch)[name].scores
        first = expected if isinstance(expected, torch.Tensor) else expected[0]
        torch.testing.assert_close(got if isinstance(got, torch.Tensor) else got[0], first)


def test_a_shared_mask_of_ones_changes_nothing(model, batch):
    plain = JointModel(model.encoder, model.tasks, model.labels)
    plain.decoders = model.decoders
    plain.eval()
    ones = torch.ones(model.encoder.layers, model.encoder.heads)
    bare = plain.losses(batch, plain(batch))
    masked = plain.losses(batch, plain(batch, ones))
    for name, loss in bare.items():
        assert torch.equal(loss, masked[name])

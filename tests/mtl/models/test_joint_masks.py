"""Masks of several tasks in one pass: the same losses and gradients as task after task."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from mtl.analysis.importance import of_tasks
from mtl.corpora.formats.jsonl import read_jsonl
from mtl.heads.gates import HeadGates
from mtl.models.batches import Batch, collate, examples
from mtl.models.joint import JointModel
from mtl.tasks.catalogue import STRUCTURED, TASKS
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


@pytest.mark.parametrize("scope", ["per_task", "shared"])
def test_a_mix_per_task_reads_in_one_pass_what_each_task_would_with_its_own(scope, toy, tmp_path):
    torch.manual_seed(1)
    sentences = read_jsonl(toy / "train.jsonl")[:4]
    tasks = {name: TASKS[name]() for name in ("pos", "dep")}
    labels = {name: task.labels(sentences) for name, task in tasks.items()}
    encoder = tiny.encoder("bert", dtype=torch.float32, word_dropout=0.0, layers="mix_per_task")
    masks = tuple(tasks) if scope == "per_task" else ("shared",)
    gates = HeadGates(encoder.layers, encoder.heads, masks=masks, init_mean=0.0, init_std=2.0)
    model = JointModel(encoder, tasks, labels, gates).eval()
    torch.nn.init.normal_(encoder.mix)
    plain = tiny.encoder("bert", dtype=torch.float32, word_dropout=0.0, layers="mix").eval()
    plain.transformer.load_state_dict(encoder.transformer.state_dict())
    batch = collate(examples(sentences, encoder.tokenizer, tasks, labels), encoder.tokenizer, tasks)
    passes = []
    encoder.transformer.register_forward_hook(lambda *_: passes.append(1))
    scores = model(batch)
    assert len(passes) == 1
    for number, name in enumerate(tasks):
        plain.mix.data.copy_(encoder.mix[number])
        words = plain(batch.subwords, gates.gate()[model.scales.index(name)])
        expected = model.decoder(name)(words, batch.mask)
        expected, got = ((each if name == "pos" else each.arcs) for each in (expected, scores[name].scores))
        torch.testing.assert_close(got, expected)
    model.losses(batch, scores)["pos"].backward()
    assert encoder.mix.grad[1].abs().sum() == 0 < encoder.mix.grad[0].abs().sum()

    model.save(tmp_path / "model")
    again = JointModel.from_pretrained(tmp_path / "model")
    torch.testing.assert_close(again.encoder.mix, encoder.mix)
    saved = json.loads((tmp_path / "model" / "encoder.json").read_bytes())["mix"]
    assert list(saved) == ["pos", "dep"]
    torch.testing.assert_close(torch.tensor(saved["dep"]), encoder.mix[1].detach())
    again.encoder.serve({"dep": tasks["dep"], "ner": TASKS["ner"]()})  # a part of the tasks, and a new one
    expected = torch.stack((encoder.mix[1], torch.zeros_like(encoder.mix[0])))
    torch.testing.assert_close(again.encoder.mix, expected)

"""Losses by graphs are those of padded passes; a stand-in takes the place of a GPU's graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from mtl.corpora.formats.jsonl import read_jsonl
from mtl.heads.gates import HeadGates
from mtl.models.batches import Batch, collate, examples
from mtl.models.joint import JointModel
from mtl.models.pass_graphs import PassGraphs
from mtl.tasks.catalogue import STRUCTURED
from mtl.tasks.decoders.decoder import SharedDropout
from mtl.tasks.sentence import Arc, Graph, Sentence
from mtl.tasks.sentence_tasks import Cola, Stsb
from mtl.tasks.structured import Con, Dep, Graphs, Ner, Pos, Srl
from mtl.tasks.task import Task
from tests.launches import pass_graphs
from tests.mtl import tiny
from tests.mtl.training import test_launches

as_on_a_gpu = test_launches.as_on_a_gpu
TASKS_OF_WORDS = (
    Pos(), Ner(), Ner(decoder="bio"), Dep(), Dep(decoder="vi"), Con(), Srl(),
    Graphs(), Graphs(decoder="vi"),
)  # fmt: skip
WAIT = (Dep(decoder="crf"), Dep(decoder="crf2o"), Srl(decoder="spans"))
"""Their losses look at numbers, or compute sums on the host."""
SCOPES = (None, "shared", "per_task")


def lacking(toy: Path) -> list[Sentence]:
    """Sentences of which some lack some layers, or have them without any item."""
    sentences = read_jsonl(toy / "train.jsonl")[:9]
    for place, one in enumerate(sentences):
        chain = [Arc(word + 1, word, "ab"[word % 2]) for word in range(len(one) if place != 8 else 0)]
        sentences[place] = one.with_layers({"deps": Graph(tuple(chain))})
    less: dict[int, dict[str, Any]] = {
        1: {"frames": None, "tree": None, "deps": None},
        4: {"entities": None},
        7: {"arcs": None, "tags": None},
        8: {"entities": (), "frames": ()},
    }
    for place, layers in less.items():
        sentences[place] = sentences[place].with_layers(layers)
    return sentences


def made(
    tasks: Mapping[str, Task], sentences: list[Sentence], scope: str | None = None, **settings: Any
) -> JointModel:
    """A model of these tasks, with a mask of this scope."""
    torch.manual_seed(0)
    encoder = tiny.encoder("bert", **{"dtype": torch.float32} | settings)
    labels = {name: task.labels(sentences) for name, task in tasks.items()}
    gates = None
    if scope is not None:
        names = tuple(tasks) if scope == "per_task" else ("shared",)
        gates = HeadGates(encoder.layers, encoder.heads, masks=names, init_mean=0.0, init_std=2.0)
    model = JointModel(encoder, tasks, labels, gates).train()
    tiny.shake(model.decoders)
    return model.to(encoder.transformer.dtype)


def batched(model: JointModel, sentences: list[Sentence]) -> Batch:
    tokenizer = model.encoder.tokenizer
    made = examples(sentences, tokenizer, model.tasks, model.labels)
    return collate(made, tokenizer, model.tasks, rounded=True)


def still(model: JointModel) -> JointModel:
    """The model without anything that is drawn."""
    model.encoder.word_dropout = 0.0
    for module in model.modules():
        if isinstance(module, nn.Dropout | SharedDropout):
            module.p = 0.0
    return model


def one_step(model: JointModel, batch: Batch, graphs: PassGraphs | None) -> list[Tensor]:
    """The losses and gradients of all weights; as they are, or in rounded shapes."""
    model.zero_grad()
    torch.manual_seed(3)
    scale = model.scales.in_pass()
    if graphs is None:
        losses = model.losses(batch, model(batch, scale))
    else:
        with graphs.in_use():
            losses = model.losses_by_graphs(batch, scale)
    torch.stack([*losses.values()]).sum().backward()
    return [*losses.values(), *(one.grad for one in model.parameters() if one.grad is not None)]


@pytest.fixture
def in_float64() -> Iterator[None]:
    """The mask of attention is one of float64, too."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("task", [*TASKS_OF_WORDS, *WAIT], ids=repr)
def test_every_decoder_has_its_loss(task: Task, toy: Path, as_on_a_gpu: None, in_float64: None) -> None:
    """Within rounding; those that wait for the device say so, and do without."""
    sentences = lacking(toy)
    if isinstance(task, Dep):
        sentences = [one for one in sentences if len(one) < 12]
    model = still(made({"task": task}, sentences, dtype=torch.float64))
    batch, said = batched(model, sentences), list[str]()
    graphs = PassGraphs(pass_graphs, seldom=0, say=said.append)
    expected = one_step(model, batch, None)
    for _ in range(2):
        torch.testing.assert_close(one_step(model, batch, graphs), expected, rtol=1e-9, atol=1e-9)
    if task in WAIT:
        assert graphs.captured == 1, said
        [line] = said
        assert line.startswith("trainer.cuda_graphs captures no passes of the decoder of task (")
    else:
        assert (graphs.captured, graphs.passes, said) == (2, 4, [])


@pytest.mark.parametrize("pooling", ["mean", "first", "attention"])
def test_tasks_on_sentences_beside_words(pooling: str, as_on_a_gpu: None) -> None:
    sentences = [
        Sentence(
            ("the", "dog", "saw")[:size],
            {"tags": ("a", "b", "a")[:size], "cola": "01"[size % 2], "stsb": 2.0 * size},
        )
        for size in (1, 2, 3, 3, 2)
    ]
    tasks = {"pos": Pos(), "cola": Cola(pooling=pooling), "stsb": Stsb()}
    model = still(made(tasks, sentences))
    batch, graphs = batched(model, sentences), PassGraphs(pass_graphs, seldom=0)
    expected = one_step(model, batch, None)
    for _ in range(2):
        torch.testing.assert_close(one_step(model, batch, graphs), expected, rtol=1e-4, atol=1e-5)
    assert graphs.captured == 4


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("layers", ["last", "mix_per_task"])
def test_padding_changes_five_tasks_by_rounding_alone(
    scope: str | None, layers: str, toy: Path, as_on_a_gpu: None, in_float64: None
) -> None:
    assert difference(scope, toy, layers=layers, dtype=torch.float64) <= 1e-12


@pytest.mark.parametrize("scope", SCOPES)
def test_padding_changes_five_tasks_by_rounding_alone_under_autocast(
    scope: str | None, toy: Path, as_on_a_gpu: None
) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert difference(scope, toy) <= 0.03


def difference(scope: str | None, toy: Path, **settings: Any) -> float:
    """By how much padding changes losses and gradients, as a share of their norm: the most in two batches."""
    sentences = lacking(toy)
    model = still(made({task.name: task() for task in STRUCTURED}, sentences, scope, **settings))
    graphs, most = PassGraphs(pass_graphs, seldom=0), 0.0
    for some in (sentences, sentences[:3]):
        batch = batched(model, some)
        expected, found = (
            torch.cat([one.detach().flatten() for one in one_step(model, batch, given)])
            for given in (None, graphs)
        )
        most = max(most, ((found - expected).norm() / expected.norm()).item())
    assert graphs.captured == graphs.passes == 12
    return most


@pytest.mark.parametrize(
    "scope", [None, *(pytest.param(scope, marks=pytest.mark.slow) for scope in SCOPES[1:])]
)
def test_steps_by_graphs_are_padded_steps_to_the_last_bit(
    scope: str | None, toy: Path, as_on_a_gpu: None
) -> None:
    """With dropout of all kinds, shapes captured later, updates, and gradients of each task alone."""
    sentences, found = lacking(toy), []
    for seldom in (99, 1):
        model = made({task.name: task() for task in STRUCTURED}, sentences, scope)
        batches, graphs = (
            (batched(model, sentences), batched(model, sentences[2:5])),
            PassGraphs(pass_graphs, seldom),
        )
        weights = [*model.encoder.transformer.parameters()]
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        steps: list[Any] = []
        for number in (0, 0, 1, 0, 1):
            optimizer.zero_grad()
            with graphs.in_use():
                losses = model.losses_by_graphs(batches[number], model.scales.in_pass())
            for loss in losses.values():
                steps += torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
            torch.stack([*losses.values()]).sum().backward()
            steps += [*losses.values()]
            optimizer.step()
        found.append([*(one for one in steps if one is not None), *model.parameters(), torch.rand(1)])
    assert (graphs.captured, graphs.passes) == (12, 18)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_task_that_allows_no_padding_is_not_captured(toy: Path, as_on_a_gpu: None) -> None:
    @dataclass(frozen=True)
    class Alone(Pos):
        in_rounded_shapes: ClassVar[bool] = False

    sentences = lacking(toy)
    model = still(made({"pos": Pos(), "alone": Alone()}, sentences))
    batch, graphs = batched(model, sentences), PassGraphs(pass_graphs, seldom=0)
    expected = one_step(model, batch, None)
    torch.testing.assert_close(one_step(model, batch, graphs), expected, rtol=1e-4, atol=1e-5)
    assert graphs.captured == 2  # the encoder and POS


@pytest.mark.parametrize("case", ["observed", "evaluation", "frozen decoders"])
def test_other_passes_have_the_losses_of_the_batch_as_it_is(case: str, toy: Path, as_on_a_gpu: None) -> None:
    sentences = lacking(toy)
    model = made({"pos": Pos(), "srl": Srl()}, sentences)
    (model if case == "evaluation" else model.decoders).train(case == "observed")
    still(model)
    batch, graphs = batched(model, sentences), PassGraphs(pass_graphs, seldom=0, say=lambda line: None)
    expected = one_step(model, batch, None)
    with model.encoder.tap.observe() if case == "observed" else torch.enable_grad():
        found = one_step(model, batch, graphs)
    assert graphs.captured == (case == "frozen decoders")  # the encoder
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_the_gradient_of_a_loss_is_computed_for_its_decoder_and_the_encoder(
    toy: Path, as_on_a_gpu: None
) -> None:
    """Balancers ask for the gradients of each task, and no pass goes back through the other decoders."""
    sentences = read_jsonl(toy / "train.jsonl")[:6]
    model = made({task.name: task for task in (Pos(), Dep(), Con())}, sentences)
    replays: list[object] = []

    def capture(forward: Any, backward: Any) -> Any:
        there, output, back = pass_graphs(forward, backward)
        return there, output, lambda: replays.append(back())

    with PassGraphs(capture, seldom=0).in_use():
        losses = model.losses_by_graphs(batched(model, sentences))
    for name, loss in losses.items():
        weights = dict(model.decoders.named_parameters())
        found = torch.autograd.grad(loss, [*weights.values()], retain_graph=True, allow_unused=True)
        asked = {key.partition(".")[0] for key, one in zip(weights, found, strict=True) if one is not None}
        assert asked == {name}
        torch.autograd.grad(loss, [*model.encoder.parameters()], retain_graph=True, allow_unused=True)
    assert len(replays) == 3 * len(losses)

"""What holds for the decoders of all tasks: padding, gradients, learning, and no waiting for a device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mtl.tasks.sentence import Arc, Arcs, Frame, Graph, Sentence, Span
from mtl.tasks.structured import Con, Dep, Graphs, Ner, Pos, Srl
from mtl.tasks.task import Task
from mtl.tasks.tree import Tree


def _sentence(tree: str, arcs: Arcs, deps: list[Arc], entities: list[Span], frames: list[Frame]) -> Sentence:
    parsed = Tree.parse(tree)
    leaves = list(parsed.leaves())
    return Sentence(
        tuple(str(leaf.children) for leaf in leaves),
        tags=tuple(leaf.label for leaf in leaves),
        tree=parsed,
        arcs=arcs,
        deps=Graph(tuple(deps)),
        entities=tuple(entities),
        frames=tuple(frames),
    )


SENTENCES = [
    _sentence(
        "(TOP (S (NP (PRP They)) (VP (VBD saw) (NP (PRP it)))))",
        Arcs((2, 0, 2), ("nsubj", "root", "obj")),
        [Arc(1, 2, "nsubj"), Arc(2, 0, "root"), Arc(3, 2, "obj"), Arc(3, 0, "root")],
        [Span(0, 1, "PER"), Span(2, 3, "LOC")],
        [Frame(1, None, (Span(0, 1, "A0"), Span(2, 3, "A1")))],
    ),
    _sentence("(TOP (S (VP (VB Go))))", Arcs((0,), ("root",)), [Arc(1, 0, "root")], [], []),
    _sentence(
        "(TOP (NP (D a) (J b) (N c)) (UH d) (NP (N e)))",
        Arcs((3, 1, 0, 5, 3), ("det", "amod", "root", "obj", "obj:x")),
        [Arc(1, 2, "obj"), Arc(2, 1, "acl"), Arc(3, 1, "obj"), Arc(3, 5, "obj"), Arc(5, 0, "root")],
        [Span(1, 5, "ORG")],
        [Frame(1, None, (Span(2, 4, "A1"),)), Frame(4, None, (Span(2, 4, "A0"),))],
    ),
]
WIDTH, HIDDEN = 5, 4
MASK = torch.arange(WIDTH) < torch.tensor([len(sentence) for sentence in SENTENCES])[:, None]
TASKS: dict[str, Task] = {
    "tags": Pos(dropout=0.0),
    "spans": Ner(dim=6, dropout=0.0),
    "tagged spans": Ner(decoder="bio", dropout=0.0),
    "trees": Dep(arc_dim=6, relation_dim=5, dropout=0.0),
    "graphs": Graphs(arc_dim=6, label_dim=5, dropout=0.0, interpolation=0.3, connected=True),
    "constituents": Con(span_dim=6, label_dim=5, dropout=0.0),
    "frames": Srl(dim=6, reach=3, dropout=0.0),
}
LEARNERS: dict[str, tuple[Task, float, int]] = {
    "tags": (Pos(dropout=0.1), 0.03, 60),
    "spans": (Ner(dim=16, dropout=0.1), 0.03, 80),
    "tagged spans": (Ner(decoder="bio", dropout=0.1), 0.03, 60),
    "trees": (Dep(arc_dim=16, relation_dim=16, dropout=0.1), 0.01, 80),
    "graphs": (Graphs(arc_dim=16, label_dim=16, dropout=0.1), 0.03, 40),
    "constituents": (Con(span_dim=16, label_dim=16, dropout=0.1), 0.01, 80),
    "frames": (Srl(dim=24, reach=3, dropout=0.1), 0.03, 80),
}
"""For each a learning rate and a number of steps."""


def _decoder(task: Task) -> Any:
    torch.manual_seed(0)
    decoder = task.new_decoder(HIDDEN, task.labels(SENTENCES)).double()
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return decoder


def _batch(task: Task, sentences: list[Sentence] = SENTENCES, width: int = WIDTH) -> Any:
    labels = task.labels(SENTENCES)
    return task.collate([task.targets(sentence, labels) for sentence in sentences], width)


def _words(requires_grad: bool = False) -> Tensor:
    draw = torch.Generator().manual_seed(1)
    words = torch.randn(3, WIDTH, HIDDEN, generator=draw, dtype=torch.double)
    return words.requires_grad_(requires_grad)


@pytest.mark.parametrize("name", TASKS)
def test_padding_changes_nothing(name: str) -> None:
    task = TASKS[name]
    decoder, words = _decoder(task), _words()
    together = decoder(words, MASK)
    losses, decoded = decoder.loss(together, _batch(task), MASK), decoder.decode(together, MASK)
    for row, sentence in enumerate(SENTENCES):
        mask = torch.ones(1, len(sentence), dtype=torch.bool)
        scores = decoder(words[row : row + 1, : len(sentence)], mask)
        alone = _batch(task, [sentence], len(sentence))
        torch.testing.assert_close(decoder.loss(scores, alone, mask)[0], losses[row])
        assert decoder.decode(scores, mask) == [decoded[row]]


@pytest.mark.parametrize("name", TASKS)
def test_gradient_is_that_of_finite_differences(name: str) -> None:
    decoder, batch = _decoder(TASKS[name]), _batch(TASKS[name])
    assert torch.autograd.gradcheck(
        lambda words: decoder.loss(decoder(words, MASK), batch, MASK), (_words(requires_grad=True),)
    )


@pytest.mark.parametrize("name", LEARNERS)
def test_it_learns_what_is_there_also_in_bfloat16(name: str) -> None:
    task, rate, steps = LEARNERS[name]
    torch.manual_seed(0)
    decoder = task.new_decoder(24, task.labels(SENTENCES))
    words, batch = torch.randn(3, WIDTH, 24), _batch(task)
    optimizer = torch.optim.Adam(decoder.parameters(), rate)
    for _ in range(steps):
        with torch.autocast("cpu", torch.bfloat16):
            losses = decoder.loss(decoder(words, MASK), batch, MASK)
        assert losses.dtype == torch.float32
        optimizer.zero_grad()
        losses.sum().backward()
        optimizer.step()
    decoder.eval()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        decoded = decoder.decode(decoder(words.bfloat16(), MASK), MASK)
    bare = [sentence.with_layers({task.layer: None}) for sentence in SENTENCES]
    assert not any(map(task.annotated, bare))
    assert [task.annotate(*pair) for pair in zip(bare, decoded, strict=True)] == SENTENCES
    metric = task.metric()
    metric.update(decoded, SENTENCES)
    scores = metric.compute()
    assert set(scores.values()) == {100.0}
    named = {name for name in task.scores if not name.startswith(("given_", "sense/")) and name[-1] != "/"}
    assert named <= set(scores)


@pytest.mark.parametrize("name", [name for name in TASKS if name not in ("tagged spans", "frames")])
def test_no_step_waits_for_the_device(name: str) -> None:
    # "meta" tensors hold no values: whatever would wait for one on the host raises. The CRF of tags turns
    # autocast off, which knows no such device.
    task = TASKS[name]
    decoder = task.new_decoder(HIDDEN, task.labels(SENTENCES)).to("meta")
    words, mask = torch.randn(3, WIDTH, HIDDEN, device="meta", requires_grad=True), MASK.to("meta")
    targets = _batch(task)
    batch = type(targets)(*(column.to("meta") for column in targets))
    losses = decoder.loss(decoder(words, mask), batch, mask)
    losses.sum().backward()
    assert losses.shape == (3,)
    assert words.grad is not None
    assert words.grad.shape == words.shape

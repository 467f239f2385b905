"""The unnormalised score of an annotation, for every structured task."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mtl.corpora.formats.jsonl import read_jsonl
from mtl.tasks.catalogue import STRUCTURED, TASKS
from mtl.tasks.decoders.classifier import SentenceBatch, SentenceClassifier
from mtl.tasks.decoders.decoder import Decoder
from mtl.tasks.sentence import Sentence, Span
from mtl.tasks.task import UNKNOWN, Labels

FEW = 6


class Case:
    """A decoder with random weights, the scores of a few sentences, and their targets."""

    def __init__(self, name: str, toy: Path) -> None:
        torch.manual_seed(0)
        name, _, decoder = name.partition(" ")
        # Everything is a candidate: what is pruned has no part in the loss.
        ratios = {"argument_ratio": 99.0, "predicate_ratio": 99.0} if decoder == "spans" else {}
        self.task = TASKS[name](**({"decoder": decoder, **ratios} if decoder else {}))
        self.sentences = list(read_jsonl(toy / "test.jsonl"))[:FEW]
        self.labels = self.task.labels(self.sentences)
        self.decoder: Decoder = self.task.new_decoder(8, self.labels).double().eval()
        for parameter in self.decoder.parameters():
            torch.nn.init.normal_(parameter, std=0.4)
        width = max(map(len, self.sentences))
        lengths = torch.tensor([len(sentence) for sentence in self.sentences])
        self.mask = torch.arange(width) < lengths[:, None]
        self.words = torch.randn(FEW, width, 8, dtype=torch.float64)
        with torch.no_grad():
            self.scores = self.decoder(self.words, self.mask)

    def targets(self, sentences: list[Sentence]) -> Any:
        made = [self.task.targets(sentence, self.labels) for sentence in sentences]
        return self.task.collate(made, self.mask.shape[1])

    def score(self, sentences: list[Sentence], label: int | None = None) -> Tensor:
        return self.decoder.structure_score(self.scores, self.targets(sentences), self.mask, label).score

    def loss(self, sentences: list[Sentence]) -> Tensor:
        return self.decoder.loss(self.scores, self.targets(sentences), self.mask)


def other_labels(name: str, sentence: Sentence, labels: Labels) -> Sentence:
    """The same structure with every label moved on by one in the inventory."""

    def other(label: str) -> str:
        return labels[(labels.index(label) + 1) % len(labels)]

    if name == "pos":
        assert sentence.tags is not None
        return replace(sentence, tags=tuple(map(other, sentence.tags)))
    if name.startswith("ner"):
        assert sentence.entities is not None
        return replace(sentence, entities=tuple(Span(a, b, other(kind)) for a, b, kind in sentence.entities))
    if name == "dep":
        assert sentence.arcs is not None
        relations = tuple(map(other, sentence.arcs.relations))
        return replace(sentence, arcs=replace(sentence.arcs, relations=relations))
    assert sentence.frames is not None
    frames = [
        replace(frame, arguments=tuple(Span(a, b, other(role)) for a, b, role in frame.arguments))
        for frame in sentence.frames
    ]
    return replace(sentence, frames=tuple(frames))


@pytest.mark.parametrize("name", ["pos", "ner", "ner bio", "dep", "srl", "srl spans"])
def test_between_labellings_of_one_structure_score_and_loss_differ_alike(name: str, toy: Path) -> None:
    """The loss is log Z - score, and Z is that of the structure."""
    case = Case(name, toy)
    others = [other_labels(name, sentence, case.labels) for sentence in case.sentences]
    gained = case.score(others) - case.score(case.sentences)
    lost = case.loss(case.sentences) - case.loss(others)
    torch.testing.assert_close(gained, lost)
    assert (gained != 0).any()


@pytest.mark.parametrize("name", ["pos", "ner", "dep", "con", "srl spans"])
def test_the_scores_of_all_labels_sum_to_the_whole(name: str, toy: Path) -> None:
    case = Case(name, toy)
    whole = case.decoder.structure_score(case.scores, case.targets(case.sentences), case.mask)
    parts = [
        case.decoder.structure_score(case.scores, case.targets(case.sentences), case.mask, label)
        for label in range(len(case.labels))
    ]
    torch.testing.assert_close(sum(part.score for part in parts), whole.score)
    assert torch.equal(sum((part.items for part in parts), torch.zeros_like(whole.items)), whole.items)
    assert [sum(case.task.items(sentence).values()) > 0 for sentence in case.sentences] == (
        whole.items > 0
    ).tolist()


@pytest.mark.parametrize("name", [task.name for task in STRUCTURED])
def test_labels_that_training_never_saw_have_no_score(name: str, toy: Path) -> None:
    case = Case(name, toy)
    gold = case.targets(case.sentences)
    column = {"pos": "labels", "ner": "types", "dep": "relations", "con": "labels"}.get(name)
    if column is None:  # SRL's targets have O in the place of an unknown role
        return
    unknown = gold._replace(**{column: torch.full_like(getattr(gold, column), UNKNOWN)})
    result = case.decoder.structure_score(case.scores, unknown, case.mask)
    if name in ("pos", "ner"):
        assert result.score.tolist() == [0.0] * FEW
        assert result.items.tolist() == [0] * FEW
    else:  # the structure keeps its score
        assert (result.score != 0).all()
        assert not torch.allclose(result.score, case.score(case.sentences))


def test_the_structure_is_scored_where_it_is(toy: Path) -> None:
    """The gradient in scores of arcs, brackets and predicates is 1 at the annotation's and 0 elsewhere."""
    for name, column in (("dep", "arcs"), ("con", "brackets"), ("srl", "predicates")):
        case = Case(name, toy)
        scored = getattr(case.scores, column).clone().requires_grad_()
        scores = case.scores._replace(**{column: scored})
        targets = case.targets(case.sentences)
        result = case.decoder.structure_score(scores, targets, case.mask)
        (gradient,) = torch.autograd.grad(result.score.sum(), scored)
        expected = torch.zeros_like(gradient)
        if name == "dep":
            rows, words = case.mask.nonzero(as_tuple=True)
            expected[rows, words, targets.heads[rows, words]] = 1
        elif name == "con":
            expected.view(-1)[targets.brackets] = 1
        else:
            expected[targets.rows, targets.predicates] = 1
            assert result.items.tolist() == torch.bincount(targets.rows, minlength=FEW).tolist()
        assert torch.equal(gradient, expected)


def test_a_role_is_scored_at_its_own_words(toy: Path) -> None:
    case = Case("srl", toy)
    targets = case.targets(case.sentences)
    tags = case.decoder._gold_tag_scores(case.scores, targets)
    seen = 0
    for label in range(len(case.labels)):
        expected = torch.zeros(FEW, dtype=torch.float64)
        words = torch.zeros(FEW, dtype=torch.long)
        for frame, row in enumerate(targets.rows.tolist()):
            for word, tag in enumerate(targets.tags[frame].tolist()):
                if tag in (1 + label, 1 + len(case.labels) + label):
                    expected[row] += tags[frame, word, tag]
                    words[row] += 1
        result = case.decoder.structure_score(case.scores, targets, case.mask, label)
        torch.testing.assert_close(result.score, expected)
        assert torch.equal(result.items, words)
        seen += int(words.sum())
    assert seen


def test_a_sentence_of_one_label() -> None:
    decoder = SentenceClassifier(4, Labels(["no", "yes"]), 0.0)
    scores = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    targets, mask = SentenceBatch(torch.tensor([1, UNKNOWN, 0])), torch.ones(3, 2, dtype=torch.bool)
    whole = decoder.structure_score(scores, targets, mask)
    assert (whole.score.tolist(), whole.items.tolist()) == ([2.0, 0.0, 5.0], [1, 0, 1])
    yes = decoder.structure_score(scores, targets, mask, 1)
    assert (yes.score.tolist(), yes.items.tolist()) == ([2.0, 0.0, 0.0], [1, 0, 0])

"""Attachment scores without punctuation against supar's own count.
Bracket scores against what EVALB does, case by case (COLLINS.prm).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mtl.tasks.metrics import BracketScores, is_punctuation
from mtl.tasks.sentence import Arcs, Sentence, Span
from mtl.tasks.spans import build, constituents
from mtl.tasks.structured import Dep
from mtl.tasks.tree import Tree

WORDS = ("go", ".", "``", "--", "$", "+", "...", "a.", "’", "«", "50%", "%", ":-)", "^", "。", "_", "…")
RELATIONS = ("nsubj", "punct", "punct:x", "root", "obl", "obl:tmod")


def test_what_is_punctuation_is_what_supar_takes_for_it() -> None:
    from supar.utils.fn import ispunct

    assert [is_punctuation(word) for word in WORDS] == [ispunct(word) for word in WORDS]
    assert not is_punctuation("$")
    assert is_punctuation("%")


@pytest.mark.parametrize("punct", [True, False])
def test_scores_are_those_that_supar_counts(punct: bool) -> None:
    from supar.utils.fn import ispunct
    from supar.utils.metric import AttachmentMetric

    generator = np.random.default_rng(0)
    gold, predicted = [], []
    for length in generator.integers(1, 12, size=40).tolist():
        words = tuple(generator.choice(WORDS, length).tolist())
        draws = [
            Arcs(
                tuple(generator.integers(0, 3, length).tolist()),
                tuple(generator.choice(RELATIONS, length).tolist()),
            )
            for _ in range(2)
        ]
        gold.append(Sentence(words, arcs=draws[0]))
        predicted.append(draws[1])
    metric, theirs, without_subtypes = Dep(punct=punct).metric(), AttachmentMetric(), AttachmentMetric()
    bare = sorted({name.partition(":")[0] for name in RELATIONS})
    metric.update(predicted, gold)
    for guess, sentence in zip(predicted, gold, strict=True):
        assert sentence.arcs is not None
        mask = torch.tensor([[punct or not ispunct(word) for word in sentence.words]])
        for their, names in ((theirs, RELATIONS), (without_subtypes, bare)):
            relations = [
                [names.index(name if name in names else name.partition(":")[0]) for name in arcs.relations]
                for arcs in (guess, sentence.arcs)
            ]
            columns = (guess.heads, relations[0], sentence.arcs.heads, relations[1])
            their(*(torch.tensor([column]) for column in columns), mask)
    scores = metric.compute()
    assert scores["uas"] == pytest.approx(100 * theirs.uas)
    assert scores["las_subtypes"] == pytest.approx(100 * theirs.las)
    assert scores["las"] == pytest.approx(100 * without_subtypes.las)
    assert scores["las"] > scores["las_subtypes"]
    assert scores["ucm"] == pytest.approx(100 * theirs.ucm)
    assert scores["lcm"] == pytest.approx(100 * without_subtypes.lcm)
    assert scores["ucm"] > scores["lcm"] > 0
    counts = metric.sentence_counts(predicted, gold).sum(0, keepdims=True).astype(float)
    assert metric.score(counts)[0] == pytest.approx(scores["las"])


def test_punctuation_is_told_by_the_form_alone() -> None:
    """A symbol with the relation `punct` counts; a full stop never does, whatever hangs from it."""
    gold = [Sentence(("a", "+", "."), arcs=Arcs((0, 1, 1), ("root", "punct", "obj")))]
    metric = Dep(punct=False).metric()
    metric.update([Arcs((3, 1, 0), ("dep", "punct", "root"))], gold)
    assert metric.compute() == {"uas": 50.0, "las": 50.0, "las_subtypes": 50.0, "ucm": 0.0, "lcm": 0.0}


def _score(*pairs: tuple[str, str]) -> dict[str, float]:
    metric = BracketScores("tree")
    trees = [(Tree.parse(gold), Tree.parse(predicted)) for gold, predicted in pairs]
    gold = [Sentence(tuple(str(leaf.children) for leaf in tree.leaves()), tree=tree) for tree, _ in trees]
    metric.update([constituents(tree) for _, tree in trees], gold)
    return metric.compute()


def _counts(gold: str, predicted: str) -> tuple[int, int, int]:
    metric = BracketScores("tree")
    tree = Tree.parse(gold)
    sentence = Sentence(tuple(str(leaf.children) for leaf in tree.leaves()), tree=tree)
    metric.update([constituents(Tree.parse(predicted))], [sentence])
    matched, guessed, true, *_ = metric.counts.tolist()
    return matched, true, guessed


@pytest.mark.parametrize(
    ("gold", "predicted", "counts"),
    [
        # the root never counts, preterminals neither
        ("(TOP (S (NP (N a)) (VP (V b))))", "(TOP (S (NP (N a)) (VP (V b))))", (3, 3, 3)),
        ("(TOP (N a) (V b))", "(TOP (N a) (V b))", (0, 0, 0)),
        # deleted punctuation: brackets may differ by it; those with nothing else vanish
        ("(TOP (S (NP (N a)) (. .)))", "(TOP (S (NP (N a) (. .))))", (2, 2, 2)),
        ("(TOP (S (N a) (PRN (, ,))))", "(TOP (S (N a) (, ,)))", (1, 1, 1)),
        # the gold tag decides, and brackets and hyphens are no deleted punctuation
        ("(TOP (S (N a) (. .)))", "(TOP (S (NP (N a)) (N .)))", (1, 1, 2)),
        ("(TOP (S (N a) (-RRB- -RRB-)))", "(TOP (S (NP (N a)) (-RRB- -RRB-)))", (1, 1, 2)),
        # ADVP and PRT are one
        ("(TOP (S (PRT (R a)) (V b)))", "(TOP (S (ADVP (R a)) (V b)))", (2, 2, 2)),
        # function tags and indices are cut
        ("(TOP (S-1 (NP-SBJ (N a)) (NP=2 (V b))))", "(TOP (S (NP (N a)) (NP (V b))))", (3, 3, 3)),
        # a multiset: NP over NP is two, each matched once
        ("(TOP (NP (NP (N a))))", "(TOP (NP (N a)))", (1, 2, 1)),
        ("(TOP (NP (N a)))", "(TOP (NP (NP (NP (N a)))))", (1, 1, 3)),
        # the order within a unary chain plays no part
        ("(TOP (S (VP (N a))))", "(TOP (VP (S (N a))))", (2, 2, 2)),
    ],
)
def test_counts(gold: str, predicted: str, counts: tuple[int, int, int]) -> None:
    assert _counts(gold, predicted) == counts


def test_figures_over_sentences() -> None:
    figures = _score(
        ("(TOP (S (NP (N a)) (VP (V b))))", "(TOP (S (N a) (VP (V b))))"),
        ("(TOP (S (N a)))", "(TOP (S (N a)))"),
        ("(TOP (N a))", "(TOP (N a))"),  # no brackets at all: exact
        ("(TOP (S (. .)))", "(TOP (NP (. .)))"),  # nothing but punctuation: skipped
    )
    assert figures == {
        "precision": 100.0,
        "recall": 75.0,
        "f1": pytest.approx(600 / 7),
        "uf1": pytest.approx(600 / 7),
        "ucm": pytest.approx(200 / 3),
        "lcm": pytest.approx(200 / 3),
    }


def test_scores_of_spans_are_those_that_supar_counts() -> None:
    """Trees whose labels none of the two leaves out, with unary chains."""
    from supar.utils.metric import SpanMetric

    generator = np.random.default_rng(0)
    metric, theirs = BracketScores("tree"), SpanMetric()
    for length in generator.integers(2, 5, size=60).tolist():
        words = ("w",) * length
        trees = []
        for _ in range(2):
            last = Span(1, length, str(generator.choice(["VP", "NP"])))
            spans = (Span(0, length, "S"), Span(0, 1, "NP"), last)
            trees.append(tuple(span for span in spans if generator.random() < 0.8))
        gold = Sentence(words, tree=build(words, ("N",) * length, trees[1]))
        metric.update([trees[0]], [gold])
        theirs([list(trees[0])], [list(trees[1])])
    scores = metric.compute()
    expected = {
        "precision": theirs.lp, "recall": theirs.lr, "f1": theirs.lf, "uf1": theirs.uf,
        "ucm": theirs.ucm, "lcm": theirs.lcm,
    }  # fmt: skip
    assert scores == pytest.approx({name: 100 * value for name, value in expected.items()})
    assert scores["ucm"] > scores["lcm"] > 0
    assert scores["uf1"] > scores["f1"]


def test_what_is_not_annotated_is_skipped() -> None:
    metric = BracketScores("tree")
    metric.update([()], [Sentence(("a",))])
    assert int(metric.counts[-1]) == 0

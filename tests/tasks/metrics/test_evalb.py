"""Bracket scores against what EVALB does, case by case (COLLINS.prm)."""

from __future__ import annotations

import pytest

from mtl.tasks.binarise import constituents
from mtl.tasks.metrics.evalb import BracketScores
from mtl.tasks.sentence import Sentence
from mtl.tasks.tree import Tree


def _score(*pairs: tuple[str, str]) -> dict[str, float]:
    metric = BracketScores()
    trees = [(Tree.parse(gold), Tree.parse(predicted)) for gold, predicted in pairs]
    gold = [Sentence(tuple(str(leaf.children) for leaf in tree.leaves()), tree=tree) for tree, _ in trees]
    metric.update([constituents(tree) for _, tree in trees], gold)
    return metric.compute()


def _counts(gold: str, predicted: str) -> tuple[int, int, int]:
    metric = BracketScores()
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
        "exact": pytest.approx(200 / 3),
    }


def test_what_is_not_annotated_is_skipped() -> None:
    metric = BracketScores()
    metric.update([()], [Sentence(("a",))])
    assert int(metric.counts[-1]) == 0

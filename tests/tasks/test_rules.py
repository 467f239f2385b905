"""Rules: the best of all annotations that keep them, by enumeration; and what is no rule."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch

from mtl.tasks.decoders.crf import tagged_spans
from mtl.tasks.decoders.decoder import Decoder
from mtl.tasks.decoders.spans import BioSpans
from mtl.tasks.decoders.tree_crf import TreeCrf
from mtl.tasks.rules import Match, Rule, TaskRules, rules_from
from mtl.tasks.sentence import Arcs, Span
from mtl.tasks.structured import Dep, Ner, Pos
from mtl.tasks.task import Labels
from tests.tasks.decoders.test_tree_crf import score_of_tree

WORDS = ("New", "York", "left", "New")
LABELS = Labels(["PER", "LOC"])
RELATIONS = Labels(["nsubj", "obj", "root"])
TRIALS = 20


def scored(decoder: Decoder, words: int, seed: int) -> tuple[Any, torch.Tensor]:
    torch.manual_seed(seed)
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=1.0)
    mask = torch.ones(2, words, dtype=torch.bool)
    mask[1, -1] = False  # a shorter sentence, without rules, beside it
    return decoder.eval()(torch.randn(2, words, 6), mask), mask


def drawn(rng: random.Random, kind: str, labels: Labels) -> TaskRules:
    """Rules on random stretches of the words; conflicts are drawn anew."""
    while True:
        given: dict[str, Any] = {"force": {}, "forbid": {}}
        for _ in range(rng.randint(1, 3)):
            start, force = rng.randrange(len(WORDS)), rng.random() < 0.5
            end = start + 1 if kind == "arcs" else rng.randint(start + 1, len(WORDS))
            words, label = " ".join(WORDS[start:end]), rng.choice(labels.names)
            value: Any = [label] * (end - start) if kind == "tags" and force else [label]
            if kind == "arcs" and rng.random() < 0.5:
                words, value = (
                    f"{words} < {rng.choice(WORDS)}",
                    [label] if force and rng.random() < 0.5 else None,
                )
            elif kind == "spans" and not force and rng.random() < 0.5:
                value = None
            given["force" if force else "forbid"][words] = value
        try:
            return rules_from({key: value for key, value in given.items() if value}, kind, labels)  # type: ignore[arg-type]
        except ValueError:
            continue


def best(candidates: list[tuple[Any, Any]], matches: list[Match]) -> Any:
    """The best candidate that keeps all rules; `None`: there is none."""
    kept = [(score, each) for score, each in candidates if all(match.is_kept(each) for match in matches)]
    return max(kept, key=lambda pair: pair[0])[1] if kept else None


@cache
def tag_sequences() -> tuple[torch.Tensor, list[tuple[Span, ...]]]:
    """All sequences of BIO tags that mean something, as `BioCrf` numbers them, and their spans."""
    every = [
        tags
        for tags in product(range(1 + 2 * len(LABELS)), repeat=len(WORDS))
        if all(
            tag <= len(LABELS) or (before and (tag - 1) % len(LABELS) == (before - 1) % len(LABELS))
            for before, tag in zip((0, *tags), tags, strict=False)
        )
    ]
    table = torch.tensor(every)
    return table, [tagged_spans(tags.numpy(), LABELS) for tags in table]


@cache
def sets_of_spans(words: int) -> list[tuple[Span, ...]]:
    """All sets of labelled spans without overlaps."""

    def after(start: int) -> list[tuple[Span, ...]]:
        if start == words:
            return [()]
        found = after(start + 1)
        for end in range(start + 1, words + 1):
            found += [(Span(start, end, label), *rest) for label in LABELS.names for rest in after(end)]
        return found

    return after(0)


@cache
def trees(words: int) -> list[tuple[int, ...]]:
    """All trees with one root."""
    found = []
    for heads in product(range(words + 1), repeat=words):
        reached = {0}
        for _ in range(words):
            reached |= {word for word, head in enumerate(heads, start=1) if head in reached}
        if len(reached) == words + 1 and heads.count(0) == 1:
            found.append(heads)
    return found


def candidates(decoder: Decoder, scores: Any) -> list[tuple[Any, Any]]:
    """All annotations of the first sentence with their scores, by definition."""
    words = range(len(WORDS))
    if decoder.ruled == "tags":
        return [
            (sum(scores[0, word, label].item() for word, label in zip(words, of_words, strict=True)),
             tuple(LABELS.names[label] for label in of_words))
            for of_words in product(range(len(LABELS)), repeat=len(WORDS))
        ]  # fmt: skip
    if isinstance(decoder, BioSpans):
        table, spans = tag_sequences()
        lengths = torch.full((len(table),), len(WORDS))
        emissions = scores[:1].expand(len(table), -1, -1)
        return list(zip(decoder.crf.path_score(emissions, table, lengths).tolist(), spans, strict=True))
    if decoder.ruled == "spans":
        of_spans = scores[0].tolist()
        return [
            (sum(of_spans[s][e - 1][LABELS.index(label)] for s, e, label in spans), spans)
            for spans in sets_of_spans(len(WORDS))
        ]
    found = []
    for heads in trees(len(WORDS)):
        if decoder.projective and crosses(heads):  # type: ignore[attr-defined]
            continue
        total = score_of_tree(scores, heads)
        of_arcs = decoder._relations(scores, torch.tensor([heads, heads]))[0].tolist()  # type: ignore[operator]
        possible = [
            [label for label, name in enumerate(RELATIONS.names) if (name == "root") == (head == 0)]
            for head in heads
        ]
        for chosen in product(*possible):
            # The tree counts first, and relations are chosen given the tree.
            second = sum(of_arcs[word][label] for word, label in enumerate(chosen))
            names = tuple(RELATIONS.names[label] for label in chosen)
            found.append(((total, second), Arcs(heads, names)))
    return found


def crosses(heads: tuple[int, ...]) -> bool:
    """Whether two arcs of a tree cross."""
    arcs = [sorted(arc) for arc in enumerate(heads, start=1)]
    return any(a < c < b < d for (a, b), (c, d) in product(arcs, arcs))


def by_right_heads(found: list[tuple[Any, Arcs]], matches: list[Match]) -> list[tuple[Any, Arcs]]:
    """Trees that keep all rules, by the expected number of right heads where each is as probable as its score
    says."""
    kept = [(pair, arcs) for pair, arcs in found if all(match.is_kept(arcs) for match in matches)]
    score_of = {arcs.heads: total for (total, _), arcs in kept}
    if not score_of:
        return []
    chances = torch.tensor([*score_of.values()], dtype=torch.float64).softmax(0).tolist()
    right: list[dict[int | None, float]] = [defaultdict(float) for _ in WORDS]
    for heads, chance in zip(score_of, chances, strict=True):
        for of_word, head in zip(right, heads, strict=True):
            of_word[head] += chance
    return [
        ((sum(of_word[head] for of_word, head in zip(right, arcs.heads, strict=True)), second), arcs)
        for (_, second), arcs in kept
    ]


DECODERS: dict[str, tuple[Any, Labels]] = {
    "tags": (Pos(dropout=0.0), LABELS),
    "spans": (Ner(dim=5, dropout=0.0), LABELS),
    "bio": (Ner(decoder="bio", dropout=0.0), LABELS),
    **{
        name: (Dep(arc_dim=5, relation_dim=5, dropout=0.0, tie_root=True, **settings), RELATIONS)
        for name, settings in {
            "arcs": {},
            "trees": {"decoder": "crf"},
            "projective trees": {"decoder": "crf", "projective": True},
            "siblings": {"decoder": "crf2o"},
            "mean field": {"decoder": "vi"},
        }.items()
    },
}


@pytest.mark.parametrize("name", DECODERS)
@torch.inference_mode()
def test_predictions_are_the_best_that_keep_the_rules(name: str) -> None:
    task, labels = DECODERS[name]
    decoder = task.new_decoder(6, labels)
    assert decoder.ruled is not None
    rng = random.Random(name)
    possible = changed = 0
    for seed in range(TRIALS):
        scores, mask = scored(decoder, len(WORDS), seed)
        if decoder.ruled == "arcs":
            assert decoder.of_root is not None
        rules = drawn(rng, decoder.ruled, labels)
        matches = rules.matches(WORDS)
        ruled = decoder.constrained(scores, mask, [matches, []])
        (found, other), (plain, unruled) = decoder.decode(ruled, mask), decoder.decode(scores, mask)
        assert other == unruled
        every = candidates(decoder, scores)
        if isinstance(decoder, TreeCrf):
            every = by_right_heads(every, matches)
        expected = best(every, matches)
        if expected is not None:
            possible += 1
            changed += plain != expected
            assert found == expected, (seed, matches)
            decoder.alternatives(ruled, mask, [found, other], 2)
        else:  # the rest is as good as it gets, and something is said
            assert not all(match.is_kept(found) for match in matches)
    assert possible > TRIALS / 2
    assert changed > TRIALS / 4


def test_the_longest_match_from_the_left_is_forced() -> None:
    rules = rules_from(
        {
            "force": {"New York": "LOC", "York": "PER", "New York City": "LOC", ("City", "x"): "PER"},
            "forbid": ["x"],
        },
        "spans",
        LABELS,
    )
    matches = rules.matches(["in", "New", "York", "City", "x", "New", "York", "x"])
    assert [(match.start, match.end, match.rule.force) for match in matches] == [
        (1, 4, True), (4, 5, False), (5, 7, True), (7, 8, False),
    ]  # fmt: skip
    assert str(matches[0].rule) == "force New York City: LOC"
    assert matches[1].rule == Rule(("x",), (), False)


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        ("spans", ["x"], "the keys 'force' and 'forbid'"),
        ("spans", {"whitelist": {}}, "the keys 'force' and 'forbid'"),
        ("spans", {"force": {"x": "ORG"}}, "no label 'ORG' (PER, LOC)"),
        ("spans", {"force": ["x"]}, "give it one label"),
        ("spans", {"force": {"x": 3}}, "3 is no label and no list"),
        ("spans", {"force": {1999: "LOC"}}, "1999 are no words: write them as a text in quotes"),
        ("spans", {"force": {"x": "LOC"}, "forbid": ["x"]}, "'x' is both forced and forbidden"),
        ("spans", {"forbid": "x"}, "no mapping from words to labels, and no list"),
        ("spans", {"force": {"a b": "LOC", "a  b": "PER"}}, "there twice"),
        ("tags", {"force": {"a b": "LOC"}}, "give a list of 2 labels, one a word"),
        ("tags", {"forbid": ["a"]}, "words always get one"),
        ("arcs", {"force": {"a b": "PER"}}, "write one word, or DEPENDENT < HEAD"),
        ("arcs", {"forbid": ["a"]}, "say which relations"),
        ("arcs", {"forbid": {"a < b": "PER"}}, "whatever its relation"),
    ],
)
def test_what_is_no_rule_is_refused(kind: Any, given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        rules_from(given, kind, LABELS)

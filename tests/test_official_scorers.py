"""Our scores are what the official programs print on our export."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mtl.corpora.ewt5.build import build_ewt
from mtl.corpora.formats.jsonl import read_jsonl
from mtl.corpora.scorers import export_for_scorers
from mtl.corpora.toy.corpus import toy_corpus
from mtl.tasks.catalogue import TASKS
from mtl.tasks.sentence import Arcs, Frame, Sentence, Span
from mtl.tasks.spans import constituents
from mtl.tasks.tree import Tree
from tests.mtl.corpora.hostile import hostile_sentences, otherwise_annotated
from tests.perturb import Perturbation
from tests.scorers import Scorers, Unavailable, fetch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LAYERS = {"pos": "tags", "ner": "entities", "dep": "arcs", "con": "tree", "srl": "frames"}


@pytest.fixture(scope="session")
def scorers() -> Scorers:
    try:
        return fetch()
    except Unavailable as reason:
        pytest.skip(f"official scorers: {reason}")


@pytest.fixture(scope="session")
def ewt(upstream: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Sentence]:
    out = tmp_path_factory.mktemp("ewt5")
    build_ewt(upstream, out)
    return read_jsonl(out / "dev.jsonl") + read_jsonl(out / "test.jsonl")


def official(scorers: Scorers, folder: Path) -> dict[str, dict[str, float]]:
    tagged = [line.split("\t") for line in (folder / "pos.tsv").read_text().splitlines() if line]
    return {
        "pos": {"accuracy": 100 * sum(gold == guess for _, gold, guess in tagged) / len(tagged)},
        "ner": scorers.conlleval(folder / "ner.conll"),
        "dep": scorers.conll2018(folder / "dep.gold.conllu", folder / "dep.pred.conllu"),
        "con": scorers.evalb(folder / "con.gold.mrg", folder / "con.pred.mrg"),
        "srl": scorers.srl_eval(folder / "srl.gold.props", folder / "srl.pred.props"),
    }


def annotation(task: str, sentence: Sentence) -> Any:
    """What the task's decoder would have returned for the sentence."""
    layer = getattr(sentence, LAYERS[task])
    return constituents(layer) if task == "con" else layer


def ours(
    task: str, gold: Sequence[Sentence], predicted: Sequence[Sentence], size: int = 100
) -> dict[str, float]:
    """Our figures, the sentences given in batches as in evaluation."""
    metric = TASKS[task]().metric()
    for start in range(0, len(gold), size):
        pairs = [
            (annotation(task, guess), sentence)
            for guess, sentence in zip(
                predicted[start : start + size], gold[start : start + size], strict=True
            )
            if getattr(sentence, LAYERS[task]) is not None
        ]
        if pairs:
            metric.update([guess for guess, _ in pairs], [sentence for _, sentence in pairs])
    return metric.compute()


def compare(scorers: Scorers, gold: Sequence[Sentence], predicted: Sequence[Sentence], folder: Path) -> None:
    export_for_scorers(gold, predicted, folder, [TASKS[task]() for task in LAYERS])
    for task, printed in official(scorers, folder).items():
        mine = ours(task, gold, predicted)
        assert {name: mine[name] for name in printed} == pytest.approx(printed, abs=0.01), task


@pytest.mark.parametrize("rate", [0.02, 0.15, 0.5, 0.95])
@pytest.mark.parametrize("seed", [0, 1])
def test_generated_sentences(scorers: Scorers, tmp_path: Path, rate: float, seed: int) -> None:
    gold = toy_corpus(600, seed, "test")
    perturb = Perturbation(random.Random(seed), rate)
    compare(scorers, gold, [perturb(sentence) for sentence in gold], tmp_path)


@pytest.mark.parametrize("rate", [0.05, 0.4])
def test_real_sentences(scorers: Scorers, ewt: list[Sentence], tmp_path: Path, rate: float) -> None:
    perturb = Perturbation(random.Random(7), rate)
    compare(scorers, ewt, [perturb(sentence) for sentence in ewt], tmp_path)


@pytest.mark.parametrize("source", ["toy", "ewt"])
def test_given_predicates(
    scorers: Scorers, request: pytest.FixtureRequest, tmp_path: Path, source: str
) -> None:
    gold = toy_corpus(500, 4) if source == "toy" else request.getfixturevalue("ewt")
    gold = [sentence for sentence in gold if sentence.frames is not None]
    perturb = Perturbation(random.Random(1), 0.3)
    frames = [perturb.given(sentence.frames, len(sentence)) for sentence in gold]
    export_for_scorers(
        gold, [replace(s, frames=f) for s, f in zip(gold, frames, strict=True)], tmp_path, [TASKS["srl"]()]
    )
    printed = scorers.srl_eval(tmp_path / "srl.gold.props", tmp_path / "srl.pred.props")
    metric = TASKS["srl"]().metric()
    metric.update([()] * len(gold), gold, frames)
    mine = metric.compute()
    for name, value in printed.items():
        assert mine[f"given_{name}"] == pytest.approx(value, abs=0.01)


def test_excess_predicates_count_in_both_ways_of_running(scorers: Scorers, tmp_path: Path) -> None:
    """One run is what the literature gets from two, gold and prediction swapped in the second."""
    gold = toy_corpus(400, 2)
    perturb = Perturbation(random.Random(2), 0.3)
    export_for_scorers(gold, [perturb(sentence) for sentence in gold], tmp_path, [TASKS["srl"]()])
    files = tmp_path / "srl.gold.props", tmp_path / "srl.pred.props"
    once, swapped = scorers.srl_eval(*files), scorers.srl_eval(*reversed(files))
    assert once["precision"] == pytest.approx(swapped["recall"], abs=0.01)


WORDS = ("a", "b", "c", "d", "e", "f")


def sentence(**layers: object) -> Sentence:
    return replace(Sentence(WORDS), **layers)


def frames(*arguments: Span, predicate: int = 3) -> Sentence:
    return sentence(frames=(Frame(predicate, None, arguments),))


def tree(text: str) -> Sentence:
    parsed = Tree.parse(text)
    return Sentence(tuple(leaf.children for leaf in parsed.leaves()), tree=parsed)


A, B, C = Span(0, 1, "ARG1"), Span(1, 2, "ARG1"), Span(4, 5, "C-ARG1")
PAD = frames(Span(0, 1, "ARG0"), Span(1, 2, "ARG2"))


@pytest.mark.parametrize(
    ("gold", "predicted"),
    [
        (frames(A, C), frames(A, C)),
        (frames(A, C), frames(A)),
        (frames(A), frames(A, C)),
        (frames(A, C), frames(A, Span(4, 5, "ARG1"))),
        (frames(A, C), frames(A, Span(4, 6, "C-ARG1"))),
        (frames(A, C), frames(A, Span(2, 3, "C-ARG1"), C)),
        (frames(A, B, C), frames(B, C)),  # a piece joins the nearest argument before it
        (frames(A, B, C), frames(A, C)),
        (frames(Span(4, 5, "ARG1")), frames(C)),  # a piece without a beginning
        (frames(Span(0, 1, "C-ARG1"), Span(1, 2, "C-ARG1")), frames(A, Span(1, 2, "C-ARG1"))),
        (frames(Span(0, 1, "C-ARG1"), B), frames(A, B)),
        (frames(A, Span(4, 5, "C-V")), frames(A)),  # V and what continues it
        (frames(A, Span(1, 2, "C-V")), frames(A, Span(4, 6, "C-V"))),
        (frames(Span(0, 2, "R-ARG1"), Span(4, 5, "C-R-ARG1")), frames(Span(0, 2, "R-ARG1"), C)),
        (frames(A, Span(1, 2, "R-ARG1")), frames(A, Span(1, 2, "ARG1"))),
        (frames(), frames(A)),
        (frames(A), frames()),
        (frames(A, predicate=3), frames(A, predicate=4)),
        (sentence(frames=()), frames(A)),
        (frames(A), sentence(frames=())),
        (sentence(frames=()), sentence(frames=())),
        (frames(A), frames(Span(0, 5, "ARG1"))),  # an argument over its predicate
    ],
)
def test_hard_frames(scorers: Scorers, tmp_path: Path, gold: Sentence, predicted: Sentence) -> None:
    pair = [gold, PAD], [predicted, PAD]
    export_for_scorers(*pair, tmp_path, [TASKS["srl"]()])
    printed = scorers.srl_eval(tmp_path / "srl.gold.props", tmp_path / "srl.pred.props")
    mine = ours("srl", *pair)
    assert {name: mine[name] for name in printed} == pytest.approx(printed, abs=0.01)


SAME = tree("(TOP (S (NP (DT a) (NN b)) (VP (VB c))))")


@pytest.mark.parametrize(
    ("gold", "predicted"),
    [
        ("(TOP (S (NP (NN a)) (PRT (RP b))))", "(TOP (S (NP (NN a)) (ADVP (RP b))))"),
        ("(TOP (S (ADVP (PRT (RP b)))))", "(TOP (S (PRT (PRT (RP b)))))"),
        ("(TOP (S (ADVP (PRT (RP b)))))", "(TOP (S (PRT (RP b))))"),
        ("(TOP (S (NP (NP (NN a)))))", "(TOP (S (NP (NN a))))"),
        ("(TOP (S (NP (NN a))))", "(TOP (S (NP (NP (NP (NN a))))))"),
        ("(TOP (S (NP (NN a)) (. b)))", "(TOP (S (NP (NN a) (. b))))"),  # punctuation does not count
        ("(TOP (S (NP (NN a)) (PRN (: b)) (NP (NN c))))", "(TOP (S (NP (NN a)) (: b) (NP (NN c))))"),
        ("(TOP (NP (. a) (, b)))", "(TOP (X (. a)) (, b))"),  # nothing but punctuation
        ("(TOP (NP (`` a) (: b) ('' c)))", "(TOP (NP (`` a) (: b) ('' c)))"),
        ("(TOP (NP (-LRB- -LRB-) (NN b) (-RRB- -RRB-)))", "(TOP (NP (-LRB- x) (NP (NN b))) (-RRB- x))"),
        ("(TOP (NP-SBJ (NN a)))", "(TOP (NP=2 (NN a)))"),
        ("(TOP (TOP (NP (NN a))))", "(TOP (NP (NN a)))"),
        ("(TOP (NN a))", "(TOP (NP (NN a)))"),
        ("(TOP (NP (NN a)))", "(TOP (NN a))"),
        ("(TOP (S (NN a)) (S (NN b)))", "(TOP (S (NN a) (NN b)))"),
        ("(TOP (S (HYPH a) (NFP b) ($ c)))", "(TOP (S (HYPH a) (NFP b)) ($ c))"),
    ],
)
def test_hard_trees(scorers: Scorers, tmp_path: Path, gold: str, predicted: str) -> None:
    guess = tree(predicted)
    pair = [tree(gold), SAME], [replace(guess, words=tree(gold).words), SAME]
    export_for_scorers(*pair, tmp_path, [TASKS["con"]()])
    printed = scorers.evalb(tmp_path / "con.gold.mrg", tmp_path / "con.pred.mrg")
    mine = ours("con", *pair)
    assert {name: mine[name] for name in printed} == pytest.approx(printed, abs=0.01)


def test_trees_with_wrong_preterminals(scorers: Scorers, tmp_path: Path) -> None:
    """What is punctuation is the gold's to say."""
    gold = tree("(TOP (S (NP (NN a)) (. b)))")
    predicted = tree("(TOP (S (NP (. a)) (X (NN b))))")
    export_for_scorers([gold], [predicted], tmp_path, [TASKS["con"]()])
    printed = scorers.evalb(tmp_path / "con.gold.mrg", tmp_path / "con.pred.mrg")
    mine = ours("con", [gold], [predicted])
    assert mine["f1"] == pytest.approx(printed["f1"], abs=0.01) == 100.0


def test_hostile_words_and_labels(scorers: Scorers, tmp_path: Path) -> None:
    """Words and labels that mean something to a format, beside none that a program has no room for."""
    words = hostile_sentences(3)
    gold, predicted = (otherwise_annotated(seed, words) for seed in (4, 5))
    some = [g if number % 2 else p for number, (g, p) in enumerate(zip(gold, predicted, strict=True))]
    exported = export_for_scorers(gold, some, tmp_path, [TASKS[task]() for task in LAYERS])
    [(name, count)] = exported.left_out.items()
    assert "EVALB" in name  # labels of 40 bytes
    long = "L" * 40
    scored = [
        (true, guess)
        for true, guess in zip(gold, some, strict=True)
        if long not in str(true.tree) and all(span.label != long for span in constituents(guess.tree))
    ]
    assert count == len(gold) - len(scored)
    for task, printed in official(scorers, tmp_path).items():
        pairs = scored if task == "con" else list(zip(gold, some, strict=True))
        mine = ours(task, [true for true, _ in pairs], [guess for _, guess in pairs])
        assert {figure: mine[figure] for figure in printed if "/" not in figure} == pytest.approx(
            {figure: value for figure, value in printed.items() if "/" not in figure}, abs=0.01
        ), task


@pytest.mark.parametrize(
    ("words", "brackets", "kept"),
    [(200, 200, True), (201, 3, False), (100, 201, False), (10, 3, True), (600, 400, False)],
)
def test_what_evalb_has_no_room_for_is_left_out(
    scorers: Scorers, tmp_path: Path, words: int, brackets: int, kept: bool
) -> None:
    leaves = tuple(Tree("NN", f"w{number}") for number in range(words))
    node = Tree("NP", leaves[:1])
    for _ in range(brackets - 3):
        node = Tree("X", (node,))
    gold = Sentence(
        tuple(leaf.children for leaf in leaves),
        tree=Tree("TOP", (Tree("S", (node, *leaves[1:])),)),
        id="long",
    )
    exported = export_for_scorers([gold, SAME], [gold, SAME], tmp_path, [TASKS["con"]()])
    assert not exported.left_out if kept else "the first is 'long'" in next(iter(exported.left_out))
    printed = scorers.evalb(tmp_path / "con.gold.mrg", tmp_path / "con.pred.mrg")
    assert printed["f1"] == printed["lcm"] == 100.0


def test_lines_that_evalb_has_no_room_for(scorers: Scorers, tmp_path: Path) -> None:
    """4,998 bytes and the line feed are read; one more is left out."""
    for further, kept in ((0, True), (1, False)):
        letters = 4_998 - len("(TOP)") - 70 * len(" (NN )")
        lengths = [letters // 70] * 69
        lengths.append(letters - sum(lengths) + further)
        words = tuple("x" * length for length in lengths)
        gold = Sentence(words, tree=Tree("TOP", tuple(Tree("NN", word) for word in words)), id="x")
        exported = export_for_scorers([gold, SAME], [gold, SAME], tmp_path, [TASKS["con"]()])
        length = max(map(len, (tmp_path / "con.gold.mrg").read_text().splitlines()))
        assert (not exported.left_out) == kept
        assert not kept or length == 4_998
        assert scorers.evalb(tmp_path / "con.gold.mrg", tmp_path / "con.pred.mrg")["lcm"] == 100.0


def test_chains_of_arcs_that_the_scorer_cannot_follow(scorers: Scorers, tmp_path: Path) -> None:
    def chain(size: int) -> Sentence:
        heads = (*range(2, size + 1), 0)
        return Sentence(("a",) * size, arcs=Arcs(heads, ("dep",) * (size - 1) + ("root",)), id=str(size))

    exported = export_for_scorers(
        [chain(900), chain(1200)], [chain(900), chain(1200)], tmp_path, [TASKS["dep"]()]
    )
    assert [name.endswith("the first is '1200'") for name in exported.left_out] == [True]
    assert scorers.conll2018(tmp_path / "dep.gold.conllu", tmp_path / "dep.pred.conllu")["las"] == 100.0

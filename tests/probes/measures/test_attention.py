from __future__ import annotations

from collections import Counter

import polars as pl
import pytest
import torch
from torch import Tensor

from mtl.probes.measures import attention, corpus
from mtl.probes.measures.attention import AttentionProbe
from mtl.tasks.sentence import Sentence
from tests.probes import planted

LAYERS, HEADS = 2, 3
TARGETS = {**corpus.PROBE_TARGETS, "graph": corpus.BY_KIND["graph"]}


def measured(
    matrices: planted.Matrices,
    task: str,
    final: bool = False,
    batches: tuple[tuple[int, ...], ...] = ((0, 1, 2, 3),),
) -> pl.DataFrame:
    layers, heads = matrices[0].shape[:2]
    found = corpus.index(planted.CORPUS, TARGETS[task].items)
    probe = AttentionProbe(task, found, layers, heads, root=TARGETS[task].root, final=final)
    outputs = [torch.zeros(len(each), layers, heads, 1) for each in planted.CORPUS]
    for batch in batches:
        probe.update(planted.records_of(matrices, outputs, batch))
    return probe.compute()


Values = dict[tuple[str, int | None, int | None], float]


def values(table: pl.DataFrame, measure: str = "attention") -> Values:
    rows = table.filter(pl.col("measure") == measure).select("label", "layer", "head", "value")
    return {(label, layer, head): value for label, layer, head, value in rows.iter_rows()}


def most_attended(row: Tensor, root: bool, final: bool) -> int:
    """By the definition: the highest of the competing columns, the lowest index on ties; 0 is the root."""
    competing = ([0] if root else []) + list(range(1, len(row) - 1)) + ([len(row) - 1] if final else [])
    return max(competing, key=lambda column: (float(row[column]), -column))


def by_hand(matrices: planted.Matrices, task: str, final: bool) -> Values:
    hits: Counter[tuple[str, int, int]] = Counter()
    counts: Counter[str] = Counter()
    for sentence, matrix in zip(planted.CORPUS, matrices, strict=True):
        pairs = _pairs(sentence, task)
        for label, _, _ in pairs:
            counts[label] += 1
        for layer in range(LAYERS):
            for head in range(HEADS):
                g = [most_attended(row, task != "srl", final) for row in matrix[layer, head]]
                for label, dependents, anchor in pairs:
                    hit = g[anchor] in dependents or any(g[t] == anchor for t in dependents)
                    hits[label, layer, head] += hit
    return {
        (label, layer, head): hits[label, layer, head] / counts[label]
        for label in counts
        for layer in range(LAYERS)
        for head in range(HEADS)
    }


def _pairs(sentence: Sentence, task: str) -> list[tuple[str, list[int], int]]:
    """Labels, words and anchors, counted with the first special token as 0."""
    if task == "dep":
        if sentence.arcs is None:
            return []
        arcs = zip(sentence.arcs.heads, sentence.arcs.relations, strict=True)
        return [(relation, [d], h) for d, (h, relation) in enumerate(arcs, start=1)]
    if task == "graph":
        graph = sentence.layer("deps")
        return [] if graph is None else [(label, [d], h) for d, h, label in graph.arcs]
    return [
        (span.label, list(range(span.start + 1, span.end + 1)), frame.predicate + 1)
        for frame in sentence.frames or ()
        for span in frame.arguments
    ]


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("task", ["dep", "graph", "srl"])
@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_loop_over_the_definition(task: str, final: bool, seed: int) -> None:
    matrices = planted.random_matrices(planted.CORPUS, LAYERS, HEADS, seed)
    assert values(measured(matrices, task, final)) == by_hand(matrices, task, final)


@pytest.mark.parametrize("task", ["dep", "graph", "srl"])
def test_batches_do_not_matter(task: str) -> None:
    matrices = planted.random_matrices(planted.CORPUS, LAYERS, HEADS, 7)
    once = measured(matrices, task)
    assert once.equals(measured(matrices, task, batches=((3, 2), (0,), (1,))))


def head_pointing_at(target: list[list[int]]) -> planted.Matrices:
    """One head whose row i has all its attention on `target[i]` (0: first special token)."""
    matrices = []
    for sentence, row in zip(planted.CORPUS, target, strict=True):
        matrix = torch.zeros(1, 1, len(sentence) + 2, len(sentence) + 2)
        matrix[0, 0, torch.arange(len(row)), torch.tensor(row)] = 1
        matrices.append(matrix)
    return matrices


def test_a_head_that_always_looks_at_the_syntactic_head_scores_one() -> None:
    target = [
        [0, *(each.arcs.heads if each.arcs is not None else [1] * len(each)), 0] for each in planted.CORPUS
    ]
    scores = values(measured(head_pointing_at(target), "dep"))
    assert set(scores.values()) == {1.0}
    assert {label for label, _, _ in scores} == {
        "det", "amod", "nsubj", "root", "obj", "flat", "advmod", "mark", "advcl", "compound"
    }  # fmt: skip


def test_a_head_that_looks_at_itself_scores_zero_and_its_labels_stay() -> None:
    target = [list(range(len(each) + 2)) for each in planted.CORPUS]
    table = measured(head_pointing_at(target), "dep")
    assert set(values(table).values()) == {0.0}
    assert table.filter(measure="attention")["count"].sum() == 14


@pytest.mark.parametrize("task", ["dep", "graph", "srl"])
def test_shifts_score_the_offset_baseline(task: str) -> None:
    best: dict[str, float] = {}
    for offset in attention.OFFSETS:
        target = [
            [i + offset if 0 <= i + offset <= len(each) else i for i in range(len(each) + 1)] + [0]
            for each in planted.CORPUS
        ]
        table = measured(head_pointing_at(target), task)
        for (label, _, _), value in values(table).items():
            best[label] = max(best.get(label, 0.0), value)
    baseline = {label: value for (label, _, _), value in values(table, "attention_offset").items()}
    assert baseline == best
    label, best_share = {"dep": ("obj", 1 / 2), "graph": ("A1", 1 / 2), "srl": ("ARG0", 2 / 3)}[task]
    assert baseline[label] == best_share


def test_the_final_special_token_wins_only_if_chosen_and_then_hits_nothing() -> None:
    matrices = planted.random_matrices(planted.CORPUS, LAYERS, HEADS, 3)
    for matrix in matrices:
        matrix[..., -1] = 100.0
    without, chosen = (measured(matrices, "dep", final) for final in (False, True))
    assert max(values(without).values()) > 0
    assert set(values(chosen).values()) == {0.0}
    for table, choice in ((without, "root+words"), (chosen, "root+words+final")):
        of_arcs = table.filter(pl.col("measure") != "attention_length")  # it depends on no choice
        assert set(of_arcs["choice"]) == {choice}

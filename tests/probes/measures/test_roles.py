from __future__ import annotations

from collections import Counter

import numpy as np
import polars as pl
import pytest
import torch

from mtl.probes.measures import attention, corpus
from mtl.probes.measures.corpus import rarest_words
from mtl.probes.statistics import head_values
from mtl.probes.tables import heads_table as table
from tests.probes import planted

LAYERS, HEADS = 2, 3
MATRICES = planted.random_matrices(planted.CORPUS, LAYERS, HEADS, 5)
OUTPUTS = [torch.zeros(len(each), LAYERS, HEADS, 1) for each in planted.CORPUS]


def computed(probe: attention.Probe, matrices: planted.Matrices = MATRICES) -> pl.DataFrame:
    for batch in ((2, 1), (0, 3)):
        probe.update(planted.records_of(matrices, OUTPUTS, batch))
    return probe.compute()


def cells(frame: pl.DataFrame, measure: str, label: str = "") -> dict[tuple[int, int], float]:
    rows = frame.filter(measure=measure, label=label).select("layer", "head", "value")
    return {(layer, head): value for layer, head, value in rows.iter_rows()}


def among_words(layer: int, head: int) -> list[list[list[float]]]:
    return [matrix[layer, head, 1:-1, 1:-1].tolist() for matrix in MATRICES]


def every_head() -> list[tuple[int, int]]:
    return [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]


def test_confidence_is_the_mean_of_the_highest_attention() -> None:
    found = cells(computed(attention.ConfidenceProbe("", LAYERS, HEADS)), "confidence")
    for at in every_head():
        highest = [max(row) for matrix in among_words(*at) for row in matrix]
        assert found[at] == pytest.approx(sum(highest) / len(highest))


@pytest.mark.parametrize("offset", [-5, -1, 0, 2])
def test_positions_are_counted_from_the_word(offset: int) -> None:
    frame = computed(attention.PositionalProbe("", LAYERS, HEADS))
    found = cells(frame, "positional", f"{offset:+d}" if offset else "0")
    for at in every_head():
        hits = [
            row.index(max(row)) - i == offset for matrix in among_words(*at) for i, row in enumerate(matrix)
        ]
        assert found[at] == pytest.approx(sum(hits) / len(hits))


def test_directions_are_told_apart() -> None:
    """A head in which only dependents look at their heads is good in that direction alone."""
    matrices = [torch.zeros(LAYERS, HEADS, len(each) + 2, len(each) + 2) for each in planted.CORPUS]
    for sentence, matrix in zip(planted.CORPUS, matrices, strict=True):
        matrix[..., 0] = 0.1  # heads that have nothing better look at the first special token
        for dependent, head in enumerate(sentence.arcs.heads if sentence.arcs else (), start=1):
            matrix[0, 1, dependent, head] = 1
    found = corpus.index(planted.CORPUS, corpus.arcs)
    frame = computed(attention.SyntacticProbe("dep", found, LAYERS, HEADS, final=False), matrices)
    for relation in ("det", "nsubj", "obj"):
        assert cells(frame, "syntactic", f"{relation} to head")[0, 1] == 1
        assert cells(frame, "syntactic", f"{relation} to dependent")[0, 1] == 0
    offsets = dict(frame.filter(measure="syntactic_offset").select("label", "value").iter_rows())
    # A determiner two words before its noun; subjects one word before their verb.
    assert (offsets["det to head"], offsets["nsubj to head"], offsets["nsubj to dependent"]) == (1, 1, 1)
    assert offsets["obj to head"] == 0.5


def test_rare_words_are_found_by_frequency() -> None:
    frequencies = Counter({f"common{i}": 100 for i in range(498)} | {"the": 500, "x": 500, "dog": 9, "Bo": 9})
    rarest = rarest_words(planted.CORPUS, frequencies)
    # "big" is the first unknown word; "Oslo" is alone; "ran" before others; "y" before "z".
    assert rarest.tolist() == [1, 0, 1, 1]
    all_frequent = rarest_words(planted.CORPUS[3:], Counter(("x", "y", "z")))
    assert all_frequent.tolist() == [-1]
    rarest[1] = -1
    found = cells(computed(attention.RareWordProbe("", rarest, LAYERS, HEADS)), "rare_words")
    for at in every_head():
        hits = [
            row.index(max(row)) == place
            for matrix, place in zip(among_words(*at), rarest.tolist(), strict=True)
            if place >= 0
            for row in matrix
        ]
        assert found[at] == pytest.approx(sum(hits) / len(hits))


def test_roles_are_held_from_the_margins_on() -> None:
    def rows(
        measure: str, label: str, values: list[float], head: bool = True, arcs: int = 30
    ) -> pl.DataFrame:
        value = torch.tensor(values, dtype=torch.float64)[None, None].numpy()
        return table.rows(measure, "", [label], value if head else value[0, 0], np.array([arcs]))

    heads = pl.concat(
        [
            rows("positional", "-1", [0.89, 0.9, 0.95]),
            rows("syntactic", "obj to head", [0.5, 0.61, 0.7]),
            rows("syntactic_offset", "obj to head", [0.6], head=False),
            rows("syntactic", "root to dependent", [1.0, 1.0, 1.0]),
            rows("syntactic_offset", "root to dependent", [0.1], head=False),
            rows("syntactic", "iobj to head", [1.0, 1.0, 1.0], arcs=29),
            rows("syntactic_offset", "iobj to head", [0.1], head=False, arcs=29),
        ]
    )
    found = head_values.heads_of_roles(heads).select("measure", "head", "value", "chance").rows()
    assert found == [
        ("positional", 2, 0.95, None),
        ("positional", 1, 0.9, None),
        ("syntactic", 2, 0.7, 0.6),
    ]


def test_roles_of_heads_that_see_no_later_words() -> None:
    """Planted heads in the lower triangle: hits are those of the definition, and never above the possible."""
    matrices = [matrix * torch.ones(matrix.shape[-2:]).tril() for matrix in MATRICES]
    index = corpus.index(planted.CORPUS, corpus.arcs)
    probe = attention.SyntacticProbe("dep", index, LAYERS, HEADS, final=False, causal=True)
    frame = computed(probe, matrices)
    assert set(frame["choice"]) == {"root+words, none ahead"}
    limit = dict(frame.filter(measure="syntactic_possible").select("label", "value").iter_rows())
    values = frame.filter(measure="syntactic").select("label", "value").rows()
    offsets = frame.filter(measure="syntactic_offset").select("label", "value").rows()
    assert all(value <= limit[label] for label, value in [*values, *offsets])
    assert max(value for _, value in values) > 0
    rarest = rarest_words(planted.CORPUS, {"the": 9})
    found = cells(
        computed(attention.RareWordProbe("", rarest, LAYERS, HEADS, causal=True), matrices), "rare_words"
    )
    for at in every_head():
        hits = [
            row.index(max(row)) == place
            for matrix, place in zip(
                [m[at[0], at[1], 1:-1, 1:-1].tolist() for m in matrices], rarest.tolist(), strict=True
            )
            for word, row in enumerate(matrix)
            if place >= 0 and word >= place
        ]
        assert found[at] == pytest.approx(sum(hits) / max(len(hits), 1))

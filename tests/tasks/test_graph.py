"""Graphs: loss, decoding and scores, against their definitions."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from mtl.tasks.decoders.decoder import PairScores
from mtl.tasks.decoders.graph import GraphBatch, GraphDecoder
from mtl.tasks.sentence import Arc, Graph, Sentence
from mtl.tasks.structured import Graphs
from mtl.tasks.task import UNKNOWN, Labels


def sentence_of(words: str, *arcs: tuple[int, int, str]) -> Sentence:
    return Sentence(tuple(words.split())).with_layers({"deps": Graph(tuple(Arc(*arc) for arc in arcs))})


SENTENCES = [
    sentence_of("They saw it", (1, 2, "nsubj"), (2, 0, "root"), (3, 2, "obj"), (3, 0, "root")),
    sentence_of("Hm"),
    sentence_of("a b c d e", (1, 2, "obj"), (2, 1, "acl"), (3, 1, "obj"), (3, 5, "obj"), (5, 0, "root")),
]
TASK = Graphs(arc_dim=6, label_dim=5, dropout=0.0, interpolation=0.3)
LABELS = TASK.labels(SENTENCES)
WIDTH = 5
MASK = torch.tensor([[True] * len(each) + [False] * (WIDTH - len(each)) for each in SENTENCES])


def _decoder(task: Graphs = TASK, labels: Labels = LABELS, seed: int = 0) -> GraphDecoder:
    torch.manual_seed(seed)
    decoder = task.new_decoder(4, labels).double()
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return decoder


def _words() -> Tensor:
    return torch.randn(3, WIDTH, 4, generator=torch.Generator().manual_seed(1), dtype=torch.double)


def _batch(labels: Labels = LABELS) -> GraphBatch:
    return TASK.collate([TASK.targets(sentence, labels) for sentence in SENTENCES], WIDTH)


def _label_scores(decoder: GraphDecoder, scores: PairScores) -> Tensor:
    """Per sentence, word, candidate and label, by the bilinear form."""
    diagonal, of_left, of_right = decoder.label.linear.weight.split(5, 1)
    left, right = scores.dependents[:, :, None], scores.heads[:, None]
    form = torch.einsum("bwxi,li,bxci->bwcl", left, diagonal, right)
    return form + left @ of_left.T + right @ of_right.T + decoder.label.linear.bias


def _pairs(words: int) -> list[tuple[int, int]]:
    """All pairs that may have an arc: words from 0, candidates from 1."""
    return [(d, h) for d, h in itertools.product(range(words), range(words + 1)) if h != d + 1]


def _gold(row: int) -> dict[tuple[int, int], str]:
    return {(d - 1, h): label for d, h, label in SENTENCES[row].layer("deps").arcs}


def test_loss_is_that_of_pairs_one_by_one() -> None:
    decoder = _decoder()
    scores = decoder(_words(), MASK)
    losses = decoder.loss(scores, _batch(), MASK)
    of_labels = _label_scores(decoder, scores)
    for row, sentence in enumerate(SENTENCES):
        gold, arcs, labels = _gold(row), 0.0, 0.0
        for d, h in _pairs(len(sentence)):
            probability = scores.arcs[row, d, h].sigmoid().item()
            arcs -= math.log(probability if (d, h) in gold else 1 - probability)
            if (d, h) in gold:
                labels -= of_labels[row, d, h].log_softmax(0)[LABELS.index(gold[d, h])].item()
        assert losses[row].item() == pytest.approx(0.7 * arcs + 0.3 * labels)


@pytest.mark.parametrize("connected", [False, True])
@pytest.mark.parametrize("bias", [-4.0, 0.0])
@pytest.mark.parametrize("seed", range(3))
def test_decoding_is_that_of_pairs_one_by_one(connected: bool, bias: float, seed: int) -> None:
    decoder = _decoder(Graphs(arc_dim=6, label_dim=5, dropout=0.0, connected=connected), seed=seed)
    scores = decoder(_words(), MASK)
    scores = scores._replace(arcs=scores.arcs + bias)
    of_labels = _label_scores(decoder, scores)
    for row, (sentence, graph) in enumerate(zip(SENTENCES, decoder.decode(scores, MASK), strict=True)):
        arcs = scores.arcs[row].tolist()
        expected = {pair for pair in _pairs(len(sentence)) if arcs[pair[0]][pair[1]] > 0}
        while connected and (missed := set(range(1, len(sentence) + 1)) - _reached(expected)):
            ways = [(d, h) for d, h in _pairs(len(sentence)) if d + 1 in missed and h not in missed]
            expected.add(max(ways, key=lambda pair: arcs[pair[0]][pair[1]]))
        assert {(d - 1, h) for d, h, _ in graph.arcs} == expected
        for d, h, label in graph.arcs:
            allowed = [name for name in LABELS.names if not connected or (name == "root") == (h == 0)]
            best = max(allowed, key=lambda name: of_labels[row, d - 1, h, LABELS.index(name)].item())
            assert label == best


def _reached(arcs: set[tuple[int, int]]) -> set[int]:
    """The words (from 1) that arcs reach from the root, and the root (0)."""
    reached = {0}
    for _ in arcs:
        reached |= {d + 1 for d, h in arcs if h in reached}
    return reached


def test_decoding_in_parts_is_decoding_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = _decoder()
    scores = decoder(_words(), MASK)
    whole = decoder.decode(scores, MASK)
    assert sum(len(graph.arcs) for graph in whole) > 3
    monkeypatch.setattr("mtl.tasks.decoders.graph._AT_ONCE", 3)
    assert decoder.decode(scores, MASK) == whole


def test_what_no_label_is_for_the_root_in_has_any_label_there() -> None:
    labels = Labels(["ARG1", "ARG2"])
    decoder = _decoder(Graphs(arc_dim=6, label_dim=5, dropout=0.0, connected=True), labels)
    decoded = decoder.decode(decoder(_words(), MASK), MASK)
    assert all(any(arc.head == 0 for arc in graph.arcs) for graph in decoded)


def test_unseen_labels_are_left_out_of_the_loss_and_of_the_score() -> None:
    few = Labels(["root"])
    decoder = _decoder(labels=few)
    scores = decoder(_words(), MASK)
    batch = _batch(few)
    assert (batch.labels == UNKNOWN).sum() == 6
    arcs_alone = _decoder(Graphs(arc_dim=6, label_dim=5, dropout=0.0, interpolation=0.0), few)
    # With one label, there is nothing to learn.
    torch.testing.assert_close(decoder.loss(scores, batch, MASK), 0.7 * arcs_alone.loss(scores, batch, MASK))
    assert decoder.structure_score(scores, batch, MASK).items.tolist() == [4, 0, 5]


def test_score_is_the_sum_over_the_arcs_and_parts_by_label() -> None:
    decoder = _decoder()
    scores = decoder(_words(), MASK)
    of_labels = _label_scores(decoder, scores)
    whole = decoder.structure_score(scores, _batch(), MASK)
    assert whole.items.tolist() == [4, 0, 5]
    for row in range(len(SENTENCES)):
        expected = sum(
            (scores.arcs[row, d, h] + of_labels[row, d, h, LABELS.index(label)]).item()
            for (d, h), label in _gold(row).items()
        )
        assert whole.score[row].item() == pytest.approx(expected)
    parts = [decoder.structure_score(scores, _batch(), MASK, label) for label in range(len(LABELS))]
    torch.testing.assert_close(torch.stack([part.score for part in parts]).sum(0), whole.score)


def test_an_untrained_decoder_has_a_head_per_word_in_a_sentence_of_twenty() -> None:
    decoder = TASK.new_decoder(4, LABELS)
    scores: PairScores = decoder(torch.randn(1, 20, 4), torch.ones(1, 20, dtype=torch.bool))
    assert scores.arcs.sigmoid().sum().item() / 20 == pytest.approx(0.95, abs=0.01)


def test_scores_by_hand() -> None:
    gold = [
        sentence_of("a b", (1, 2, "x"), (2, 0, "root"), (2, 1, "y"), (2, 1, "z")),
        Sentence(("unannotated",)),
        sentence_of("c"),
    ]
    predicted = [
        Graph((Arc(1, 2, "y"), Arc(2, 1, "z"))),
        Graph((Arc(1, 0, "root"),)),
        Graph((Arc(1, 0, "root"),)),
    ]
    metric = TASK.metric()
    metric.update(predicted, gold)
    scores = metric.compute()
    assert scores["precision"] == pytest.approx(100 / 3)
    assert scores["recall"] == 25.0
    assert scores["f1"] == pytest.approx(200 / 7)
    assert scores["unlabelled_precision"] == pytest.approx(200 / 3)
    assert scores["unlabelled_recall"] == pytest.approx(200 / 3)
    counts = metric.sentence_counts(predicted, gold)
    assert counts.tolist() == [[1, 2, 4, 2, 2, 3], [0] * 6, [0, 1, 0, 0, 1, 0]]
    assert metric.score(counts.sum(0)[None].astype(float))[0] == pytest.approx(scores["f1"])


def test_what_cannot_be_learned_is_counted() -> None:
    sentence = sentence_of("a b", (1, 2, "conj>x"), (1, 2, "x"), (1, 1, "conj>x"), (2, 0, "root"))
    assert TASK.items(sentence) == {"arcs": 4}
    assert TASK.dropped(sentence, LABELS) == 2
    targets = TASK.targets(sentence, Labels(["conj>x", "root", "x"]))
    assert [column.tolist() for column in targets] == [[0, 1], [2, 0], [2, 1]]
    with pytest.raises(ValueError, match="has no deps"):
        TASK.targets(Sentence(("a",)), LABELS)


def test_a_graph_is_its_arcs_in_order_each_once() -> None:
    first, second = Arc(1, 2, "x"), Arc(2, 0, "root")
    assert Graph((second, first)) == Graph((first, second))
    with pytest.raises(ValueError, match=r"the arc \[1, 2, 'x'\] occurs twice"):
        Graph((first, second, first))


@pytest.mark.parametrize("connected", [False, True])
def test_alternatives_are_heads_by_their_own_odds_and_relations_of_predicted_arcs(connected: bool) -> None:
    torch.manual_seed(1)
    decoder = GraphDecoder(8, LABELS, 6, 5, 0.0, 0.3, connected).eval()
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.6)
    mask = torch.tensor([[True] * 5, [True] * 2 + [False] * 3])
    scores = decoder(torch.randn(2, 5, 8), mask)
    graphs = decoder.decode(scores, mask)
    found = decoder.alternatives(scores, mask, graphs, 99)
    assert any(graph.arcs for graph in graphs)
    for row, (graph, items) in enumerate(zip(graphs, found, strict=True)):
        heads = [item for item in items if item.kind == "head"]
        relations = [item for item in items if item.kind == "relation"]
        assert len(heads) == int(mask[row].sum())
        for item in heads:
            odds = scores.arcs[row, item.start].sigmoid().tolist()
            assert dict(item.best) == pytest.approx({head: odds[head] for head, _ in item.best})
            assert item.start + 1 not in dict(item.best)
        assert [(item.end, item.head, item.best[0].value) for item in relations] == [*graph.arcs]
        assert all(sum(chance for _, chance in item.best) == pytest.approx(1) for item in relations)
    none = decoder.alternatives(scores, mask, [Graph(()), Graph(())], 1)
    assert [{item.kind for item in items} for items in none] == [{"head"}, {"head"}]

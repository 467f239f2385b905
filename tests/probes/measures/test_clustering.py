from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor

from mtl.probes.measures import clustering, corpus
from mtl.probes.measures import probe as probe_module
from mtl.probes.measures.clustering import ClusteringProbe
from mtl.probes.measures.probe import DRAWS, random_projections
from mtl.tasks.sentence import Sentence
from tests.probes import planted

LAYERS, HEADS, DIM = 2, 2, 3


def measured(
    outputs: Sequence[Tensor],
    task: str,
    sentences: Sequence[Sentence] = planted.CORPUS,
    fitted: tuple[Sequence[Sentence], Sequence[Tensor]] | None = None,
    batches: Sequence[Sequence[int]] | None = None,
    kept: int = probe_module.KEPT,
    seed: int = 0,
    projected: Sequence[Tensor] | None = None,
) -> pl.DataFrame:
    layers, heads, dim = outputs[0].shape[1:]
    matrices = planted.random_matrices(sentences, layers, heads, 0)
    batches = [range(len(sentences))] if batches is None else batches
    own = corpus.index(sentences, corpus.PROBE_TARGETS[task].items)
    elsewhere = None
    if fitted is None:
        other = own
    else:
        names = {*own.names, *corpus.index(fitted[0], corpus.PROBE_TARGETS[task].items).names}
        own = corpus.index(sentences, corpus.PROBE_TARGETS[task].items, names)
        other = corpus.index(fitted[0], corpus.PROBE_TARGETS[task].items, names)
        elsewhere = [
            planted.records_of(
                planted.random_matrices(fitted[0], layers, heads, 0), fitted[1], range(len(fitted[0]))
            )
        ]
    draws = 0 if projected is None else projected[0].shape[2]
    probe = ClusteringProbe(task, own, other, layers, heads, dim, draws=draws, seed=seed)

    def observe(batch: int) -> planted.HeadRecords:
        return planted.records_of(matrices, outputs, list(batches[batch]), projected)

    probe_module.run_probes(len(batches), observe, [probe], elsewhere, kept)
    return probe.compute()


Value = dict[tuple[str, int, int], float]


def values(table: pl.DataFrame, measure: str = "clustering") -> Value:
    rows = table.filter(pl.col("measure") == measure).select("label", "layer", "head", "value")
    return {(label, layer, head): value for label, layer, head, value in rows.iter_rows()}


def by_hand(
    outputs: Sequence[Tensor],
    task: str,
    sentences: Sequence[Sentence] = planted.CORPUS,
    fitted: tuple[Sequence[Sentence], Sequence[Tensor]] | None = None,
) -> Value:
    def vectors(
        of: Sequence[Sentence], out: Sequence[Tensor], layer: int, head: int
    ) -> list[tuple[str, Tensor]]:
        return [
            (item.label, output[item.start : item.end, layer, head].mean(0))
            for sentence, output in zip(of, out, strict=True)
            for item in corpus.PROBE_TARGETS[task].items(sentence)
        ]

    scores: Value = {}
    for layer in range(LAYERS):
        for head in range(HEADS):
            own = vectors(sentences, outputs, layer, head)
            groups: dict[str, list[Tensor]] = {}
            for label, vector in own if fitted is None else vectors(*fitted, layer, head):
                groups.setdefault(label, []).append(vector)
            centroids = {label: sum(members) / len(members) for label, members in groups.items()}
            hits: Counter[str] = Counter()
            for label, vector in own:
                nearness = {
                    name: float(vector @ centroid / vector.norm() / centroid.norm())
                    for name, centroid in centroids.items()
                }
                hits[label] += max(sorted(nearness), key=lambda name: nearness[name]) == label
            for label, count in Counter(label for label, _ in own).items():
                scores[label, layer, head] = hits[label] / count
    return scores


@pytest.mark.parametrize("task", ["pos", "ner", "con"])
@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_loop_over_the_definition(task: str, seed: int) -> None:
    outputs = planted.random_outputs(planted.CORPUS, LAYERS, HEADS, DIM, seed)
    assert values(measured(outputs, task)) == by_hand(outputs, task)


@pytest.mark.parametrize("seed", range(4))
def test_centroids_may_come_from_other_sentences(seed: int) -> None:
    """Labels that they do not have are not hit, and stay; labels only they have compete."""
    train, test = planted.CORPUS[:1], planted.CORPUS[2:]
    outputs = planted.random_outputs(test, LAYERS, HEADS, DIM, seed)
    fitted = (train, planted.random_outputs(train, LAYERS, HEADS, DIM, seed + 100))
    scores = values(measured(outputs, "pos", test, fitted))
    assert scores == by_hand(outputs, "pos", test, fitted)
    assert {label for label, _, _ in scores} == {"NNP", "VBD", "RB", "TO", "VB", "NNS"}
    assert all(value == 0 for (label, _, _), value in scores.items() if label in ("RB", "TO", "VB", "NNS"))


@pytest.mark.parametrize("kept", [0, 700, probe_module.KEPT])
def test_neither_batches_nor_the_bound_matter(kept: int) -> None:
    outputs = planted.random_outputs(planted.CORPUS, LAYERS, HEADS, DIM, 9)
    once = measured(outputs, "pos")
    assert once.equals(measured(outputs, "pos", batches=[(3, 2), (1,), (0,)], kept=kept))


def many(seed: int, words: int = 3000) -> tuple[Sequence[Sentence], Tensor]:
    """A long sentence of random tags of unlike frequency."""
    generator = torch.Generator().manual_seed(seed)
    tags = torch.multinomial(torch.tensor([0.5, 0.3, 0.15, 0.05]), words, True, generator=generator)
    return [Sentence(("w",) * words, tags=tuple("ABCD"[tag] for tag in tags.tolist()))], tags


def test_well_separated_clusters_score_one_and_shuffled_labels_score_chance() -> None:
    sentences, tags = many(1)
    noise = planted.random_outputs(sentences, 1, 1, 8, 2)[0]
    outputs = [torch.eye(8, dtype=torch.float64)[tags][:, None, None] * 5 + 0.1 * noise]
    table = measured(outputs, "pos", sentences)
    assert set(values(table).values()) == {1.0}
    shuffled = table.filter(measure="clustering_shuffled")
    # Whatever a head says without knowing the label is right as often as it says so: the shares that the
    # labels are given sum to one.
    assert shuffled["value"].sum() == pytest.approx(1, abs=0.15)
    most = table.filter(measure="clustering_majority")
    assert dict(most.select("label", "value").iter_rows()) == {"A": 1, "B": 0, "C": 0, "D": 0}
    assert most["head"].null_count() == 4


def test_random_vectors_score_what_shuffled_labels_do() -> None:
    sentences, _ = many(3)
    outputs = planted.random_outputs(sentences, 1, 1, 8, 4)
    table = measured(outputs, "pos", sentences)
    true, shuffled = (
        (rows["value"] * rows["count"]).sum() / 3000
        for rows in (table.filter(measure="clustering"), table.filter(measure="clustering_shuffled"))
    )
    assert true == pytest.approx(shuffled, abs=0.05)


@pytest.mark.parametrize("task", ["pos", "ner", "con"])
def test_projections_are_scored_as_heads_are_and_averaged(task: str) -> None:
    """Projections that are the heads themselves have the mean of the heads' scores, per label and layer."""
    outputs = planted.random_outputs(planted.CORPUS, LAYERS, HEADS, DIM, 5)
    table = measured(outputs, task, projected=outputs, seed=7)
    own = table.filter(~pl.col("measure").is_in(["clustering_projection"]))
    assert own.equals(measured(outputs, task, seed=7))
    rows = table.filter(measure="clustering_projection")
    assert rows["head"].null_count() == rows.height
    assert set(rows["choice"]) == {f"self, {HEADS} draws of seed 7"}
    scores = by_hand(outputs, task)
    for label, layer, value in rows.select("label", "layer", "value").iter_rows():
        assert value == pytest.approx(sum(scores[label, layer, head] for head in range(HEADS)) / HEADS)
    assert rows.height == len(scores) // HEADS


@pytest.mark.slow
def test_a_head_that_is_a_random_projection_has_no_skill_beyond_the_input_and_one_with_labels_has() -> None:
    sentences, tags = many(6, words=1500)
    hidden, dim, heads = 48, 6, 40
    generator = torch.Generator().manual_seed(7)
    # The layer's input holds the labels weakly: a projection finds some of them again.
    centres = torch.randn(4, hidden, generator=generator, dtype=torch.float64)
    read = centres[tags] + 3 * torch.randn(len(tags), hidden, generator=generator, dtype=torch.float64)
    planted_heads = random_projections(1, hidden, dim, heads, seed=8)[0].double()
    outputs = torch.einsum("wi,ihd->whd", read, planted_heads)
    outputs = torch.cat([outputs, torch.eye(4, dim, dtype=torch.float64)[tags][:, None]], dim=1)
    projected = torch.einsum("wi,ijd->wjd", read, random_projections(1, hidden, dim)[0].double())
    table = measured([outputs[:, None]], "pos", sentences, projected=[projected[:, None]])
    score, count = pl.col("value") * pl.col("count"), pl.col("count").sum()
    of_head = table.filter(measure="clustering").group_by("head").agg(score.sum() / count).sort("head")
    level = table.filter(measure="clustering_projection").select(score.sum() / count).item()
    shuffled = table.filter(measure="clustering_shuffled").select(score.sum() / count).item()
    assert level > shuffled + 0.03  # much of it is no property of a head
    of_random, of_labels = of_head["value"][:heads].to_numpy(), of_head["value"][heads]
    # The error of a mean over as many heads and as many draws.
    error = of_random.std(ddof=1) * (1 / heads + 1 / DRAWS) ** 0.5
    assert abs(of_random.mean() - level) < 3 * error
    assert of_labels == 1
    assert of_labels - level > 0.3


def test_a_head_that_writes_nothing_hits_nothing() -> None:
    outputs = planted.random_outputs(planted.CORPUS, LAYERS, HEADS, DIM, 9)
    for output in outputs:
        output[:, 1, 0] = 0
    scores = values(measured(outputs, "pos"))
    assert {value for (_, layer, head), value in scores.items() if (layer, head) == (1, 0)} == {0.0}
    assert max(scores.values()) > 0


def test_centroids_need_items_of_the_same_labels() -> None:
    own = corpus.index(planted.CORPUS, corpus.tags)
    with pytest.raises(ValueError, match="same labels"):
        ClusteringProbe("pos", own, corpus.index(planted.CORPUS, corpus.named_entities), 1, 1, 1)
    with pytest.raises(ValueError, match="no item"):
        ClusteringProbe("pos", own, corpus.index((), corpus.tags, own.names), 1, 1, 1)


def test_a_label_without_a_centroid_never_wins() -> None:
    """Not even over centroids that point the other way."""
    train = [Sentence(("w",), tags=("B",))]
    test = [Sentence(("w", "w"), tags=("A", "B"))]
    toward = torch.ones(1, 1, 1, 2, dtype=torch.float64)
    scores = values(measured([-torch.cat([toward, toward])], "pos", test, (train, [toward])))
    assert scores == {("A", 0, 0): 0.0, ("B", 0, 0): 1.0}


def test_of_equally_near_labels_the_first_counts_and_a_nearness_of_0_never() -> None:
    generator = np.random.default_rng(0)
    nearness = generator.integers(-1, 3, (7, 40, 4)).astype(np.float32)
    nearness[nearness < 0] = -np.inf
    nearness[..., 3] = np.maximum(nearness[..., 3], 0)
    label = generator.integers(0, 4, 40)
    expected = (nearness.argmax(-1) == label) & (nearness.max(-1) != 0)
    greatest = np.take_along_axis(nearness, label[None, :, None], -1)[..., 0] == nearness.max(-1)
    assert 0 < expected.sum() < greatest.sum()  # some are equal to an earlier label, or 0
    found = clustering._nearest(torch.from_numpy(nearness), torch.from_numpy(label))
    assert (found.numpy() == expected).all()

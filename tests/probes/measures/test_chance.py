from __future__ import annotations

import torch

from mtl.probes.measures import attention, corpus
from mtl.tasks.sentence import Arcs, Frame, Sentence, Span


def arcs(*heads: int) -> Sentence:
    """Every relation is `r`, but for the root's."""
    relations = tuple("r" if head else "root" for head in heads)
    return Sentence(("w",) * len(heads), arcs=Arcs(heads, relations))


def best(sentence: Sentence) -> dict[str, float]:
    index = corpus.index([sentence], corpus.arcs)
    return dict(zip(index.names, attention.best_offset(index)[0].tolist(), strict=True))


def test_a_head_at_one_offset_hits_arcs_in_both_directions() -> None:
    assert best(arcs(2, 0, 2)) == {"r": 1.0, "root": 1.0}
    assert best(arcs(2, 0, 2, 2, 2)) == {"r": 0.5, "root": 1.0}


def test_offsets_end_at_five() -> None:
    assert best(arcs(0, 0, 0, 0, 0)) == {"root": 0.2}
    assert best(arcs(6, 6, 6, 6, 6, 0)) == {"r": 0.2, "root": 0.0}
    assert best(arcs(0, 1, 1, 1, 1, 1, 1, 1)) == {"r": 1 / 7, "root": 1.0}


def test_directions_apart_hit_one_side_each() -> None:
    index = corpus.index([arcs(2, 0, 2)], corpus.arcs)
    shares = [attention.best_share(hit, index)[0].tolist() for hit in attention.offset_hits(index)]
    assert shares == [[0.5, 1.0], [0.5, 1.0]]
    offset = dict(
        zip(index.names, attention.best_share(attention.offset_hits(index)[1], index)[1], strict=True)
    )
    assert offset["root"] == -2  # from the second word to before the first


def test_a_span_is_hit_at_any_of_its_words() -> None:
    frames = (Frame(4, None, (Span(0, 4, "A"),)), Frame(0, None, (Span(2, 5, "A"),)))
    index = corpus.index([Sentence(("w",) * 5, frames=frames)], corpus.arguments)
    share, offset = attention.best_offset(index)
    assert (share.tolist(), offset.tolist()) == ([1.0], [-4])


def test_lengths_are_those_to_the_nearest_word() -> None:
    """Arcs from the root have none; an anchor within the item is no word away."""
    index = corpus.index([arcs(2, 0, 2, 3), arcs(0, 1, 1, 1)], corpus.arcs)
    lengths, counts = attention.mean_lengths(index)
    assert dict(zip(index.names, zip(lengths, counts, strict=True), strict=True)) == {
        "r": ((1 + 1 + 1 + 1 + 2 + 3) / 6, 6),
        "root": (0, 0),
    }
    frames = (Frame(4, None, (Span(0, 3, "A"),)), Frame(0, None, (Span(3, 5, "A"), Span(0, 2, "B"))))
    index = corpus.index([Sentence(("w",) * 5, frames=frames)], corpus.arguments)
    lengths, counts = attention.mean_lengths(index)
    assert (lengths.tolist(), counts.tolist()) == ([(2 + 3) / 2, 0], [2, 1])


def test_the_majority_is_that_of_the_items_to_fit() -> None:
    index = corpus.index([Sentence(("w",) * 3, tags=("A", "B", "B"))], corpus.tags)
    other = corpus.index([Sentence(("w",) * 3, tags=("A", "A", "B"))], corpus.tags)
    assert attention.majority(index, index).tolist() == [0, 1]
    assert attention.majority(index, other).tolist() == [1, 0]


def test_shuffling_keeps_the_labels_and_depends_on_the_seed_alone() -> None:
    labels = torch.arange(1000) % 7
    one, again, other = (attention.shuffled(labels, seed) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.equal(one.sort().values, labels.sort().values)


def by_hand(sentence: Sentence, relation: str, offset: int | None) -> list[float]:
    """Share of arcs whose head sees the dependent at the offset (`None`: any), and the reverse, not ahead."""
    assert sentence.arcs is not None
    arcs = [
        (head - 1, dependent)
        for dependent, (head, name) in enumerate(
            zip(sentence.arcs.heads, sentence.arcs.relations, strict=True)
        )
        if name == relation
    ]
    shares = []
    for turn in (1, -1):
        steps = [turn * (dependent - head) for head, dependent in arcs]
        shares.append(sum(step <= 0 and offset in (step, None) for step in steps) / len(steps))
    return shares


def test_heads_without_sight_of_later_words_are_compared_with_such_baselines() -> None:
    sentence = arcs(3, 3, 0, 3, 6, 3, 9, 9, 6, 6)
    index = corpus.index([sentence], corpus.arcs)
    found = [
        dict(zip(index.names, attention.best_share(hit, index)[0], strict=True))
        for hit in attention.offset_hits(index, causal=True)
    ]
    limits = [dict(zip(index.names, share, strict=True)) for share in attention.possible(index)]
    for relation in ("r", "root"):
        by_offset = [by_hand(sentence, relation, offset) for offset in attention.OFFSETS]
        for turn in range(2):
            assert found[turn][relation] == max(shares[turn] for shares in by_offset)
            assert limits[turn][relation] == by_hand(sentence, relation, None)[turn]
    # An arc has one later end, at which alone it can be met.
    assert sum(limits[turn]["r"] for turn in range(2)) == 1
    assert (limits[0]["root"], limits[1]["root"]) == (0, 1)
    both, _ = attention.best_offset(index, causal=True)
    assert both.tolist() == attention.best_offset(index)[0].tolist()


def test_spans_that_reach_over_their_anchor_can_be_met_from_both_ends() -> None:
    frames = (Frame(2, None, (Span(0, 1, "A"), Span(3, 5, "B"), Span(1, 4, "C"))),)
    index = corpus.index([Sentence(("w",) * 5, frames=frames)], corpus.arguments)
    shares = [dict(zip(index.names, share.tolist(), strict=True)) for share in attention.possible(index)]
    assert shares == [{"A": 1, "B": 0, "C": 1}, {"A": 0, "B": 1, "C": 1}]
    # The predicate sees A two before it; a word of B sees the predicate one or two before it.
    assert attention.best_offset(index, causal=True)[0].tolist() == [1, 1, 1]

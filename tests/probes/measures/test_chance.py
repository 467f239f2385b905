from __future__ import annotations

import torch

from probes.measures import chance, items
from tasks.sentence import Arcs, Frame, Sentence, Span


def arcs(*heads: int) -> Sentence:
    """Every relation is `r`, but for the root's."""
    relations = tuple("r" if head else "root" for head in heads)
    return Sentence(("w",) * len(heads), arcs=Arcs(heads, relations))


def best(sentence: Sentence) -> dict[str, float]:
    index = items.index([sentence], items.arcs)
    return dict(zip(index.names, chance.best_offset(index)[0].tolist(), strict=True))


def test_a_head_at_one_offset_hits_arcs_in_both_directions() -> None:
    assert best(arcs(2, 0, 2)) == {"r": 1.0, "root": 1.0}
    assert best(arcs(2, 0, 2, 2, 2)) == {"r": 0.5, "root": 1.0}


def test_offsets_end_at_five() -> None:
    assert best(arcs(0, 0, 0, 0, 0)) == {"root": 0.2}
    assert best(arcs(6, 6, 6, 6, 6, 0)) == {"r": 0.2, "root": 0.0}
    assert best(arcs(0, 1, 1, 1, 1, 1, 1, 1)) == {"r": 1 / 7, "root": 1.0}


def test_directions_apart_hit_one_side_each() -> None:
    index = items.index([arcs(2, 0, 2)], items.arcs)
    shares = [chance.best_share(hit, index)[0].tolist() for hit in chance.offset_hits(index)]
    assert shares == [[0.5, 1.0], [0.5, 1.0]]
    offset = dict(zip(index.names, chance.best_share(chance.offset_hits(index)[1], index)[1], strict=True))
    assert offset["root"] == -2  # from the second word to before the first


def test_a_span_is_hit_at_any_of_its_words() -> None:
    frames = (Frame(4, None, (Span(0, 4, "A"),)), Frame(0, None, (Span(2, 5, "A"),)))
    index = items.index([Sentence(("w",) * 5, frames=frames)], items.arguments)
    share, offset = chance.best_offset(index)
    assert (share.tolist(), offset.tolist()) == ([1.0], [-4])


def test_the_majority_is_that_of_the_items_to_fit() -> None:
    index = items.index([Sentence(("w",) * 3, tags=("A", "B", "B"))], items.tags)
    other = items.index([Sentence(("w",) * 3, tags=("A", "A", "B"))], items.tags)
    assert chance.majority(index, index).tolist() == [0, 1]
    assert chance.majority(index, other).tolist() == [1, 0]


def test_shuffling_keeps_the_labels_and_depends_on_the_seed_alone() -> None:
    labels = torch.arange(1000) % 7
    one, again, other = (chance.shuffled(labels, seed) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.equal(one.sort().values, labels.sort().values)

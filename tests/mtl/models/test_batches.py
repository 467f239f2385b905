"""Plans and batches: nothing lost, nothing doubled, the same on every rank."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mtl.models.batches import Example, aligned_batches
from mtl.models.buckets import buckets
from mtl.models.packed import together
from mtl.models.subwords import Tokens
from mtl.tasks.sentence import Sentence

NO_TOKENS = Tokens(np.zeros(1, np.int32), np.ones(1, np.int32))


def example(length: int, *tasks: str) -> Example:
    targets: dict[str, Any] = dict.fromkeys(tasks, ())
    return Example(Sentence(("a",) * length), NO_TOKENS, length, targets)


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=80),
    st.integers(1, 200),
    st.one_of(st.none(), st.integers(1, 9)),
    st.one_of(st.none(), st.integers(0, 5)),
)
def test_buckets_hold_every_index_once_within_the_budget(lengths, budget, most, seed):
    rng = None if seed is None else np.random.default_rng(seed)
    batches = buckets(lengths, budget, most, rng)
    assert Counter(index for batch in batches for index in batch) == Counter(range(len(lengths)))
    for batch in batches:
        padded = len(batch) * max(lengths[index] for index in batch)
        assert padded <= budget or len(batch) == 1
        assert most is None or len(batch) <= most


def test_buckets_are_nearly_without_padding():
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, 60, 2000).tolist()
    batches = buckets(lengths, 6400, 16, np.random.default_rng(1))
    padded = sum(len(batch) * max(lengths[index] for index in batch) for batch in batches)
    assert sum(lengths) / padded > 0.85


@given(st.lists(st.integers(1, 300), min_size=1, max_size=200), st.integers(1, 2000))
def test_batches_that_are_not_drawn_hold_little_padding(lengths, budget):
    for batch in buckets(lengths, budget, None, None):
        of_batch = [lengths[index] for index in batch]
        assert len(batch) * max(of_batch) - sum(of_batch) <= budget / 16


def test_batches_differ_from_epoch_to_epoch_and_not_from_rank_to_rank():
    lengths = list(range(1, 100))
    first, again, other = (buckets(lengths, 200, None, np.random.default_rng([1, e])) for e in (0, 0, 1))
    assert first == again
    assert first != other


CORPUS = [
    example(5, "pos", "dep"),
    example(6, "pos"),
    example(7),
    example(8, "dep"),
    example(9, "pos", "dep"),
]


def test_an_aligned_plan_has_every_annotated_sentence_once_for_all_tasks():
    steps = aligned_batches(CORPUS, ("pos", "dep"), 20, None, np.random.default_rng(0))
    assert sorted(index for step in steps for index in step.indices) == [0, 1, 3, 4]
    assert {step.tasks for step in steps} == {("pos", "dep")}


@dataclass(frozen=True)
class Share:
    """What a rank gets of a batch of six."""

    rank: int
    expected: tuple[int, ...]


@pytest.mark.parametrize("share", [Share(0, (0, 2, 4)), Share(1, (1, 3, 5))])
def test_ranks_split_a_batch(share):
    whole = list(range(6))
    assert tuple(whole[share.rank :: 2]) == share.expected


def test_tensors_packed_in_one_block_are_what_they_were():
    made = [
        torch.arange(3),
        torch.tensor([[True, False, True]]),
        torch.zeros(0, 4, dtype=torch.long),
        torch.tensor(0.5),
        torch.arange(6.0).view(2, 3).T,
        torch.arange(4, dtype=torch.int32),
    ]
    packed = together(made, torch.device("cpu"))
    for one, other in zip(made, packed, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=0)
    assert len({tensor.untyped_storage().data_ptr() for tensor in packed}) == 1

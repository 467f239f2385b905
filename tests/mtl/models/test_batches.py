"""Plans and batches: nothing lost, nothing doubled, the same on every rank."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mtl.models.batches import BatchIndices, BatchLoader, Example, aligned_batches, examples
from mtl.models.buckets import buckets
from mtl.models.packed import together
from mtl.models.subwords import SubwordTokenizer, Tokens
from mtl.tasks.pos import Pos
from mtl.tasks.sentence import Sentence
from tests.mtl import tiny

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
def test_deterministic_batches_hold_little_padding(lengths, budget):
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


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_share_each_batch_and_divide_by_the_units_of_the_whole_update(ranks):
    tokenizer, tasks = SubwordTokenizer(tiny.tokenizer("bert"), 64), {"pos": Pos()}
    sentences = [Sentence(("dog",) * length, tags=("NN",) * length) for length in (1, 2, 4, 8, 16)]
    corpus = examples(sentences, tokenizer, tasks, {"pos": tasks["pos"].labels(sentences)})
    plan = [BatchIndices(indices, ("pos",)) for indices in ((4, 0, 1), (2,), (3,))]
    loaders = [
        BatchLoader(corpus, tokenizer, tasks, plan, rank, ranks, accumulate=2) for rank in range(ranks)
    ]
    shares = [list(loader) for loader in loaders]
    for number, of_ranks in enumerate(zip(*shares, strict=True)):
        chosen = plan[number].indices
        assert [batch.idle for batch in of_ranks] == [rank >= len(chosen) for rank in range(ranks)]
        taken = [sentence for batch in of_ranks if not batch.idle for sentence in batch.sentences]
        assert sorted(map(len, taken)) == sorted(len(sentences[index]) for index in chosen)
        words = 1 + 2 + 4 + 16 if number < 2 else 8
        assert all(batch.loss_units == {"pos": words} for batch in of_ranks)


def test_an_interrupted_epoch_goes_on_where_it_was():
    tokenizer = SubwordTokenizer(tiny.tokenizer("bert"), 64)
    corpus = [
        Example(Sentence(("dog",) * length), tokenizer.encode(("dog",) * length), length, {})
        for length in (1, 2, 4)
    ]
    loader = BatchLoader(corpus, tokenizer, {}, [BatchIndices((index,), ()) for index in range(3)], skip=2)
    first, second = ([len(batch.sentences[0]) for batch in loader] for _ in range(2))
    assert (first, second) == ([4], [1, 2, 4])


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

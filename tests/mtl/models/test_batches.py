"""Plans and batches: nothing lost, nothing doubled, the same on every rank."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtl.models.batches import Example, aligned_plan, buckets, separate_plan
from mtl.models.subwords import Tokens
from tasks.sentence import Sentence

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
    steps = aligned_plan(CORPUS, ("pos", "dep"), 20, None, np.random.default_rng(0))
    assert sorted(index for step in steps for index in step.indices) == [0, 1, 3, 4]
    assert {step.tasks for step in steps} == {("pos", "dep")}


@pytest.mark.parametrize("sampling", ["in_turn", "proportional"])
def test_a_separate_plan_passes_over_each_tasks_data_once(sampling):
    steps = separate_plan(CORPUS, ("pos", "dep"), 10, None, np.random.default_rng(0), sampling, 2.0)
    seen = {"pos": Counter(), "dep": Counter()}
    for step in steps:
        (task,) = step.tasks
        seen[task].update(step.indices)
    assert seen == {"pos": Counter([0, 1, 4]), "dep": Counter([0, 3, 4])}
    if sampling == "in_turn":
        assert [step.tasks[0] for step in steps[:4]] == ["pos", "dep", "pos", "dep"]


def test_tempered_sampling_draws_tasks_in_proportion_to_a_power_of_their_size():
    corpus = [example(5, "pos") for _ in range(900)] + [example(5, "dep") for _ in range(100)]
    steps = [
        step
        for seed in range(20)
        for step in separate_plan(corpus, ("pos", "dep"), 5, 1, np.random.default_rng(seed), "tempered", 2.0)
    ]
    share = sum(step.tasks == ("dep",) for step in steps) / len(steps)
    # 100^(1/2) / (900^(1/2) + 100^(1/2)) = 1/4; 20,000 draws have a standard deviation of 0.003.
    assert abs(share - 0.25) < 0.015


@dataclass(frozen=True)
class Share:
    """What a rank gets of a batch of six."""

    rank: int
    expected: tuple[int, ...]


@pytest.mark.parametrize("share", [Share(0, (0, 2, 4)), Share(1, (1, 3, 5))])
def test_ranks_split_a_batch(share):
    whole = list(range(6))
    assert tuple(whole[share.rank :: 2]) == share.expected

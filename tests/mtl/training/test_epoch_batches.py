"""The batches of an epoch: of one task each, as they always were, and how many they are."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from mtl.config.schema import BatchConfig
from mtl.models.batches import BATCH_PAIRS, Example
from mtl.models.subwords import Tokens
from mtl.tasks.sentence import Sentence
from mtl.training.data import EpochBatches, separate_batches

NO_TOKENS = Tokens(np.zeros(1, np.int32), np.ones(1, np.int32))


def example(length: int, *tasks: str) -> Example:
    targets: dict[str, Any] = dict.fromkeys(tasks, ())
    return Example(Sentence(("a",) * length), NO_TOKENS, length, targets)


CORPUS = [
    example(5, "pos", "dep"),
    example(6, "pos"),
    example(7),
    example(8, "dep"),
    example(9, "pos", "dep"),
]


@pytest.mark.parametrize("sampling", ["in_turn", "proportional"])
def test_a_separate_plan_passes_over_each_tasks_data_once(sampling):
    steps = separate_batches(CORPUS, ("pos", "dep"), 10, None, np.random.default_rng(0), sampling, 2.0)
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
        for step in separate_batches(
            corpus, ("pos", "dep"), 5, 1, np.random.default_rng(seed), "tempered", 2.0
        )
    ]
    share = sum(step.tasks == ("dep",) for step in steps) / len(steps)
    # 100^(1/2) / (900^(1/2) + 100^(1/2)) = 1/4; 20,000 draws have a standard deviation of 0.003.
    assert abs(share - 0.25) < 0.015


def one_by_one(lengths, batch_tokens, batch_sentences, rng):
    """The oracle of buckets: sentence by sentence, a batch ends before the one that it has no room for."""
    order = np.argsort(
        -(np.asarray(lengths, dtype=np.float64) * rng.uniform(0.9, 1.1, len(lengths))), kind="stable"
    )
    batches, current, longest = [], [], 0
    for index in order.tolist():
        longest, rows = max(longest, lengths[index]), len(current) + 1
        full = batch_sentences is not None and len(current) >= batch_sentences
        if current and (full or longest * rows > batch_tokens or longest**2 * rows > BATCH_PAIRS):
            batches.append(tuple(current))
            current, longest = [], lengths[index]
        current.append(index)
    batches += [tuple(current)] if current else []
    return [batches[index] for index in rng.permutation(len(batches))]


def plan_of(corpus, tasks, config, rng):
    """The oracle of an epoch without sampling: (task, indices) of each batch, by `one_by_one`."""
    of_task = []
    for names in [tasks] if config.mode == "aligned" else [(name,) for name in tasks]:
        used = [index for index, one in enumerate(corpus) if set(names) & set(one.targets)]
        batches = one_by_one([corpus[index].length for index in used], config.tokens, config.sentences, rng)
        of_task.append([(names, tuple(used[index] for index in batch)) for batch in batches])
    longest = max(map(len, of_task))
    return [batches_of[turn] for turn in range(longest) for batches_of in of_task if turn < len(batches_of)]


@pytest.mark.parametrize("sentences", [None, 1, 7])
@pytest.mark.parametrize("tokens", [3, 128, 40_000])
@pytest.mark.parametrize("mode", ["aligned", "separate"])
def test_batches_and_their_number_are_those_of_packing_one_by_one(mode, tokens, sentences):
    random = np.random.default_rng(7)
    names = ("pos", "dep", "ner")
    corpus = [
        example(int(length), *(name for name in names if random.random() < 0.5))
        for length in random.geometric(0.03, 300)
    ]
    corpus += [
        example(1200, "pos"),
        example(400, "dep"),
        example(400, "ner", "pos"),
    ]  # bounded by pairs of words
    config = BatchConfig(mode=mode, tokens=tokens, sentences=sentences, sampling="in_turn")
    batches_of = EpochBatches(config, 5, corpus, names)
    counts = []
    for epoch in range(3):
        expected = plan_of(corpus, names, config, np.random.default_rng([5, epoch]))
        assert [(step.tasks, step.indices) for step in batches_of(epoch)] == expected
        counts.append(len(expected))
    for accumulate in (1, 4):
        assert batches_of.updates(3, accumulate) == sum(math.ceil(count / accumulate) for count in counts)


@pytest.mark.parametrize("sampling", ["in_turn", "proportional", "tempered"])
def test_updates_are_counted_for_every_way_of_sampling(sampling):
    config = BatchConfig(mode="separate", tokens=10, sampling=sampling)
    batches_of = EpochBatches(config, 1, CORPUS * 9, ("pos", "dep", "con"))  # nothing is annotated with con
    assert batches_of.updates(4, 2) == sum(math.ceil(len(batches_of(epoch)) / 2) for epoch in range(4))


def test_counting_updates_makes_no_plan(monkeypatch):
    def made(*_):
        raise AssertionError("a batch was made")

    batches_of = EpochBatches(BatchConfig(tokens=10), 1, CORPUS, ("pos", "dep"))
    expected = sum(len(batches_of(epoch)) for epoch in range(5))
    monkeypatch.setattr("mtl.models.batches.BatchIndices", made)
    assert batches_of.updates(5, 1) == expected

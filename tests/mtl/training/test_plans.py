"""Plans of batches of one task each."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from mtl.models.batches import Example
from mtl.models.subwords import Tokens
from mtl.tasks.sentence import Sentence
from mtl.training.plans import separate_plan

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

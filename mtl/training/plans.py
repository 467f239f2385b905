"""The batches of an epoch, and their order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mtl.config.schema import BatchConfig
from mtl.models.batches import Example, Step, aligned_plan, annotated_lengths, bucket_slices

Sampling = Literal["in_turn", "proportional", "tempered"]


@dataclass(frozen=True)
class Planner:
    """Makes the batches of each epoch, which are the same on every rank."""

    config: BatchConfig
    seed: int
    corpus: Sequence[Example]
    tasks: tuple[str, ...]

    def __call__(self, epoch: int) -> list[Step]:
        """The batches of an epoch, counted from 0."""
        config, rng = self.config, self._generator(epoch)
        if config.mode == "aligned":
            return aligned_plan(self.corpus, self.tasks, config.tokens, config.sentences, rng)
        return separate_plan(
            self.corpus, self.tasks, config.tokens, config.sentences, rng, config.sampling, config.temperature
        )

    def updates(self, epochs: int, accumulate: int) -> int:
        """The updates of so many epochs, of up to `accumulate` batches each.

        Lengths are what decides how many batches an epoch has, so that no plan is made.
        """
        together = [self.tasks] if self.config.mode == "aligned" else [(name,) for name in self.tasks]
        lengths = [annotated_lengths(self.corpus, tasks)[1] for tasks in together]
        updates = 0
        for epoch in range(epochs):
            rng = self._generator(epoch)
            batches = [bucket_slices(of, self.config.tokens, self.config.sentences, rng)[1] for of in lengths]
            updates += math.ceil(sum(map(len, batches)) / accumulate)
        return updates

    def _generator(self, epoch: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, epoch])


def separate_plan(
    corpus: Sequence[Example],
    tasks: Sequence[str],
    batch_tokens: int,
    batch_sentences: int | None,
    rng: np.random.Generator,
    sampling: Sampling,
    temperature: float,
) -> list[Step]:
    """Batches of one task each (He & Choi 2021).

    `in_turn` alternates between tasks until each has passed over its data; `proportional` shuffles all
    batches of all tasks; `tempered` draws a task for each of as many batches as there are in all, task k of
    n_k batches with a probability proportional to n_k^(1/temperature). A drawn task gives its next batch, and
    its first one again after the last.
    """
    plans = {name: aligned_plan(corpus, (name,), batch_tokens, batch_sentences, rng) for name in tasks}
    plans = {name: plan for name, plan in plans.items() if plan}
    counts = np.array([len(plan) for plan in plans.values()])
    if sampling == "in_turn":
        longest = max(counts, default=0)
        return [plan[turn] for turn in range(longest) for plan in plans.values() if turn < len(plan)]
    if sampling == "proportional":
        steps = [step for plan in plans.values() for step in plan]
        return [steps[index] for index in rng.permutation(len(steps))]
    weights = counts ** (1 / temperature)
    names = list(plans)
    drawn = rng.choice(len(names), size=counts.sum(), p=weights / weights.sum())
    position = dict.fromkeys(names, 0)
    steps = []
    for choice in drawn.tolist():
        plan = plans[names[choice]]
        steps.append(plan[position[names[choice]] % len(plan)])
        position[names[choice]] += 1
    return steps

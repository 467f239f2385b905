"""The batches of an epoch, and their order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mtl.config.schema import BatchConfig
from mtl.models.batches import BatchIndices, Example, aligned_batches, corpus_of
from mtl.models.buckets import bucket_slices

Sampling = Literal["in_turn", "proportional", "tempered"]


@dataclass(frozen=True)
class EpochBatches:
    """Makes the batches of each epoch, which are the same on every rank."""

    config: BatchConfig
    seed: int
    corpus: Sequence[Example]
    tasks: tuple[str, ...]

    def __call__(self, epoch: int) -> list[BatchIndices]:
        """The batches of an epoch; epochs are counted from 0."""
        config, rng = self.config, self._generator(epoch)
        if config.mode == "aligned":
            return aligned_batches(self.corpus, self.tasks, config.tokens, config.sentences, rng)
        return separate_batches(
            self.corpus, self.tasks, config.tokens, config.sentences, rng, config.sampling, config.temperature
        )

    def updates(self, epochs: int, accumulate: int) -> int:
        """The number of updates in `epochs` epochs; an update takes up to `accumulate` batches.

        It follows from the lengths of sentences and the seed, so no batch is made.
        """
        together = [self.tasks] if self.config.mode == "aligned" else [(name,) for name in self.tasks]
        lengths = [corpus_of(self.corpus).annotated_lengths(tasks)[1] for tasks in together]
        updates = 0
        for epoch in range(epochs):
            rng = self._generator(epoch)
            batches = [bucket_slices(of, self.config.tokens, self.config.sentences, rng)[1] for of in lengths]
            updates += math.ceil(sum(map(len, batches)) / accumulate)
        return updates

    def _generator(self, epoch: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, epoch])


def separate_batches(
    corpus: Sequence[Example],
    tasks: Sequence[str],
    batch_tokens: int,
    batch_sentences: int | None,
    rng: np.random.Generator,
    sampling: Sampling,
    temperature: float,
) -> list[BatchIndices]:
    """Batches of one task each (He & Choi 2021).

    `in_turn` alternates between tasks until each has passed over its data. `proportional` shuffles all
    batches of all tasks. `tempered` makes as many batches as there are in all, and draws a task for each:
    task k, which has n_k batches, with a probability proportional to n_k^(1/temperature). A drawn task gives
    its next batch; after its last batch it starts again with its first.
    """
    of_task = {name: aligned_batches(corpus, (name,), batch_tokens, batch_sentences, rng) for name in tasks}
    of_task = {name: batches for name, batches in of_task.items() if batches}
    counts = np.array([len(batches) for batches in of_task.values()])
    if sampling == "in_turn":
        longest = max(counts, default=0)
        return [own[turn] for turn in range(longest) for own in of_task.values() if turn < len(own)]
    if sampling == "proportional":
        together = [batch for own in of_task.values() for batch in own]
        return [together[index] for index in rng.permutation(len(together))]
    weights = counts ** (1 / temperature)
    names = list(of_task)
    drawn = rng.choice(len(names), size=counts.sum(), p=weights / weights.sum())
    position = dict.fromkeys(names, 0)
    chosen = []
    for choice in drawn.tolist():
        own = of_task[names[choice]]
        chosen.append(own[position[names[choice]] % len(own)])
        position[names[choice]] += 1
    return chosen

"""The corpus of a run, read and checked; the batches of an epoch, and their order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import pytorch_lightning as pl
import torch
from rich.console import Console

from mtl.config.schema import BatchConfig, TrainConfig
from mtl.corpora.checks import CorpusCheck, Seen, notes_on, seen_in
from mtl.corpora.load import is_on_disk, refuse_files_of_two_splits, require_layers, require_seen
from mtl.models.batches import (
    Batch,
    BatchIndices,
    BatchLoader,
    Example,
    aligned_batches,
    bucket_slices,
    describe_long,
    example_corpus,
    require_limit,
)
from mtl.models.inputs import InputCache
from mtl.models.joint import JointModel
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Task
from mtl.training.ranks import rank_and_ranks
from mtl.training.run_log import PLAIN
from mtl.training.store import LeftOut, SentencesInMemory, TrainSentences, stored_sentences


@dataclass(frozen=True)
class Splits:
    """The sentences of a run; those of dev and test are always in memory."""

    train: TrainSentences
    dev: Sequence[Sentence]
    test: Sequence[Sentence]


def read_splits(
    config: TrainConfig, tasks: Mapping[str, Task], corpus: str, inputs: InputCache, console: Console
) -> Splits:
    """Read the corpus, whose fingerprint is `corpus`, and print what is left out of it.

    Raises `InputError` for a corpus that the run cannot be trained on.
    """
    refuse_files_of_two_splits(config.corpus, tasks)
    left_out = LeftOut(config.batch.max_words, tasks)
    on_disk = is_on_disk(config.corpus, tasks)
    in_memory = [] if on_disk else list(left_out.rest(inputs.split(config.corpus, tasks, "train")))
    dev, test = (inputs.split(config.corpus, tasks, split) for split in ("dev", "test"))
    for split, sentences in {"dev": dev, "test": test}.items():
        require_limit(sentences, config.batch.max_words, split)

    notes = partial(_notes, left_out, dev, test, tasks)
    if on_disk:
        return Splits(stored_sentences(config, tasks, corpus, left_out, notes, console), dev, test)
    for line in notes(seen_in(in_memory, tasks)):
        console.print(line, **PLAIN)
    return Splits(SentencesInMemory(in_memory, inputs), dev, test)


def _notes(
    left_out: LeftOut,
    dev: Sequence[Sentence],
    test: Sequence[Sentence],
    tasks: Mapping[str, Task],
    seen: Seen,
) -> Iterator[str]:
    """Lines on what is left out or odd; raises `InputError` for sentences that cannot be trained on."""
    if message := describe_long(left_out.long, left_out.max_words):
        yield f"train: {message}: left out"
    for task in tasks.values():
        yield from task.notes({"train": left_out.empty, "dev": dev, "test": test})
    require_seen(seen, tasks, "train")
    require_layers(dev, tasks, "dev")
    yield from notes_on(CorpusCheck({"dev": dev, "test": test}, tasks, before={"train": seen}))


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
        lengths = [example_corpus(self.corpus).annotated_lengths(tasks)[1] for tasks in together]
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


class TrainingData(pl.LightningDataModule):
    """Makes the batches of each epoch; a resumed epoch starts after the batches that are done."""

    def __init__(
        self,
        corpus: Sequence[Example],
        model: JointModel,
        batches_of: Callable[[int], list[BatchIndices]],
        trainer: pl.Trainer,
        rounded: bool = False,
    ) -> None:
        super().__init__()
        self.rounded = rounded
        self.corpus, self.model, self.batches_of, self.owner = corpus, model, batches_of, trainer
        self.skip = 0

    def train_dataloader(self) -> BatchLoader:
        """The loader of the current epoch."""
        epoch = self.owner.current_epoch
        skip, self.skip = self.skip, 0
        return BatchLoader(
            self.corpus, self.model.encoder.tokenizer, self.model.tasks, self.batches_of(epoch),
            *rank_and_ranks(), skip=skip,
            accumulate=self.owner.accumulate_grad_batches, rounded=self.rounded,
        )  # fmt: skip

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """Move a batch without waiting for the copy."""
        return batch.to(device)

    def state_dict(self) -> dict[str, int]:
        """How many batches of the epoch are done."""
        loop = self.owner.fit_loop.epoch_loop
        epoch_is_done = loop.batch_progress.is_last_batch
        return {"batches_done": 0 if epoch_is_done else loop.batch_progress.current.ready}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Skip the batches that were done."""
        self.skip = state_dict["batches_done"]

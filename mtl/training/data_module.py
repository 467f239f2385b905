"""Which batches an epoch has, and their way to Lightning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytorch_lightning as pl
import torch

from mtl.config.schema import BatchConfig
from mtl.models.batches import Batch, BatchLoader, Example, Step, aligned_plan, separate_plan
from mtl.models.joint import JointModel


def planner(
    config: BatchConfig, seed: int, corpus: Sequence[Example], tasks: Sequence[str]
) -> Callable[[int], list[Step]]:
    """From the number of an epoch to its batches; the same for the same seed, on every rank."""

    def plan(epoch: int) -> list[Step]:
        rng = np.random.default_rng([seed, epoch])
        if config.mode == "aligned":
            return aligned_plan(corpus, tasks, config.tokens, config.sentences, rng)
        return separate_plan(
            corpus, tasks, config.tokens, config.sentences, rng, config.sampling, config.temperature
        )

    return plan


def batches(corpus: Sequence[Example], model: JointModel, rank: int = 0, ranks: int = 1) -> Iterator[Batch]:
    """All of a corpus's annotated sentences once, for evaluation, or a rank's share of them."""
    plan = aligned_plan(corpus, tuple(model.tasks), model.evaluation_tokens(), None, None)
    return iter(BatchLoader(corpus, model.encoder.tokenizer, model.tasks, lambda _: plan, rank, ranks))


class TrainingData(pl.LightningDataModule):
    """Hands Lightning a fresh plan per epoch, and goes on where a checkpoint was written."""

    def __init__(
        self,
        corpus: Sequence[Example],
        model: JointModel,
        plan: Callable[[int], list[Step]],
        trainer: pl.Trainer,
    ) -> None:
        super().__init__()
        self.corpus, self.model, self.plan, self.owner = corpus, model, plan, trainer
        self.skip = 0

    def train_dataloader(self) -> BatchLoader:
        """The loader of the current epoch."""
        epoch = self.owner.current_epoch
        steps = self.plan(epoch)
        loader = BatchLoader(
            self.corpus, self.model.encoder.tokenizer, self.model.tasks, lambda _: steps, *rank_and_ranks(),
            pin=self.owner.strategy.root_device.type == "cuda",
        )  # fmt: skip
        loader.skip, self.skip = self.skip, 0
        return loader

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """Move a batch without waiting for the copy."""
        return batch.to(device)

    def state_dict(self) -> dict[str, int]:
        """How many batches of the epoch are done."""
        loop = self.owner.fit_loop.epoch_loop
        whole = loop.batch_progress.is_last_batch
        return {"batches_done": 0 if whole else loop.batch_progress.current.ready}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Skip the batches that were done."""
        self.skip = state_dict["batches_done"]


def rank_and_ranks() -> tuple[int, int]:
    """This process's number among those that train together, and how many they are."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1

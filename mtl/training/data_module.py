"""Hands the training batches to Lightning."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytorch_lightning as pl
import torch

from mtl.models.batches import Batch, BatchIndices, BatchLoader, Example
from mtl.models.joint import JointModel
from mtl.training.ranks import rank_and_ranks


class TrainingData(pl.LightningDataModule):
    """Makes the batches of each epoch; a resumed epoch starts after the batches that are done."""

    def __init__(
        self,
        corpus: Sequence[Example],
        model: JointModel,
        batches_of: Callable[[int], list[BatchIndices]],
        trainer: pl.Trainer,
    ) -> None:
        super().__init__()
        self.corpus, self.model, self.batches_of, self.owner = corpus, model, batches_of, trainer
        self.skip = 0

    def train_dataloader(self) -> BatchLoader:
        """The loader of the current epoch."""
        epoch = self.owner.current_epoch
        skip, self.skip = self.skip, 0
        return BatchLoader(
            self.corpus, self.model.encoder.tokenizer, self.model.tasks, self.batches_of(epoch),
            *rank_and_ranks(), skip=skip,
            accumulate=self.owner.accumulate_grad_batches,
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

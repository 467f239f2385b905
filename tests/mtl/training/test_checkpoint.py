"""Where a checkpoint may be written, and where it would lose an evaluation."""

from __future__ import annotations

import signal
from pathlib import Path
from unittest.mock import Mock

import pytest
import pytorch_lightning as pl

from mtl.models.batches import Batch
from mtl.training.checkpoint import Resumption
from mtl.training.step import JointTraining


@pytest.mark.parametrize(("accumulate", "expected"), [(1, [0, 1, 2, 3, 4]), (2, [1, 3])])
def test_checkpoints_stand_between_updates_and_not_after_an_epochs_last_batch(tmp_path, accumulate, expected):
    saved: list[int] = []
    resumption = Resumption(tmp_path / "last.ckpt", minutes=0.0)
    trainer = Mock(spec=pl.Trainer)
    trainer.accumulate_grad_batches, trainer.num_training_batches = accumulate, 6
    trainer.world_size, trainer.is_global_zero = 1, True
    for index in range(6):

        def save(path: Path, index: int = index) -> None:
            path.write_text("")
            saved.append(index)

        trainer.save_checkpoint = save
        resumption.on_train_batch_end(trainer, Mock(spec=JointTraining), None, Mock(spec=Batch), index)
    assert saved == expected


def test_a_run_that_failed_gives_the_signals_back(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    resumption = Resumption(tmp_path / "last.ckpt", minutes=5.0)
    trainer, module = Mock(spec=pl.Trainer), Mock(spec=pl.LightningModule)
    resumption.setup(trainer, module, "fit")
    assert signal.getsignal(signal.SIGINT) != before
    resumption.on_exception(trainer, module, RuntimeError("no luck"))
    assert signal.getsignal(signal.SIGINT) == before

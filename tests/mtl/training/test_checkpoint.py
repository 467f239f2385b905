"""Where a checkpoint may be written, and where it would lose an evaluation."""

from __future__ import annotations

import errno
import pickle
import signal
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
import pytorch_lightning as pl
import torch

from mtl.models.batches import Batch
from mtl.training.checkpoint import DirectCheckpointIO, Resumption
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


def test_a_run_in_a_thread_leaves_the_signals_alone(tmp_path):
    """Only the main thread may set handlers."""
    before = signal.getsignal(signal.SIGINT)
    resumption = Resumption(tmp_path / "last.ckpt", minutes=5.0)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(resumption.setup, Mock(spec=pl.Trainer), Mock(spec=pl.LightningModule), "fit").result()
    assert signal.getsignal(signal.SIGINT) == before


def test_a_checkpoint_is_not_held_in_memory_a_second_time(tmp_path):
    state = {"weights": torch.arange(4_000_000.0), "update": 7}
    tracemalloc.start()
    DirectCheckpointIO().save_checkpoint(state, tmp_path / "last.ckpt")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000 < (tmp_path / "last.ckpt").stat().st_size
    read = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert read["update"] == 7
    assert torch.equal(read["weights"], state["weights"])


@pytest.mark.parametrize("size", [3, 1_000_000])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_named_as_the_cause(size):
    with pytest.raises(OSError, match="No space left") as caught:
        DirectCheckpointIO().save_checkpoint({"weights": torch.zeros(size)}, Path("/dev/full"))
    assert caught.value.errno == errno.ENOSPC


def test_what_cannot_be_saved_is_an_error_of_its_own(tmp_path):
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        DirectCheckpointIO().save_checkpoint({"call": lambda: 0}, tmp_path / "last.ckpt")

"""Lightning's trainer as this program configures it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytorch_lightning as pl
import torch

from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.models.device import device_of, training_precision
from mtl.runs.folder.run import Run
from mtl.tasks.in_words import counted
from mtl.training.checkpoint import DirectCheckpointIO
from mtl.training.launch import Ranks
from mtl.training.ranks import processes_of


def trainer_for(config: TrainConfig, callbacks: list[pl.Callback]) -> pl.Trainer:
    """A Lightning trainer with these callbacks.

    Raises `InputError` for a GPU that is not there, and for what torch cannot train with.
    """
    precision = config.trainer.precision
    on_gpu = device_of(config.trainer.accelerator, "trainer.accelerator").type == "cuda"
    if precision == "auto":
        precision = training_precision(on_gpu)
    several = config.trainer.devices * config.trainer.num_nodes > 1
    if several and not on_gpu and torch.distributed.get_debug_level() == torch.distributed.DebugLevel.DETAIL:
        raise InputError(
            "TORCH_DISTRIBUTED_DEBUG=DETAIL: with it torch ends in a segmentation fault where several "
            "processes train on the CPU: use INFO, or unset it"
        )
    with quiet_lightning():
        return pl.Trainer(
            accelerator="gpu" if on_gpu else "cpu",
            devices=config.trainer.devices,
            num_nodes=config.trainer.num_nodes,
            strategy=Ranks(Run(Path(config.runs) / config.run_name())) if several else "auto",
            precision=precision,
            max_epochs=config.max_epochs,
            accumulate_grad_batches=config.optimizer.accumulate,
            limit_val_batches=0,
            log_every_n_steps=1,  # Lightning logs nothing here, but warns of epochs shorter than its interval
            reload_dataloaders_every_n_epochs=1,
            use_distributed_sampler=False,
            logger=False,
            callbacks=callbacks,
            plugins=[DirectCheckpointIO(), processes_of(config.trainer)],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Silence Lightning's messages that the user can do nothing about, unless all is to be heard."""
    logger = logging.getLogger("pytorch_lightning")
    level = logger.level
    if not logging.getLogger().isEnabledFor(logging.INFO):
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            # A loader over tokenised sentences needs no workers; frozen decoders are in evaluation mode on
            # purpose; LeafSpec is in Lightning's own code.
            warnings.filterwarnings("ignore", message=".*does not have many workers.*")
            warnings.filterwarnings("ignore", message=".*in eval mode at the start of training.*")
            warnings.filterwarnings("ignore", message=".*LeafSpec.* is deprecated.*")
            # `TrainingData` skips the batches that are done; Lightning does not know that.
            warnings.filterwarnings("ignore", message=".*your dataloader is not resumable.*")
            # A run that is on the CPU although there is a GPU was asked to be.
            warnings.filterwarnings("ignore", message=".*GPU available but not used.*")
            # Lightning passes it on to torch, which has another name for it from 2.13 on.
            warnings.filterwarnings("ignore", message=".*broadcast_buffers. is deprecated.*")
            # One process in a job of SLURM is what was asked for.
            warnings.filterwarnings("ignore", message=".*`srun` command is available.*")
            yield
    finally:
        logger.setLevel(level)


def device_name(device: torch.device) -> str:
    """The device of a run, as its status names it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {counted(torch.get_num_threads(), 'thread')}"

"""Lightning's trainer as this program configures it."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException

from mtl.config.schema import TrainerConfig
from mtl.errors import InputError
from mtl.models.device import device_of, training_precision
from mtl.runs.folder.run import Run
from mtl.tasks.in_words import counted, first_line
from mtl.training.checkpoint import DirectCheckpointIO
from mtl.training.launch import Ranks
from mtl.training.ranks import Processes
from mtl.workers.launch import place_of


def trainer_for(
    config: TrainerConfig, run: Run, epochs: int, accumulate: int, callbacks: list[pl.Callback]
) -> pl.Trainer:
    """The Lightning trainer of a run; `accumulate` is the number of batches per update.

    Raises `InputError` for a GPU that is not there, processes that do not fit the run, and settings that
    torch or Lightning cannot train with.
    """
    devices, machines, precision = config.devices, config.num_nodes, config.precision
    on_gpu = device_of(config.accelerator, "trainer.accelerator").type == "cuda"
    if precision == "auto":
        precision = training_precision(on_gpu)
    several = devices * machines > 1
    if several and not on_gpu and torch.distributed.get_debug_level() == torch.distributed.DebugLevel.DETAIL:
        raise InputError(
            "TORCH_DISTRIBUTED_DEBUG=DETAIL: with it torch ends in a segmentation fault where several "
            "processes train on the CPU: use INFO, or unset it"
        )
    try:
        with quiet_lightning():
            return pl.Trainer(
                accelerator="gpu" if on_gpu else "cpu",
                devices=devices,
                num_nodes=machines,
                strategy=Ranks(run) if several else "auto",
                precision=precision,
                max_epochs=epochs,
                accumulate_grad_batches=accumulate,
                limit_val_batches=0,
                log_every_n_steps=1,  # it logs nothing here, but warns of epochs shorter than its interval
                reload_dataloaders_every_n_epochs=1,
                use_distributed_sampler=False,
                logger=False,
                callbacks=callbacks,
                plugins=[DirectCheckpointIO(), Processes(place_of(devices, machines, os.environ))],
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
            )
    except InputError:
        raise
    except (MisconfigurationException, RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"trainer.devices={devices}, trainer.num_nodes={machines}: {first_line(error)}"
        ) from error


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Silence those of Lightning's messages that the user can do nothing about, unless INFO is logged."""
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
            # A run is on the CPU of a machine with a GPU only if the user asked for that.
            warnings.filterwarnings("ignore", message=".*GPU available but not used.*")
            # Lightning passes it on to torch, which has renamed it in 2.13.
            warnings.filterwarnings("ignore", message=".*broadcast_buffers. is deprecated.*")
            # A run of one process in a SLURM job is what the user asked for.
            warnings.filterwarnings("ignore", message=".*`srun` command is available.*")
            yield
    finally:
        logger.setLevel(level)


def device_name(device: torch.device) -> str:
    """The device of a run, as its status names it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {counted(torch.get_num_threads(), 'thread')}"

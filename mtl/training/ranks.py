"""One run by several processes: which of them this is, and whether they are as many as the run is for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException

from mtl.config.schema import TrainerConfig
from mtl.errors import InputError


def is_first_process() -> bool:
    """Whether this process writes the run's files; known before Lightning has started the others."""
    return all(
        int(os.environ.get(name, 0)) == 0 for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")
    )


def rank_and_ranks() -> tuple[int, int]:
    """This process's number among those that train together, and how many they are."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def check_processes(config: TrainerConfig) -> None:
    """Raise `InputError` if torchrun or srun began this process, but not as many as the run is for.

    Lightning does not look where it is to be one process: each of them would train all of the run, alone.
    """
    if config.devices < 1 or config.num_nodes < 1:
        raise InputError(
            f"trainer.devices={config.devices}, trainer.num_nodes={config.num_nodes}: give numbers from 1 on"
        )
    wanted = config.devices * config.num_nodes
    for program, begun in (("torchrun", _of_torchrun()), ("srun", _of_srun())):
        if begun is not None and begun != wanted:
            raise InputError(
                f"{program} began {begun} processes, and trainer.devices={config.devices} times "
                f"trainer.num_nodes={config.num_nodes} makes {wanted}: devices are the processes per "
                "machine, num_nodes the machines"
            )


def _of_torchrun() -> int | None:
    begun = "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE")
    return int(begun) if begun else None


def _of_srun() -> int | None:
    # Not SLURM_NTASKS, which a batch script has, too, whose commands are one process each.
    begun = int(os.environ.get("SLURM_STEP_NUM_TASKS", 1))
    return begun if begun > 1 else None


@contextmanager
def distributed(config: TrainerConfig) -> Iterator[None]:
    """Raises as `InputError` what Lightning finds wrong with devices, machines and SLURM's numbers."""
    try:
        yield
    except (MisconfigurationException, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"trainer.devices={config.devices}, trainer.num_nodes={config.num_nodes}: {reason}"
        ) from error

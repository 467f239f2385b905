"""Several processes on one run: this process's rank, and checks of the number of processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException

from mtl.config.schema import TrainerConfig
from mtl.errors import InputError


def is_first_process() -> bool:
    """Whether this process writes the run's files; known before Lightning has started the others."""
    return all(
        int(os.environ.get(name, 0)) == 0 for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")
    )


def own_rank() -> int:
    """The number of this process as its launcher gave it; known before Lightning has started the others."""
    given = (os.environ.get(name) for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK"))
    return max((int(number) for number in given if number and number.isdecimal()), default=0)


def rank_and_ranks() -> tuple[int, int]:
    """The rank of this process and the number of processes that train together."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def check_processes(config: TrainerConfig) -> None:
    """Raise `InputError` if torchrun or srun started another number of processes than the run is for.

    With devices=1 Lightning ignores the launcher, so every launched process would train the whole run alone.
    """
    if config.devices < 1 or config.num_nodes < 1:
        raise InputError(
            f"trainer.devices={config.devices}, trainer.num_nodes={config.num_nodes}: give numbers from 1 on"
        )
    wanted = config.devices * config.num_nodes
    for program, started in (("torchrun", _of_torchrun()), ("srun", _of_srun())):
        if started is not None and started != wanted:
            raise InputError(
                f"{program} started {started} processes, and trainer.devices={config.devices} times "
                f"trainer.num_nodes={config.num_nodes} makes {wanted}: devices are the processes per "
                "machine, num_nodes the machines"
            )


def _of_torchrun() -> int | None:
    processes = "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE")
    return int(processes) if processes else None


def _of_srun() -> int | None:
    # Not SLURM_NTASKS: a batch script has it too, and the commands in it are one process each.
    processes = int(os.environ.get("SLURM_STEP_NUM_TASKS", 1))
    return processes if processes > 1 else None


@contextmanager
def distributed(config: TrainerConfig) -> Iterator[None]:
    """Turn Lightning's errors about devices, machines and SLURM's settings into `InputError`."""
    try:
        yield
    except (MisconfigurationException, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"trainer.devices={config.devices}, trainer.num_nodes={config.num_nodes}: {reason}"
        ) from error


@contextmanager
def alike_on_all_ranks(device: torch.device, *seeds: int) -> Iterator[None]:
    """Draw from `seeds` alone during the block; afterwards the generators are as they were before it."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(_mixed(*seeds))
        yield


def draw_apart(seed: int, rank: int) -> None:
    """Seed torch's generators so that no two ranks draw alike; the first one's are left as they are."""
    if rank:
        torch.manual_seed(_mixed(seed, rank))


def _mixed(*seeds: int) -> int:
    return int(np.random.SeedSequence(seeds).generate_state(1, np.uint64)[0] >> np.uint64(1))

"""Several processes on one run: this process's rank, and how the processes find each other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import numpy as np
import torch
from lightning_fabric.plugins.environments import LightningEnvironment, SLURMEnvironment

from mtl.errors import InputError
from mtl.workers.launch import Place

PATIENCE = timedelta(minutes=10)
"""How long the processes of a run wait for each other at its start."""


def is_first_process() -> bool:
    """Whether this process writes the run's files; known before Lightning has started the others.

    To be called only within `placed` (`mtl.workers.launch`), which leaves no variables but those of this
    run's own launcher.
    """
    names = ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")
    return all(os.environ.get(name, "0") == "0" for name in names)


def own_rank() -> int:
    """The rank that the launcher gave this process; known before Lightning has started the others."""
    given = (os.environ.get(name) for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK"))
    return max((int(number) for number in given if number and number.isdecimal()), default=0)


def rank_and_ranks() -> tuple[int, int]:
    """The rank of this process and the number of processes that train together."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


class Processes(LightningEnvironment):
    """Tells Lightning of this run's processes; otherwise it would look for launchers by itself.

    Lightning's own environment for SLURM would also take over signals, requeue the job, and load any
    checkpoint (`hpc_ckpt`) that another run left in the working directory.
    """

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place

    @property
    def creates_processes_externally(self) -> bool:
        """Whether a launcher has started all processes of this machine."""
        return not self.place.starts_others

    @property
    def main_address(self) -> str:
        """The address at which the first process listens."""
        nodes = os.environ.get("SLURM_NODELIST") or os.environ.get("SLURM_STEP_NODELIST")
        if "MASTER_ADDR" not in os.environ and self.place.started_by == "srun" and nodes:
            return SLURMEnvironment.resolve_root_node_address(nodes)
        return super().main_address

    @property
    def main_port(self) -> int:
        """The port at which the first process listens; under srun it follows from the job's number."""
        job = os.environ.get("SLURM_JOB_ID", "")
        if "MASTER_PORT" not in os.environ and self.place.started_by == "srun":
            return 15000 + int(job[-4:]) if job.isdecimal() else 12910
        port = os.environ.get("MASTER_PORT")
        if port is not None and not (port.isdecimal() and 0 < int(port) < 1 << 16):
            raise InputError(f"MASTER_PORT={port}: set it to a port number, for instance 29500")
        return super().main_port

    def local_rank(self) -> int:
        """The number of this process on its machine."""
        return self.place.local_rank

    def node_rank(self) -> int:
        """The number of this machine."""
        return self.place.machine


@contextmanager
def alike_on_all_ranks(device: torch.device, *seeds: int) -> Iterator[None]:
    """Draw random numbers from `seeds` alone during the block; afterwards restore the generators."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        _seed(device, _mixed(*seeds))
        yield


def draw_apart(seed: int, rank: int) -> None:
    """Seed torch's generators differently on each rank, except on the first, which keeps its own."""
    if rank:
        torch.manual_seed(_mixed(seed, rank))


def _seed(device: torch.device, seed: int) -> None:
    """Seed the generators of the CPU and of a device.

    `torch.manual_seed` seeds every kind of device that torch knows, and formats a stack trace for each one
    that is not used, which would take milliseconds of every step.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(seed)
    elif device.type != "cpu":
        torch.manual_seed(seed)


def _mixed(*seeds: int) -> int:
    return int(np.random.SeedSequence(seeds).generate_state(1, np.uint64)[0] >> np.uint64(1))

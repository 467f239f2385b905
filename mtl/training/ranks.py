"""Several processes on one run: this process's rank, and how the processes find each other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import numpy as np
import torch
from lightning_fabric.plugins.environments import LightningEnvironment, SLURMEnvironment
from lightning_fabric.utilities.exceptions import MisconfigurationException

from mtl.config.schema import TrainerConfig
from mtl.errors import InputError
from mtl.tasks.in_words import first_line
from mtl.workers.launch import Place, place_of

PATIENCE = timedelta(minutes=10)
"""How long the processes of a run wait for each other at its start."""


def is_first_process() -> bool:
    """Whether this process writes the run's files; known before Lightning has started the others.

    Only within `launch.placed`, which leaves no variables but those of this run's own launcher.
    """
    names = ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")
    return all(os.environ.get(name, "0") == "0" for name in names)


def own_rank() -> int:
    """The number of this process as its launcher gave it; known before Lightning has started the others."""
    given = (os.environ.get(name) for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK"))
    return max((int(number) for number in given if number and number.isdecimal()), default=0)


def rank_and_ranks() -> tuple[int, int]:
    """The rank of this process and the number of processes that train together."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


class Processes(LightningEnvironment):
    """This run's processes, for Lightning, which otherwise looks for launchers by itself.

    Its own environment for SLURM would also take over signals, requeue the job, and load a checkpoint
    (`hpc_ckpt`) of whatever run wrote one into the working directory.
    """

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place

    @property
    def creates_processes_externally(self) -> bool:
        """Whether the processes of this machine are there already."""
        return not self.place.starts_others

    @property
    def main_address(self) -> str:
        """Where the first process is."""
        nodes = os.environ.get("SLURM_NODELIST") or os.environ.get("SLURM_STEP_NODELIST")
        if "MASTER_ADDR" not in os.environ and self.place.started_by == "srun" and nodes:
            return SLURMEnvironment.resolve_root_node_address(nodes)
        return super().main_address

    @property
    def main_port(self) -> int:
        """The port at which the first process listens; srun's processes derive it from the job's number."""
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


def processes_of(config: TrainerConfig) -> Processes:
    """The processes of a run; raises `InputError` if a launcher started other ones."""
    return Processes(place_of(config.devices, config.num_nodes, os.environ))


@contextmanager
def distributed(config: TrainerConfig) -> Iterator[None]:
    """Turn Lightning's errors about devices and machines into `InputError`."""
    try:
        yield
    except InputError:
        raise
    except (MisconfigurationException, RuntimeError, TypeError, ValueError) as error:
        reason = first_line(error)
        raise InputError(
            f"trainer.devices={config.devices}, trainer.num_nodes={config.num_nodes}: {reason}"
        ) from error


@contextmanager
def alike_on_all_ranks(device: torch.device, *seeds: int) -> Iterator[None]:
    """Draw from `seeds` alone during the block; afterwards the generators are as they were before it."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        _seed(device, _mixed(*seeds))
        yield


def draw_apart(seed: int, rank: int) -> None:
    """Seed torch's generators so that no two ranks draw alike; the first one's are left as they are."""
    if rank:
        torch.manual_seed(_mixed(seed, rank))


def _seed(device: torch.device, seed: int) -> None:
    """Seed the generators of the CPU and of a device.

    `torch.manual_seed` does that, too, but for every kind of device that torch knows, and formats a stack for
    each that is not used: milliseconds of every step.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(seed)
    elif device.type != "cpu":
        torch.manual_seed(seed)


def _mixed(*seeds: int) -> int:
    return int(np.random.SeedSequence(seeds).generate_state(1, np.uint64)[0] >> np.uint64(1))

"""Which of a run's processes this one is: launchers' variables, trusted only if they are consistent.

torchrun, srun and other launchers number their processes in environment variables. Everything that is started
below them inherits these: a shell in a job, an agent of a sweep, a pod. They count only for a run that asks
for several processes, and only if they describe exactly these.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from mtl.errors import InputError
from mtl.tasks.in_words import counted

_NAMES = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "STANDALONE_PORT",
)  # fmt: skip
_PREFIXES = (
    "TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "MPI_", "MV2_", "PALS_", "PBS_", "LSB_", "JSM_",
    "PL_",  # Lightning's own settings: PL_TRAINER_MAX_STEPS would change what a run computes
)  # fmt: skip
PARENT = "MTL_STARTED_BY"
"""The variable with the number of the process that started this one as a further process of its run."""
_KEPT = {
    "torchrun": (
        "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT", "RANK",
        "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    ),
    "srun": (
        "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NODELIST",
        "SLURM_STEP_NODELIST", "SLURM_JOB_ID", "MASTER_ADDR", "MASTER_PORT",
    ),
    "mtl": (PARENT, "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"),
    "hand": ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT"),
    "": (),
}  # fmt: skip
"""The variables that a run's processes need, by their launcher."""
_INTERFACES = "GLOO_SOCKET_IFNAME"
"""The variable that tells torch which network interfaces connect the processes."""
_OTHERS = {
    "mpirun": ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"),
    "jsrun": ("JSM_NAMESPACE_SIZE",),
    "aprun": ("PALS_SIZE",),
}
"""Known launchers that are not supported, with the variables that count their processes."""


@dataclass(frozen=True)
class ProcessPlace:
    """A process among those that train one run."""

    started_by: str = ""
    """`torchrun`, `srun`, `mtl` (the first process of this machine started it), `hand` (the user started it,
    on one of several machines), or empty."""
    local_rank: int = 0
    machine: int = 0

    @property
    def is_first(self) -> bool:
        """Whether this process writes the run's files."""
        return self.local_rank == 0 and self.machine == 0

    @property
    def starts_others(self) -> bool:
        """Whether this process starts the others of its machine, if there are any."""
        return self.started_by in ("", "hand")


def is_launcher_variable(name: str) -> bool:
    """Whether launchers use this variable to number, count or connect processes."""
    return name in _NAMES or name == PARENT or name.startswith(_PREFIXES)


def process_place(devices: int, machines: int, environment: Mapping[str, str]) -> ProcessPlace:
    """This process's place in a run of `devices` processes on each of `machines` machines.

    Raises `InputError` if a launcher started another number of processes than the run has.
    """
    if devices < 1 or machines < 1:
        raise InputError(f"trainer.devices={devices}, trainer.num_nodes={machines}: both must be at least 1")
    wanted = devices * machines
    if wanted > 1:
        _require_interfaces(environment)
    if (
        wanted > 1
        and environment.get(PARENT) == str(os.getppid())
        and environment.get("LOCAL_RANK") != "0"  # started processes count from 1
    ):
        return ProcessPlace("mtl", *_numbers(environment, "mtl", LOCAL_RANK=devices, NODE_RANK=machines))
    if "TORCHELASTIC_RUN_ID" in environment:
        (started,) = _numbers(environment, "torchrun", WORLD_SIZE=None)
        _require(started, "torchrun", devices, machines)
        limits = {"LOCAL_RANK": devices, "GROUP_RANK": machines, "RANK": wanted}
        if wanted > 1:
            limits["MASTER_PORT"] = 1 << 16
            if not environment.get("MASTER_ADDR"):
                raise InputError(
                    "MASTER_ADDR is missing, which torchrun sets to the address where the processes meet: "
                    "start the run with torchrun or srun, or remove the variables that another launcher left"
                )
        return ProcessPlace("torchrun", *_numbers(environment, "torchrun", **limits)[:2])
    if wanted == 1:
        return ProcessPlace()
    # Not SLURM_NTASKS: a batch script has it, too, and each command in it is one process.
    if environment.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        (started,) = _numbers(environment, "srun", SLURM_STEP_NUM_TASKS=None)
        _require(started, "srun", devices, machines)
        limits = {"SLURM_LOCALID": devices, "SLURM_NODEID": machines, "SLURM_PROCID": wanted}
        return ProcessPlace("srun", *_numbers(environment, "srun", **limits)[:2])
    for program, names in _OTHERS.items():
        many = next((environment[name] for name in names if environment.get(name, "1") != "1"), None)
        if many is not None:
            raise InputError(
                f"{program} started {many} processes, which mtl cannot use: start the run with torchrun or "
                f"srun; with trainer.num_nodes=1, it needs no launcher"
            )
    if machines == 1:
        return ProcessPlace()
    if not all(environment.get(name) for name in _KEPT["hand"]):
        raise InputError(
            f"trainer.num_nodes={machines}: no launcher started this run on {machines} machines; start it "
            f"with torchrun or srun, or set {', '.join(_KEPT['hand'])} on each machine"
        )
    return ProcessPlace("hand", 0, *_numbers(environment, "the environment", NODE_RANK=machines))


@contextmanager
def clean_environment(devices: int, machines: int) -> Iterator[ProcessPlace]:
    """Remove launchers' variables that do not apply from the environment during the block.

    Yields this process's place; raises `InputError` as `process_place` does.
    """
    place = process_place(devices, machines, os.environ)
    with _only(_KEPT[place.started_by]):
        if place.starts_others and devices > 1:
            os.environ[PARENT] = str(os.getpid())
        yield place


@contextmanager
def alone() -> Iterator[None]:
    """Remove all launchers' variables from the environment during the block, which is for one process."""
    with _only(()):
        yield


@contextmanager
def _only(kept: Collection[str]) -> Iterator[None]:
    before = {name: value for name, value in os.environ.items() if is_launcher_variable(name)}
    for name in before.keys() - set(kept):
        del os.environ[name]
    try:
        yield
    finally:
        for name in [name for name in os.environ if is_launcher_variable(name)]:
            del os.environ[name]
        os.environ.update(before)


def _require_interfaces(environment: Mapping[str, str]) -> None:
    """Raise `InputError` if a network interface is chosen that this machine lacks."""
    known = [name for _, name in socket.if_nameindex()]
    for name in filter(None, environment.get(_INTERFACES, "").split(",")):
        if name not in known:
            raise InputError(
                f"{_INTERFACES} is '{name}', but this machine's network interfaces are "
                f"{', '.join(known)}: correct it, or unset it"
            )


def _numbers(environment: Mapping[str, str], program: str, **limits: int | None) -> list[int]:
    """The numbers in these variables, each below its limit if it has one; raises `InputError` for others."""
    numbers = []
    for name, limit in limits.items():
        text = environment.get(name, "")
        if not (text.isascii() and text.isdecimal()) or (limit is not None and int(text) >= limit):
            below = "a number" if limit is None else f"a number from 0 to {limit - 1}"
            found = f"is {text!r}" if name in environment else "is missing"
            raise InputError(
                f"{name} {found}, and {program} sets it to {below}: start the run with torchrun or srun, or "
                "remove the variables that another launcher left"
            )
        numbers.append(int(text))
    return numbers


def _require(started: int, program: str, devices: int, machines: int) -> None:
    if started != devices * machines:
        raise InputError(
            f"{program} started {counted(started, 'process', 'processes')}, but trainer.devices={devices} "
            f"times trainer.num_nodes={machines} makes {devices * machines}: devices is the number of "
            "processes per machine, num_nodes the number of machines"
        )

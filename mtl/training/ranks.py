"""Several processes on one run: started on this machine, ended together, and how they find each other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from lightning_fabric.plugins.environments import LightningEnvironment, SLURMEnvironment
from lightning_fabric.utilities.distributed import _set_num_threads_if_needed
from pytorch_lightning.strategies import DDPStrategy
from pytorch_lightning.strategies.launchers.subprocess_script import _SubprocessScriptLauncher

from mtl.errors import InputError, RunError
from mtl.files import write_json
from mtl.runs.folder.run import Run
from mtl.tasks.in_words import counted, first_line
from mtl.workers.launch import ProcessPlace

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

    def __init__(self, place: ProcessPlace) -> None:
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


_LOOK = 0.2
"""Seconds between two checks of other processes."""
_GRACE = 5.0
"""Seconds that a process has to end by itself after another one has failed."""


class Ranks(DDPStrategy):
    """Lightning's DDP for one run's processes, with `RanksLauncher`.

    Buffers are not sent from the first rank to the others: they are equal, since they are computed from what
    is equal on all ranks (`JointTraining`). A batch may lack a task, whose decoder then has no gradient. At
    the start, the processes wait `PATIENCE` for each other, not half an hour as in Lightning.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(find_unused_parameters=True, broadcast_buffers=False)
        self.run = run

    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        self._launcher = RanksLauncher(
            self.cluster_environment, self.num_processes, self.num_nodes, run=self.run
        )

    def setup_distributed(self) -> None:
        """Meet the other processes; raises `InputError` if one of them does not come."""
        processes = self.cluster_environment
        assert isinstance(processes, Processes)
        self.set_world_ranks()
        begun = time.monotonic()
        try:
            self._meet(processes)
        except RuntimeError as error:
            here = f"process {self.global_rank}"
            where = f"{processes.main_address}:{processes.main_port}"
            of = f"the {counted(processes.world_size(), 'process', 'processes')} of this run"
            if time.monotonic() - begun < 0.9 * PATIENCE.total_seconds():
                raise InputError(
                    f"{here} cannot meet {of} at {where}: {first_line(error)} (see MASTER_ADDR, MASTER_PORT "
                    "and the variables of gloo or NCCL)"
                ) from error
            raise InputError(
                f"{here} waited {PATIENCE.total_seconds():g} seconds at {where} for {of}, and not all came: "
                "see what the others printed, or train with trainer.devices=1 and trainer.num_nodes=1"
            ) from error
        super().setup_distributed()

    def _meet(self, processes: Processes) -> None:
        if processes.place.started_by == "torchrun":  # its agent may have the store
            store, _, _ = next(torch.distributed.rendezvous("env://", timeout=PATIENCE))
        else:
            store = torch.distributed.TCPStore(
                processes.main_address,
                processes.main_port,
                processes.world_size(),
                is_master=self.global_rank == 0,
                timeout=PATIENCE,
            )
        torch.distributed.init_process_group(
            self._get_process_group_backend(),
            store=store,
            rank=self.global_rank,
            world_size=processes.world_size(),
            device_id=self.root_device if self.root_device.type != "cpu" else None,
        )


class RanksLauncher(_SubprocessScriptLauncher):
    """Starts the other ranks of this machine, unless torchrun or SLURM has started them.

    A rank that fails leaves its error in the run's folder. The first rank then ends the others on its
    machine, and raises that error. If it hangs because it waits for the failed rank, it notes the error in
    the run's status and exits. A rank exits when the first rank, which started it, is gone.
    """

    def __init__(self, *words: Any, run: Run) -> None:
        super().__init__(*words)
        self.run = run

    def launch(
        self, function: Callable[..., Any], *words: Any, trainer: pl.Trainer | None = None, **more: Any
    ) -> Any:
        """Call the function; processes that this one starts run the same program, and call it, too."""
        environment = self.cluster_environment
        assert isinstance(environment, Processes)
        environment.validate_settings(num_devices=self.num_processes, num_nodes=self.num_nodes)
        first = environment.global_rank() == 0
        before = dict(os.environ)
        ended = threading.Event()
        if first:
            for file in failures(self.run):
                file.unlink(missing_ok=True)
        if not environment.creates_processes_externally:
            self._call_children_scripts()
            threading.Thread(target=self._watch_children, args=(ended,), daemon=True).start()
        elif environment.place.started_by == "mtl":
            threading.Thread(target=_watch_parent, args=(ended,), daemon=True).start()
        _set_num_threads_if_needed(num_processes=self.num_processes)
        try:
            return function(*words, **more)
        except (RunError, InputError):  # all ranks raise it
            raise
        except Exception as error:
            if first:
                cause = self._cause(wait=2.0)
                self.kill(signal.SIGKILL)
            else:
                note_failure(self.run, environment.global_rank(), error)
                cause = first_failure(self.run, but=environment.global_rank())
            if cause is not None:
                raise RunError(cause) from error
            raise
        finally:
            ended.set()
            self._end_children()
            for name in os.environ.keys() - before.keys():
                del os.environ[name]

    def _cause(self, wait: float = 0.0) -> str | None:
        """Why the first rank to fail has failed; `None` if none fails within `wait` seconds."""
        until = time.monotonic() + wait
        while True:
            for rank, process in enumerate(self.procs, 1):
                if (process.poll() or 0) < 0:
                    name = signal.Signals(-process.returncode).name
                    return f"the process of rank {rank} was killed ({name})"
            if (error := first_failure(self.run)) is not None:
                return error
            for rank, process in enumerate(self.procs, 1):
                if process.poll():
                    return f"the process of rank {rank} ended with exit code {process.returncode}"
            if time.monotonic() >= until:
                return None
            time.sleep(_LOOK)

    def _watch_children(self, ended: threading.Event) -> None:
        """End this process if it still runs `_GRACE` seconds after a child has failed."""
        while not ended.wait(_LOOK):
            cause = self._cause()
            if cause is None or ended.wait(_GRACE):
                continue
            self.run.update_status({"state": "failed", "error": cause})
            print(f"mtl: {cause}", flush=True)
            self.kill(signal.SIGKILL)
            os._exit(1)

    def _end_children(self) -> None:
        """Wait for the children to end, and kill those that do not."""
        for process in self.procs:
            try:
                process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _watch_parent(ended: threading.Event) -> None:
    """End this process when the one that started it is gone."""
    parent = os.getppid()
    while not ended.wait(_LOOK):
        if os.getppid() != parent:
            os._exit(1)


def note_failure(run: Run, rank: int, error: BaseException) -> None:
    """Leave a rank's error in the run's folder, if the folder exists."""
    if run.folder.is_dir():
        message = f"rank {rank}: {type(error).__name__}: {' '.join(str(error).split())}"
        write_json(run.folder / f"rank-{rank}.json", {"time": time.time(), "rank": rank, "error": message})


def first_failure(run: Run, but: int | None = None) -> str | None:
    """The error of the rank that failed first; `None` if none has failed, or if it is the rank `but`."""
    notes = [json.loads(path.read_bytes()) for path in failures(run)]
    if not notes:
        return None
    first = min(notes, key=lambda note: float(note["time"]))
    return None if first["rank"] == but else str(first["error"])


def failures(run: Run) -> list[Path]:
    """The files in which ranks have left their errors."""
    return list(run.folder.glob("rank-*"))

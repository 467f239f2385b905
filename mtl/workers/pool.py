"""Processes of one machine that share work: begun, replaced when they die, stopped in good order."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

import joblib

from mtl.errors import InputError

INTERRUPTED, DISK_FULL, REFUSED = 130, 3, 2
"""Exit codes of a process that was asked to stop, of one that could not write any more, and of one that found
bad input, on which no other would fare better; the last line of its log says what."""
TRIES = 3
"""How often work is begun whose process dies; work that fails with an error is not tried again."""
LOOK = 0.5
"""Seconds between looks at the folder."""


OF_OTHERS = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE", "SLURM_")
"""How variables begin by which torchrun and SLURM number processes: a run that they reach would take itself
for a part of a larger one."""


class FullDisk(Exception):
    """Nothing can be written any more: no other work would fare better."""


@dataclass(frozen=True)
class WorkerPool:
    """How its processes are begun."""

    module: str
    """Run as `python -m MODULE FOLDER PARENT THREADS …`."""
    folder: Path
    """What they work on; their own output goes to `logs/worker-…` in it."""
    threads: int
    """Of each process."""
    gpus: Sequence[str] = ()
    """What each has one of, in turn."""
    arguments: Sequence[str] = ()
    """What follows the number of threads."""

    def work(self, room: Callable[[], int], look: Callable[[], int]) -> None:
        """Have as many processes at work as there is room for, until all have ended.

        `look` is called all the while and tells how many pieces of work have ended. Raises
        `KeyboardInterrupt` when asked to stop, and `InputError` if the disk is full or processes die over and
        over; the others have then saved what they did.
        """
        workers: list[_Worker] = []
        begun, deaths, ended = 0, 0, 0
        interruptible()
        try:
            while True:
                places = room()
                while begun < places:
                    workers.append(self._begin(begun))
                    begun += 1
                if not workers:
                    break
                time.sleep(LOOK)
                for worker in [each for each in workers if each.process.poll() is not None]:
                    workers.remove(worker)
                    code = worker.process.returncode
                    if code == DISK_FULL:
                        raise InputError(full_disk(self.folder))
                    if code == INTERRUPTED:
                        raise KeyboardInterrupt
                    if code == REFUSED:
                        raise InputError(worker.log.read_text().splitlines()[-1].removeprefix("mtl: "))
                    if code != 0:
                        deaths += 1
                        if deaths > TRIES * begun:
                            raise InputError(f"processes die at once; see {worker.log}")
                        workers.append(self._begin(worker.number))
                now_ended = look()
                if now_ended > ended:
                    deaths, ended = 0, now_ended
        finally:
            _stop(workers)

    def _begin(self, number: int) -> _Worker:
        environment = environment_for(self.threads)
        if self.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = self.gpus[number % len(self.gpus)]
        log = self.folder / "logs" / f"worker-{os.getpid()}-{number}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        words = [str(self.folder), str(os.getpid()), str(self.threads), *self.arguments]
        with log.open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", self.module, *words],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                # Ctrl-C reaches this process alone, which hands it on once.
                start_new_session=True,
            )
        return _Worker(process, number, log)


@dataclass(frozen=True)
class _Worker:
    process: subprocess.Popen[bytes]
    number: int
    log: Path


def _stop(workers: Sequence[_Worker]) -> None:
    """Have the processes save what they do and end."""
    for worker in workers:
        if worker.process.poll() is None:
            worker.process.send_signal(signal.SIGINT)
    for worker in workers:
        worker.process.wait()


def environment_for(threads: int) -> dict[str, str]:
    """The environment of a process of so many threads, which is no part of a larger run."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(OF_OTHERS)}
    return environment | {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}


def devices() -> list[str]:
    """The GPUs of this machine, as `CUDA_VISIBLE_DEVICES` names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [each for each in visible.split(",") if each]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def threads_for(count: int) -> int:
    """The share of the cores that each of so many processes has."""
    return max(1, cores() // count)


def cores() -> int:
    """The cores that this process may use: those of its affinity, of its control group's quota (a container's
    or SLURM's share), or of the machine."""
    return int(joblib.cpu_count())


def share_of(parent: str, threads: str, work: Callable[[], None]) -> int:
    """A process's share of the work, which ends with its parent; returns its exit code."""
    import torch

    torch.set_num_threads(int(threads))
    interruptible()
    _die_with(int(parent))
    try:
        work()
    except KeyboardInterrupt:
        return INTERRUPTED
    except FullDisk:
        return DISK_FULL
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return DISK_FULL
        raise
    return 0


def interruptible() -> None:
    """Have SIGINT and SIGTERM interrupt this process, also where a shell that began it in the background, or
    a cluster's, has them ignored."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, interrupt)


def _die_with(parent: int) -> None:
    """Interrupt this process, as Ctrl-C does, when its parent is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=watch, daemon=True).start()


def disk_is_full(error: BaseException, place: Path) -> bool:
    """Whether that is what went wrong; libraries in other languages do not hand the error's number on."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    said = str(error)
    full = "No space left on device" in said or "database or disk is full" in said
    return full or shutil.disk_usage(place).free < 1 << 20


def full_disk(place: Path) -> str:
    """What to say when nothing can be written any more."""
    return (
        f"the disk is full ({place}): make room and give the same command again; what is finished is kept, "
        "and the rest goes on from its last checkpoints"
    )

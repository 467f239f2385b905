"""Several processes of one machine at work on a study, and what is to be seen meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.live import Live

from mtl.errors import InputError
from mtl.study.folder import TRIES, Job, State, StudyFolder
from mtl.study.status import ended_line, overview, states_of
from mtl.study.worker import DISK_FULL, INTERRUPTED, full_disk

LOOK = 0.5
"""Seconds between looks at the folder."""


def run_locally(study: StudyFolder, jobs: Sequence[Job], count: int, console: Console) -> None:
    """Have `count` processes do the jobs; raises `KeyboardInterrupt` when asked to stop.

    Each process has its share of the cores; one that dies is replaced.
    """
    threads = max(1, (os.cpu_count() or 1) // count)
    workers = [_start(study, threads, number) for number in range(count)]
    deaths, ended = 0, 0
    try:
        with watching(study, jobs, count, console) as look:
            while workers:
                time.sleep(LOOK)
                for worker in [each for each in workers if each.process.poll() is not None]:
                    workers.remove(worker)
                    code = worker.process.returncode
                    if code == DISK_FULL:
                        raise InputError(full_disk(study.path))
                    if code == INTERRUPTED:
                        raise KeyboardInterrupt
                    if code != 0:
                        deaths += 1
                        if deaths > TRIES * count:
                            raise InputError(f"processes die at once; see {worker.log}")
                        workers.append(_start(study, threads, worker.number))
                states = look()
                now_ended = states["finished"] + states["failed"]
                if now_ended > ended:
                    deaths, ended = 0, now_ended
    finally:
        _stop(workers)


@dataclass(frozen=True)
class _Worker:
    process: subprocess.Popen[bytes]
    number: int
    log: Path


@contextmanager
def watching(
    study: StudyFolder, jobs: Sequence[Job], count: int, console: Console
) -> Iterator[Callable[[], Counter[State]]]:
    """Shows a live table, or where there is no terminal a line when a job begins or ends.

    Gives a function that looks at the folder once more and counts the states.
    """
    known = states_of(study, jobs)
    live = Live(console=console, refresh_per_second=2, transient=True) if console.is_terminal else None

    def look() -> Counter[State]:
        states = states_of(study, jobs)
        for job in jobs:
            if states[job.name] != known[job.name] and states[job.name] != "waiting":
                known[job.name] = states[job.name]
                line = ended_line(study, job, states[job.name])
                if live is None or states[job.name] != "running":
                    console.print(line, highlight=False, markup=False, soft_wrap=True)
        if live is not None:
            live.update(overview(study, jobs, count, rows=max(5, console.size.height - 8)))
        return Counter(states.values())

    with live if live is not None else nullcontext():
        yield look


def workers_for(jobs: int) -> int:
    """How many processes: as asked, else one per GPU, or one."""
    if jobs < 0:
        raise InputError(f"--jobs={jobs}: give a number of runs side by side, or 0 to leave it open")
    return jobs or max(1, len(devices()))


def devices() -> list[str]:
    """The GPUs of this machine, as `CUDA_VISIBLE_DEVICES` names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [each for each in visible.split(",") if each]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def _start(study: StudyFolder, threads: int, number: int) -> _Worker:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    gpus = devices()
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]
    log = study.path / "logs" / f"worker-{os.getpid()}-{number}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "mtl.study.worker", str(study.path), str(os.getpid()), str(threads)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            # Ctrl-C reaches this process alone, which hands it on once.
            start_new_session=True,
        )
    return _Worker(process, number, log)


def _stop(workers: Sequence[_Worker]) -> None:
    """Have the workers save what they do and end."""
    for worker in workers:
        if worker.process.poll() is None:
            worker.process.send_signal(signal.SIGINT)
    for worker in workers:
        worker.process.wait()

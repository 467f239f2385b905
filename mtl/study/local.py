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

MOST_ON_A_GPU = 8
"""Runs on one GPU at most: more only get in each other's way."""
CONTEXT = 0.6
"""Gigabytes that a process has on a GPU besides its tensors."""
LOOK = 0.5
"""Seconds between looks at the folder."""


def run_locally(study: StudyFolder, jobs: Sequence[Job], count: int, console: Console) -> None:
    """Have `count` processes do the jobs; raises `KeyboardInterrupt` when asked to stop.

    Each process has its share of the cores; one that dies is replaced. With 0, there is one per GPU, and more
    as soon as a finished run has shown that they fit, or one without GPUs.
    """
    gpus = devices()
    most = count or (max(1, len(gpus)) * MOST_ON_A_GPU if gpus else 1)
    threads = max(1, (os.cpu_count() or 1) // (count or max(1, len(gpus))))
    workers: list[_Worker] = []
    started, deaths, ended = 0, 0, 0
    try:
        with watching(study, jobs, count or None, console) as look:
            while True:
                room = most if not gpus else min(most, len(gpus) * places_on(gpus[0], _peak(study, jobs)))
                while started < room:
                    workers.append(_start(study, threads, started, gpus))
                    started += 1
                if not workers:
                    break
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
                        if deaths > TRIES * started:
                            raise InputError(f"processes die at once; see {worker.log}")
                        workers.append(_start(study, threads, worker.number, gpus))
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
    study: StudyFolder, jobs: Sequence[Job], count: int | None, console: Console
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


def places_on(gpu: str, peak: float | None, total: float | None = None) -> int:
    """How many runs fit on a GPU side by side: one until it is known how many gigabytes the largest took."""
    if peak is None:
        return 1
    if total is None:
        import torch

        place = int(gpu) if gpu.isdigit() and int(gpu) < torch.cuda.device_count() else 0
        total = torch.cuda.get_device_properties(place).total_memory / 1e9
    return max(1, min(MOST_ON_A_GPU, int(0.9 * total / (1.1 * peak + CONTEXT))))


def _peak(study: StudyFolder, jobs: Sequence[Job]) -> float | None:
    """The most gigabytes that a finished run had on a GPU."""
    known = [study.last_progress(job.name).gpu_gigabytes for job in jobs]
    return max((each for each in known if each), default=None)


def devices() -> list[str]:
    """The GPUs of this machine, as `CUDA_VISIBLE_DEVICES` names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [each for each in visible.split(",") if each]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def _start(study: StudyFolder, threads: int, number: int, gpus: Sequence[str]) -> _Worker:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
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

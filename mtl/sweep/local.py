"""Several processes of one machine at work on a sweep."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from mtl.errors import InputError
from mtl.study.folder import TRIES
from mtl.study.local import devices
from mtl.study.worker import DISK_FULL, INTERRUPTED, full_disk
from mtl.sweep.file import Sweep
from mtl.sweep.folder import SweepFolder, trials_of
from mtl.sweep.status import ended_line
from mtl.sweep.trial_config import Mode

LOOK = 1.0
"""Seconds between looks at the trials."""


@dataclass(frozen=True)
class _Worker:
    process: subprocess.Popen[bytes]
    number: int
    log: Path


def run_locally(
    folder: SweepFolder, sweep: Sweep, count: int, limit: int, mode: Mode, console: Console
) -> None:
    """Have `count` processes do the trials (0: one per GPU, or one); raises `KeyboardInterrupt` when asked to stop.

    Each process has its share of the cores; one that dies is replaced.
    """
    if count < 0:
        raise InputError(f"--jobs={count}: give a number of trials side by side, or 0 to leave it open")
    gpus = devices()
    count = count or max(1, len(gpus))
    study = folder.study(sweep)
    known = {each.number: folder.state(each) for each in trials_of(study)}
    workers = [_start(folder, number, count, limit, mode, gpus) for number in range(count)]
    deaths = 0
    try:
        while workers:
            time.sleep(LOOK)
            for worker in [each for each in workers if each.process.poll() is not None]:
                workers.remove(worker)
                code = worker.process.returncode
                if code == DISK_FULL:
                    raise InputError(full_disk(folder.path))
                if code == INTERRUPTED:
                    raise KeyboardInterrupt
                if code != 0:
                    deaths += 1
                    if deaths > TRIES * count:
                        raise InputError(f"processes die at once; see {worker.log}")
                    workers.append(_start(folder, worker.number, count, limit, mode, gpus))
            for trial in trials_of(study):
                state = folder.state(trial)
                if known.get(trial.number) != state and state != "waiting":
                    known[trial.number] = state
                    deaths = 0 if state in ("finished", "stopped", "failed") else deaths
                    console.print(
                        ended_line(folder, sweep, trial, state), highlight=False, markup=False, soft_wrap=True
                    )
    finally:
        _stop(workers)


def _start(
    folder: SweepFolder, number: int, count: int, limit: int, mode: Mode, gpus: Sequence[str]
) -> _Worker:
    threads = max(1, (os.cpu_count() or 1) // count)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]
    log = folder.path / "logs" / f"worker-{os.getpid()}-{number}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    arguments = [str(folder.path), str(os.getpid()), str(threads), str(limit), mode]
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "mtl.sweep.worker", *arguments],
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

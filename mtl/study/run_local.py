"""A study run by processes of one machine, and the table that shows it live."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

from rich.console import Console
from rich.live import Live

from mtl.study.folder import StudyFolder
from mtl.study.job import Job
from mtl.study.status import ended_line, overview
from mtl.workers.pool import WorkerPool, devices, threads_for
from mtl.workers.worker import interruptible

MOST_ON_A_GPU = 8
"""The most runs on one GPU; with more, none is faster."""
CONTEXT = 0.6
"""Gigabytes that a process takes on a GPU besides its tensors (CUDA's context)."""


def run_locally(study: StudyFolder, jobs: Sequence[Job], count: int, console: Console) -> None:
    """Have at most `count` processes (0: as many as fit) do the jobs.

    With GPUs there is one process per GPU until a finished run has shown how many fit. Without GPUs all fit,
    and 0 is one process. Raises `KeyboardInterrupt` when asked to stop.
    """
    gpus = devices()
    most = count or (len(gpus) * MOST_ON_A_GPU if gpus else 1)
    pool = WorkerPool("mtl.study.worker", study.path, threads_for(count or max(1, len(gpus))), gpus)

    def capacity() -> int:
        return min(most, len(gpus) * places_on(gpus[0], _peak(study, jobs))) if gpus else most

    with watching(study, jobs, count or None, console) as look:
        interruptible()
        pool.work(capacity, look)


@contextmanager
def watching(
    study: StudyFolder, jobs: Sequence[Job], count: int | None, console: Console
) -> Iterator[Callable[[], int]]:
    """Show a live table and a line when a job ends; without a terminal, a line when a job starts or ends.

    Yields a function that reads the folder again and returns how many jobs have ended.
    """
    before = study.snapshot(jobs).states()
    live = Live(console=console, refresh_per_second=2, transient=True) if console.is_terminal else None

    def look() -> int:
        snapshot = study.snapshot(jobs)
        for name, state in snapshot.states().items():
            if state != before[name] and state != "waiting":
                before[name] = state
                if live is None or state != "running":
                    console.print(ended_line(study, snapshot.jobs[name], state), soft_wrap=True)
        if live is not None:
            live.update(overview(study, snapshot, count, rows=max(5, console.size.height - 8)))
        return snapshot.ended()

    with live if live is not None else nullcontext():
        yield look


def places_on(gpu: str, peak: float | None, total: float | None = None) -> int:
    """The number of runs that fit on a GPU: one until the `peak` in gigabytes of a finished run is known.

    `total` is the GPU's memory in gigabytes; `None`: it is looked up.
    """
    if peak is None:
        return 1
    if total is None:
        import torch

        index = int(gpu) if gpu.isdigit() and int(gpu) < torch.cuda.device_count() else 0
        total = torch.cuda.get_device_properties(index).total_memory / 1e9
    return max(1, min(MOST_ON_A_GPU, int(0.9 * total / (1.1 * peak + CONTEXT))))


def _peak(study: StudyFolder, jobs: Sequence[Job]) -> float | None:
    """The most gigabytes that a finished run reserved on a GPU."""
    peaks = [study.last_progress(job.name).gpu_gigabytes for job in jobs]
    return max(filter(None, peaks), default=None)

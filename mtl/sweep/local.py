"""A sweep done by processes of one machine."""

from __future__ import annotations

from rich.console import Console

from mtl.sweep.file import Sweep
from mtl.sweep.folder import SweepFolder, trials_of
from mtl.sweep.status import ended_line
from mtl.sweep.trial_config import Mode
from mtl.workers.pool import WorkerPool, devices, threads_for


def run_locally(
    folder: SweepFolder, sweep: Sweep, count: int, limit: int, mode: Mode, console: Console
) -> None:
    """Have `count` processes do the trials (0: one per GPU, or one), saying how each ends.

    Raises `KeyboardInterrupt` when asked to stop.
    """
    gpus = devices()
    count = count or max(1, len(gpus))
    study = folder.study(sweep)
    known = {each.number: folder.state(each) for each in trials_of(study)}

    def look() -> int:
        for trial in trials_of(study):
            state = folder.state(trial)
            if known.get(trial.number) != state and state != "waiting":
                known[trial.number] = state
                console.print(
                    ended_line(folder, sweep, trial, state), highlight=False, markup=False, soft_wrap=True
                )
        return sum(state in ("finished", "stopped", "failed") for state in known.values())

    pool = WorkerPool("mtl.sweep.worker", folder.path, threads_for(count), gpus, (str(limit), mode))
    pool.work(lambda: count, look)

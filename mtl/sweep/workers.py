"""A sweep's trials in processes of one machine; one of them is `python -m mtl.sweep.workers FOLDER …`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mtl.sweep.file import Sweep
from mtl.sweep.folder import State, SweepFolder, trials_of
from mtl.sweep.status import ended_line, values_of
from mtl.workers.pool import WorkerPool, devices, threads_for
from mtl.workers.worker import interruptible, run_worker

if TYPE_CHECKING:
    import optuna
    from rich.console import Console


def run_locally(
    folder: SweepFolder, sweep: Sweep, count: int, limit: int, mode: str, console: Console
) -> None:
    """Have `count` processes do the trials (0: one per GPU, or one), and print when a trial starts or ends.

    Raises `KeyboardInterrupt` when asked to stop.
    """
    gpus = devices()
    count = count or max(1, len(gpus))
    study = folder.study(sweep)
    before = {trial.number: folder.state(trial) for trial in trials_of(study)}

    def count_ended() -> int:
        for line in state_lines(folder, sweep, study, before):
            console.print(line, soft_wrap=True)
        return sum(state in ("finished", "stopped", "failed") for state in before.values())

    pool = WorkerPool("mtl.sweep.workers", folder.path, threads_for(count), gpus, (str(limit), mode))
    interruptible()
    pool.work(lambda: count, count_ended)


def state_lines(
    folder: SweepFolder, sweep: Sweep, study: optuna.Study, before: dict[int, State]
) -> Iterator[str]:
    """A line for each trial whose state is no longer that in `before`, which is updated.

    A trial whose values are not drawn yet is left for the next call.
    """
    for trial in trials_of(study):
        state = folder.state(trial)
        if before.get(trial.number) == state or state == "waiting":
            continue
        if state == "running" and not values_of(trial):
            continue
        before[trial.number] = state
        yield ended_line(folder, sweep, trial, state)


def main(path: str, parent: str, threads: str, limit: str, mode: str) -> int:
    """Do trials until none is left."""

    def work() -> None:
        from mtl.models.inputs import InputCache
        from mtl.sweep.engine import Engine
        from mtl.sweep.trial import Training

        folder = SweepFolder(Path(path))
        sweep, base, _ = folder.read_plan()
        training = Training(
            folder, sweep, base, "disabled" if mode == "disabled" else "offline", InputCache(keep=True)
        )
        Engine(folder, sweep, training, int(limit)).work()

    return run_worker(parent, threads, work)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

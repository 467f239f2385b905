"""A process that works on a sweep: `python -m mtl.study.sweep.worker FOLDER PARENT THREADS LIMIT MODE`."""

from __future__ import annotations

import sys
from pathlib import Path

from mtl.study.sweep.folder import SweepFolder
from mtl.workers.collector import importing
from mtl.workers.worker import run_worker


def main(path: str, parent: str, threads: str, limit: str, mode: str) -> int:
    """Do trials until none is left."""

    def work() -> None:
        with importing():
            from mtl.models.inputs import InputCache
            from mtl.study.sweep.engine import Engine
            from mtl.study.sweep.trial import Training

        folder = SweepFolder(Path(path))
        sweep, base, _ = folder.read_sweep()
        training = Training(
            folder, sweep, base, "disabled" if mode == "disabled" else "offline", InputCache(keep=True)
        )
        Engine(folder, sweep, training, int(limit)).work()

    return run_worker(parent, threads, work)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

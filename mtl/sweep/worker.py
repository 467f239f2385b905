"""A process that works on a sweep: `python -m mtl.sweep.worker FOLDER PARENT THREADS LIMIT MODE`."""

from __future__ import annotations

import sys
from pathlib import Path

from mtl.workers.pool import share_of


def main(folder: str, parent: str, threads: str, limit: str, mode: str) -> int:
    """Do trials until none is left."""
    from mtl.models.inputs import InputCache
    from mtl.sweep.engine import Engine
    from mtl.sweep.folder import SweepFolder
    from mtl.sweep.trial import Training

    place = SweepFolder(Path(folder))
    sweep, base, _ = place.kept()
    training = Training(
        place, sweep, base, "disabled" if mode == "disabled" else "offline", InputCache(keep=True)
    )
    return share_of(parent, threads, Engine(place, sweep, training, int(limit)).work)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

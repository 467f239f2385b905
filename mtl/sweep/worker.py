"""A process that works on a sweep: `python -m mtl.sweep.worker FOLDER PARENT THREADS LIMIT MODE`."""

from __future__ import annotations

import sys
from pathlib import Path

from mtl.study.worker import DISK_FULL, INTERRUPTED


def main(folder: str, parent: str, threads: str, limit: str, mode: str) -> int:
    """Do trials until none is left; ends with its parent."""
    import torch

    from mtl.material import Material
    from mtl.study.work import FullDisk, die_with
    from mtl.sweep.engine import Engine
    from mtl.sweep.folder import SweepFolder
    from mtl.sweep.trial import Training

    torch.set_num_threads(int(threads))
    die_with(int(parent))
    place = SweepFolder(Path(folder))
    sweep, base, _ = place.kept()
    training = Training(place, sweep, base, "disabled" if mode == "disabled" else "offline", Material(keep=True))
    try:
        Engine(place, sweep, training, int(limit)).work()
    except KeyboardInterrupt:
        return INTERRUPTED
    except FullDisk:
        return DISK_FULL
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

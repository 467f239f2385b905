"""A process that works on a study: `python -m mtl.study.worker FOLDER PARENT THREADS`."""

from __future__ import annotations

import sys
from pathlib import Path

INTERRUPTED, DISK_FULL = 130, 3
"""Exit codes."""


def full_disk(place: Path) -> str:
    """What to say when nothing can be written any more."""
    return (
        f"the disk is full ({place}): make room and give the same command again; finished runs are kept, and "
        "the others go on from their last checkpoints"
    )


def main(folder: str, parent: str, threads: str) -> int:
    """Do jobs until none is left; ends with its parent."""
    import torch

    from mtl.material import Material
    from mtl.study.folder import StudyFolder
    from mtl.study.work import FullDisk, die_with, work

    torch.set_num_threads(int(threads))
    die_with(int(parent))
    try:
        work(StudyFolder(Path(folder)), Material(keep=True))
    except KeyboardInterrupt:
        return INTERRUPTED
    except FullDisk:
        return DISK_FULL
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

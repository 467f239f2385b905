"""A process that works on a study: `python -m mtl.study.worker FOLDER PARENT THREADS`."""

from __future__ import annotations

import sys
from pathlib import Path

from mtl.errors import InputError
from mtl.workers.pool import REFUSED, share_of


def main(folder: str, parent: str, threads: str) -> int:
    """Do jobs until none is left."""
    from mtl.models.inputs import InputCache
    from mtl.study.folder import StudyFolder
    from mtl.study.perform import work

    try:
        return share_of(parent, threads, lambda: work(StudyFolder(Path(folder)), InputCache(keep=True)))
    except InputError as error:
        print(f"mtl: {error}", file=sys.stderr)
        return REFUSED


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

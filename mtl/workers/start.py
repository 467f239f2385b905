"""A worker: `python -m mtl.workers.start MODULE:FUNCTION FOLDER PARENT THREADS …`."""

from __future__ import annotations

import sys
from pathlib import Path
from pkgutil import resolve_name

from mtl.workers.collector import importing
from mtl.workers.queue import run_worker


def _main(function: str, folder: str, parent: str, threads: str, *arguments: str) -> int:
    """Call the function, which works until nothing is left to do; returns the exit code (`run_worker`)."""

    def work() -> None:
        with importing():
            called = resolve_name(function)
        called(Path(folder), *arguments)

    return run_worker(int(parent), int(threads), work)


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))

"""Python's search for cycles of garbage, switched off where millions of objects are made."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """Run the block without the search, which would double the time of reading and free next to nothing.

    Objects outside cycles are freed as usual.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def importing() -> Iterator[None]:
    """Import what training needs inside the block, without the search, which takes a fifth of the time.

    Later searches leave out what was imported. Does nothing in a process that has already imported Lightning.
    """
    if "pytorch_lightning" in sys.modules:
        yield
        return
    with without_collector():
        yield
    gc.collect()
    gc.freeze()

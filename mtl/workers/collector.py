"""Python's search for cycles of garbage, switched off where millions of small objects are made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """Without the search, which would double the time that reading takes and frees next to nothing.

    What refers to nothing in a circle is freed as ever.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()

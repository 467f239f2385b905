"""Imports of large libraries by the program's processes."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """Import what training needs inside the block, without a search for garbage meanwhile.

    The search takes a fifth of the time. What was imported is left out of all later ones. In a process that
    has Lightning already, nothing is done.
    """
    if "pytorch_lightning" in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()

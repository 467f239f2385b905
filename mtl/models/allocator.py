"""Large blocks of memory that are freed and asked for again in every step."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST = 2**28
_UNUSED = 2**30


def keep_large_blocks() -> bool:
    """Let glibc keep blocks of up to 256 MiB that are freed, up to 1 GiB in all; `False` without glibc.

    By default it returns blocks above 32 MiB to the system at once. The dense gradient of MiniLM's word
    embeddings has 45 MiB: each training step then spends 10 to 25 ms on page faults alone, of some 350 ms
    (16 sentences, one thread). No result depends on it.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST) and mallopt(_M_TRIM_THRESHOLD, _UNUSED))

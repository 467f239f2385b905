"""Large blocks of memory: kept while every step frees and asks for them, returned after a run."""

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


def release_free_blocks() -> bool:
    """Return the memory to the system that glibc keeps of freed blocks; `False` without glibc.

    A process that makes many runs, such as a study's worker, would keep what the largest of them needed, and
    the gaps that all of them left.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, TypeError, AttributeError):
        return False
    return bool(trim(0))

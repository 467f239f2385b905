"""glibc's allocator: keep large freed blocks during training, return them to the system after a run."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST = 2**28
_UNUSED = 2**30
_NO_GLIBC = (OSError, TypeError, AttributeError)


def keep_large_blocks() -> bool:
    """Let glibc keep freed blocks of up to 256 MiB, up to 1 GiB in all; `False` without glibc.

    By default it returns blocks above 32 MiB to the system at once. The dense gradient of MiniLM's word
    embeddings has 45 MiB: page faults would take 10 to 25 ms of a training step of about 350 ms (16
    sentences, one thread). No result depends on it.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except _NO_GLIBC:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST) and mallopt(_M_TRIM_THRESHOLD, _UNUSED))


def release_free_blocks() -> bool:
    """Return the freed memory that glibc keeps to the system; `False` if there was none, or without glibc.

    Otherwise a process that makes many runs, such as a study's worker, would keep as much memory as the
    largest run needed, and the gaps that all runs left.
    """
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except _NO_GLIBC:
        return False

"""Functions compiled by numba, which keeps them on disk for the next process where it can."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numba
from numba.core.caching import FunctionCache


def compiled(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """As `numba.njit(cache=True, nogil=True)`, with a cache that is optional.

    numba raises an error if it finds no folder for its cache: in a read-only installation whose user has no
    writable home. It also raises one if the folder is full or its files are damaged or another user's. The
    function is then compiled in each process.
    """
    if function is None:
        return lambda function: compiled(function, **options)
    made: Any = numba.njit(nogil=True, **options)(function)
    if made is not function:  # NUMBA_DISABLE_JIT leaves the function as it is
        with suppress(RuntimeError, OSError):
            made._cache = _OptionalCache(function)
    return made


class _OptionalCache(FunctionCache):
    """numba's cache on disk, where a function that cannot be loaded or saved is not an error."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        with suppress(Exception):  # a damaged file may raise anything
            return super().load_overload(sig, target_context)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(Exception):  # an index that cannot be read is read here once more
            super().save_overload(sig, data)

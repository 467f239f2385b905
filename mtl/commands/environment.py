"""Environment variables that libraries read, with values over which they end the process."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mtl.errors import InputError, RunError

_SHOWN = 3
"""Maximum number of variables that a message names."""


def drop_thread_counts() -> None:
    """Remove invalid numbers of threads from the environment, over which libraries end the process."""
    for name in ("OMP", "MKL", "OPENBLAS", "NUMBA", "RAYON", "POLARS"):
        variable = f"{name}_MAX_THREADS" if name == "POLARS" else f"{name}_NUM_THREADS"
        if not os.environ.get(variable, "1").isdecimal() or os.environ.get(variable) == "0":
            del os.environ[variable]


@contextmanager
def naming_variables() -> Iterator[None]:
    """Raise an `InputError` that names environment variables if an import in the block fails over them."""
    try:
        yield
    except (InputError, RunError, ImportError, OSError, MemoryError):
        raise
    except Exception as error:
        if (message := _fault_of_variables(error)) is None:
            raise
        raise InputError(message) from error


def _fault_of_variables(error: Exception) -> str | None:
    """What to do about a failed import; `None` if no import failed, or no variable can be the reason.

    The variables are those named in the library's lines that failed, otherwise those that begin with the
    library's name.
    """
    frames = traceback.extract_tb(error.__traceback__)
    of_imports = [number for number, frame in enumerate(frames) if frame.name == "<module>"]
    if not of_imports:
        return None
    begin = of_imports[-1]
    parts = Path(frames[begin].filename).parts
    if "site-packages" not in parts:
        return None
    library = parts[parts.index("site-packages") + 1].removesuffix(".py")
    lines = [frame.line or "" for frame in frames[begin:]]
    found = [name for name in os.environ if any(f'"{name}"' in line for line in lines)]
    found = found or sorted(name for name in os.environ if name.startswith(f"{library.upper()}_"))
    if not found:
        return None
    values = ", ".join(f"{name}={os.environ[name]!r}" for name in found[:_SHOWN])
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{library} cannot be imported ({reason}): correct or unset {values}"

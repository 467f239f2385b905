"""The values of a function of numbers, computed by other processes."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from mtl.errors import RunError

R = TypeVar("R")


def in_processes(function: Callable[[int], R], count: int, processes: int) -> Iterator[R]:
    """Yield `function(0)` to `function(count - 1)` in order; forked `processes` compute them in turn.

    A process is at most one result ahead of the caller. All processes end with the iterator, or with this
    process. An error of the function is raised here; a killed process raises `RunError`.
    """
    if processes < 2:
        yield from map(function, range(count))
        return
    context = multiprocessing.get_context("fork")
    ends: list[Connection] = []
    workers = []
    try:
        for number in range(processes):
            mine, theirs = context.Pipe(duplex=False)
            ends.append(mine)
            worker = context.Process(
                target=_serve, args=(theirs, tuple(ends), function, range(number, count, processes))
            )
            with warnings.catch_warnings():  # Python 3.12 warns of threads; none of them holds a lock here
                warnings.simplefilter("ignore", DeprecationWarning)
                worker.start()
            workers.append(worker)
            theirs.close()
        for number in range(count):
            try:
                result = ends[number % processes].recv()
            except EOFError:
                raise RunError(
                    "a process that works for this one was killed, perhaps for lack of memory: free some, or "
                    "set OMP_NUM_THREADS=1, which also limits the number of such processes"
                ) from None
            if isinstance(result, BaseException):
                raise result
            yield result
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


def _serve(
    results: Connection, of_others: Sequence[Connection], function: Callable[[int], Any], numbers: range
) -> None:
    """Send the results for these numbers, until nobody is left to read them.

    Ctrl-C also reaches this process; the process that started it handles it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for end in of_others:  # while a reading end is open anywhere, a write waits for a reader
        end.close()
    try:
        for number in numbers:
            try:
                results.send(function(number))
            except BrokenPipeError:
                return
            except Exception as error:
                results.send(_as_sent(error))
                return
    finally:
        results.close()


def _as_sent(error: Exception) -> Exception:
    """The error with its traceback as a note; if it cannot be pickled and read again, a `RuntimeError`."""
    note = traceback.format_exc()
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(note)
    return error

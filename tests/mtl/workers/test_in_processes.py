"""A function of numbers, computed by several processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from mtl.errors import InputError, RunError
from mtl.workers.in_processes import in_processes


def test_results_are_in_order_whatever_the_number_of_processes():
    expected = [(number, number * number) for number in range(7)]
    for processes in (1, 2, 3, 9):
        assert list(in_processes(lambda number: (number, number * number), 7, processes)) == expected
    assert os.getpid() not in set(in_processes(lambda number: os.getpid(), 2, 2))


def test_the_first_error_in_order_is_raised_and_a_killed_process_named():
    def work(number: int) -> int:
        if number >= 2:
            raise InputError(f"sentence {number}")
        return number

    results = in_processes(work, 6, 3)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(InputError) as raised:
        next(results)
    assert str(raised.value) == "sentence 2"
    with pytest.raises(RunError, match="killed, perhaps for lack of memory"):
        list(in_processes(lambda number: os.kill(os.getpid(), signal.SIGKILL), 2, 2))


class _OfTwo(Exception):
    """pickle cannot make it again from its `args`."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{what} in {where}")


def test_an_error_that_cannot_be_sent_is_said():
    def work(number: int) -> int:
        error = _OfTwo("a fault", "sentence 1") if number else ValueError("no lock")
        error.lock = None if number else threading.Lock()
        raise error

    for number, said in enumerate(("ValueError: no lock", "_OfTwo: a fault in sentence 1")):
        with pytest.raises(RuntimeError) as raised:
            list(in_processes(lambda _, number=number: work(number), 2, 2))
        assert str(raised.value) == said
        assert any("in work" in note for note in raised.value.__notes__)


def test_no_process_outlives_the_one_that_was_killed():
    code = (
        "import os, sys, time\n"
        "from mtl.workers.in_processes import in_processes\n"
        "for process in in_processes(lambda number: time.sleep(0.01) or os.getpid(), 10**6, 3):\n"
        "    print(process, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        workers = {int(started.stdout.readline()) for _ in range(3)}
        started.kill()
    assert len(workers) == 3
    until = time.monotonic() + 10
    while any(map(_runs, workers)):
        assert time.monotonic() < until
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

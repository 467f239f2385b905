"""Worker processes: replaced when they die, given up when they keep dying, fitted on GPUs.
A function of numbers, computed by several processes.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import psutil
import pytest

from mtl.errors import InputError, RunError
from mtl.workers.pool import WorkerPool, devices, environment_for, in_processes, threads_for
from mtl.workers.queue import DISK_FULL, INTERRUPTED, redirect_output


@pytest.fixture
def pool(tmp_path, monkeypatch):
    """Makes a pool of processes that run some lines; `place` is its folder, `begun()` counts processes."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def make(lines: str, **more) -> WorkerPool:
        head = "import os, sys, time\nfrom pathlib import Path\nplace = Path(sys.argv[1])\n"
        count = "(place / f'begun-{os.getpid()}').touch()\n"
        (tmp_path / "member.py").write_text(head + count + textwrap.dedent(lines))
        return WorkerPool(("member",), tmp_path, **{"threads": lambda workers: 1} | more)

    return make


def begun(pool: WorkerPool) -> int:
    return len(list(pool.folder.glob("begun-*")))


def test_the_pool_works_until_all_have_ended(pool):
    made = pool("(place / f'done-{os.getpid()}').touch()")
    made.work(lambda: 3, lambda: 0)
    assert begun(made) == 3
    assert len(list(made.folder.glob("done-*"))) == 3
    assert sys.argv[0]  # this process is still what it was


def test_one_that_dies_is_replaced(pool):
    made = pool("sys.exit(len(list(place.glob('begun-*'))) < 3)")
    made.work(lambda: 1, lambda: 0)
    assert begun(made) == 3


@pytest.mark.slow
def test_a_pool_that_dies_over_and_over_is_given_up(pool):
    made = pool("sys.exit(1)")
    with pytest.raises(InputError, match=r"worker processes keep crashing; see .*worker-"):
        made.work(lambda: 1, lambda: 0)
    assert begun(made) == 4


@pytest.mark.parametrize(("code", "error"), [(DISK_FULL, InputError), (INTERRUPTED, KeyboardInterrupt)])
def test_all_stop_with_one_that_must(pool, code, error):
    made = pool(
        f"""
        try:
            (place / 'first').mkdir()
        except FileExistsError:
            while not (place / 'first' / 'at-work').exists():
                time.sleep(0.05)
            sys.exit({code})
        try:
            (place / 'first' / 'at-work').touch()
            time.sleep(60)
        except KeyboardInterrupt:
            (place / 'saved').touch()
        """
    )
    with pytest.raises(error):
        made.work(lambda: 2, lambda: 0)
    assert (made.folder / "saved").exists()


def test_each_has_a_gpu_and_a_share_of_the_cores(pool, monkeypatch):
    lines = "(place / (os.environ['CUDA_VISIBLE_DEVICES'] + '-' + os.environ['OMP_NUM_THREADS'])).touch()"
    made = pool(lines, gpus=("4", "7"))
    made.work(lambda: 2, lambda: 0)
    assert {path.name for path in made.folder.glob("?-1")} == {"4-1", "7-1"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, 5")
    assert devices() == []  # a machine without them
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert devices() == ["3", "5"]
    monkeypatch.setattr("mtl.workers.pool.cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [threads_for(count) for count in (1, 3, 8, 20)] == [8, 2, 1, 1]
    for most, threads in (("3", [3, 2, 1, 1]), ("0", [8, 2, 1, 1]), ("many", [8, 2, 1, 1])):
        monkeypatch.setenv("OMP_NUM_THREADS", most)
        assert [threads_for(count) for count in (1, 3, 8, 20)] == threads


def test_processes_that_are_started_later_share_the_cores_with_those_at_work(pool):
    lines = """
    (place / f"threads-{os.environ['OMP_NUM_THREADS']}-{sys.argv[3]}").touch()
    while len(list(place.glob("threads-*"))) < 2:
        time.sleep(0.05)
    """
    made = pool(lines, threads=lambda workers: 8 // workers)
    made.work(lambda: 1 + bool(begun(made)), lambda: 0)
    assert {path.name for path in made.folder.glob("threads-*")} == {"threads-8-8", "threads-4-4"}


def test_the_last_ones_stop_if_fewer_are_wanted(pool):
    made = pool(
        """
        try:
            (place / f"at-work-{os.getpid()}").touch()
            while not (place / "enough").exists():
                time.sleep(0.05)
        except KeyboardInterrupt:
            (place / "saved").touch()
            (place / "enough").touch()
            sys.exit(130)
        """
    )
    made.work(lambda: 1 if len(list(made.folder.glob("at-work-*"))) == 2 else 2, lambda: 0)
    assert (made.folder / "saved").exists()
    assert begun(made) == 2


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_cores_are_those_that_the_process_may_use():
    affinity = os.sched_getaffinity(0)
    set_to_one = f"import os; os.sched_setaffinity(0, {{{min(affinity)}}})"
    lines = f"{set_to_one}\nfrom mtl.workers import pool\nprint(pool.cores())"
    told = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=True)
    assert told.stdout == "1\n"


def test_what_a_process_refuses_is_said_once(pool):
    made = pool("print('mtl: no such thing', file=sys.stderr); sys.exit(2)")
    with pytest.raises(InputError, match=r"^no such thing$"):
        made.work(lambda: 1, lambda: 0)
    assert begun(made) == 1


def test_a_refusal_without_a_message_names_the_log(pool):
    made = pool("sys.exit(2)")
    with pytest.raises(InputError, match=r"^a worker refused its work; see .*worker-.*\.log$"):
        made.work(lambda: 1, lambda: 0)


@pytest.mark.slow
def test_a_worker_turns_bad_input_into_one_line_and_is_not_started_again(pool):
    made = pool(
        """
        from mtl.errors import InputError
        from mtl.workers.queue import run_worker
        def work():
            raise InputError("no such thing")
        sys.exit(run_worker(int(sys.argv[2]), int(sys.argv[3]), work))
        """
    )
    with pytest.raises(InputError, match=r"^no such thing$"):
        made.work(lambda: 1, lambda: 0)
    assert begun(made) == 1


def test_output_of_python_and_of_libraries_goes_to_the_log(tmp_path, capfd):
    log = tmp_path / "logs" / "one.log"
    for word in ("first", "second"):
        with redirect_output(log):
            print(word)
            os.write(2, f"{word} of a library\n".encode())
    assert log.read_text() == "first\nfirst of a library\nsecond\nsecond of a library\n"
    print("after")
    assert capfd.readouterr() == ("after\n", "")


def test_a_process_is_no_part_of_a_larger_run(monkeypatch):
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    environment = environment_for(3)
    assert not {"SLURM_PROCID", "LOCAL_RANK"} & environment.keys()
    assert environment["OMP_NUM_THREADS"] == "3"


@pytest.mark.slow
def test_results_are_in_order_whatever_the_number_of_processes():
    expected = [(number, number * number) for number in range(7)]
    for processes in (1, 2, 3, 9):
        assert list(in_processes(lambda number: (number, number * number), range(7), processes)) == expected
    assert os.getpid() not in set(in_processes(lambda number: os.getpid(), range(2), 2))


def test_endless_items_are_read_a_little_ahead():
    read = 0

    def items():
        nonlocal read
        for number in itertools.count():
            read += 1
            yield number

    results = in_processes(lambda number: -number, items(), 2)
    for done in range(200):
        assert next(results) == -done
        assert read - done <= 2 * 2 + 2  # one of them waits for room, and room was made for the result
    results.close()


def test_an_error_of_the_items_comes_after_the_results_before_it():
    def items():
        yield from (1, 2)
        raise OSError("the disk does not answer")

    for processes in (1, 2):
        results = in_processes(lambda number: -number, items(), processes)
        assert [next(results), next(results)] == [-1, -2]
        with pytest.raises(OSError, match="does not answer"):
            next(results)


@pytest.mark.slow
def test_new_processes_get_the_function_and_find_nobody_who_interrupts_them():
    given = [signal.SIGINT] * 3
    results = list(in_processes(signal.getsignal, given, 2, start="spawn"))
    assert results == [signal.SIG_IGN] * 3
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def test_the_first_error_in_order_is_raised_and_a_killed_process_named():
    def work(number: int) -> int:
        if number >= 2:
            raise InputError(f"sentence {number}")
        return number

    results = in_processes(work, range(6), 3)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(InputError) as raised:
        next(results)
    assert str(raised.value) == "sentence 2"
    with pytest.raises(RunError, match="killed, perhaps for lack of memory"):
        list(in_processes(lambda number: os.kill(os.getpid(), signal.SIGKILL), range(2), 2))


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
            list(in_processes(lambda _, number=number: work(number), range(2), 2))
        assert str(raised.value) == said
        assert any("in work" in note for note in raised.value.__notes__)


def test_no_process_outlives_the_one_that_was_killed():
    code = (
        "import os, sys, time\n"
        "from mtl.workers.pool import in_processes\n"
        "for process in in_processes(lambda number: time.sleep(0.01) or os.getpid(), range(10**6), 3):\n"
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

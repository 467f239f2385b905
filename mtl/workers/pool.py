"""Worker processes of one machine: started, replaced if they die, stopped with their state saved; and its
GPUs, with how many runs share each."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, TypeVar

from mtl.errors import InputError, RunError
from mtl.workers.launch import is_launcher_variable
from mtl.workers.queue import DISK_FULL, INTERRUPTED, LOOK, REFUSED, TRIES, last_line, no_room

STARTER = "mtl.workers.start"
"""The module that calls a function in a worker."""
MOST_ON_A_GPU = 8
"""Maximum number of runs on one GPU whose speed is not measured."""
MOST_WITH_MPS = 48
"""Maximum number of processes that NVIDIA's Multi-Process Service lets share a GPU."""
CONTEXT = 0.6
"""Gigabytes that a process takes on a GPU in addition to its tensors (CUDA's context)."""
EPOCHS = 4
"""Epochs of each run over which a number of runs is measured."""
GAIN = 1.1
"""How much faster twice as many runs must be, all together, to be kept."""


@dataclass(frozen=True)
class WorkerPool:
    """Worker processes of one machine, and how they are started."""

    program: Sequence[str]
    """Module and first arguments: workers run `python -m PROGRAM FOLDER PARENT THREADS ARGUMENTS`."""
    folder: Path
    """The folder of the study or sweep; workers write their output to its `logs/worker-…`."""
    threads: Callable[[int], int]
    """The threads of a worker, by the number of workers that are wanted when it starts."""
    gpus: Sequence[str] = ()
    """Each worker gets one of these, in turn, as `CUDA_VISIBLE_DEVICES`; empty: the variable is unchanged."""
    arguments: Sequence[str] = ()
    directory: Path | None = None
    """The workers' working directory; `None`: that of this process."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that workers get if this process lacks them."""
    restart_interrupted: bool = False
    """Start an interrupted worker again instead of stopping all."""

    def work(self, capacity: Callable[[], int], count_ended: Callable[[], int]) -> None:
        """Keep `capacity()` processes at work until all have ended; if it falls, the last ones stop.

        `count_ended`, the number of jobs that have ended, is called twice a second. Raises
        `KeyboardInterrupt` when asked to stop, and `InputError` if the disk is full, the input is bad or
        processes keep dying. The other processes have then saved their state.
        """
        workers: list[_Worker] = []
        started, deaths, ended = 0, 0, 0
        try:
            while True:
                wanted = capacity()
                while started < wanted:
                    workers.append(self._start(started, self.threads(wanted)))
                    started += 1
                if not workers:
                    break
                _stop(workers[wanted:])
                started -= len(workers[wanted:])
                del workers[wanted:]
                time.sleep(LOOK)
                for worker in [worker for worker in workers if worker.process.poll() is not None]:
                    workers.remove(worker)
                    code = worker.process.returncode
                    if code == DISK_FULL:
                        raise InputError(no_room(self.folder))
                    if code == INTERRUPTED and not self.restart_interrupted:
                        raise KeyboardInterrupt
                    if code == REFUSED:
                        raise InputError(last_line(worker.log))
                    if code != 0:
                        deaths += 1
                        if deaths > TRIES * started:
                            raise InputError(f"worker processes keep crashing; see {worker.log}")
                        workers.append(self._start(worker.number, self.threads(max(1, wanted))))
                now_ended = count_ended()
                if now_ended > ended:
                    deaths, ended = 0, now_ended
        finally:
            _stop(workers)

    def _start(self, number: int, threads: int) -> _Worker:
        environment = {**self.environment, **environment_for(threads)}
        if self.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = self.gpus[number % len(self.gpus)]
        log = self.folder / "logs" / f"worker-{socket.gethostname()}-{os.getpid()}-{number}.log"
        words = [*self.program, str(self.folder), str(os.getpid()), str(threads), *self.arguments]
        return _Worker(start_worker(words, environment, log, self.directory), number, log)


@dataclass(frozen=True)
class _Worker:
    process: subprocess.Popen[bytes]
    number: int
    log: Path


def start_worker(
    words: Sequence[str], environment: dict[str, str], log: Path, directory: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start `python -m WORDS`, and append its output to a log.

    The process has its own session, so that Ctrl-C reaches only its parent, which passes it on once.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


def _stop(workers: Sequence[_Worker]) -> None:
    """Make the processes save their state and end."""
    for worker in workers:
        if worker.process.poll() is None:
            worker.process.send_signal(signal.SIGINT)
    for worker in workers:
        worker.process.wait()


def environment_for(threads: int) -> dict[str, str]:
    """The environment of a process with this number of threads: this one's without launchers' variables."""
    environment = {name: value for name, value in os.environ.items() if not is_launcher_variable(name)}
    return {"TOKENIZERS_PARALLELISM": "false"} | environment | {"OMP_NUM_THREADS": str(threads)}


def threads_for(count: int) -> int:
    """The threads of each of `count` processes: an equal share of the cores, at least one.

    OMP_NUM_THREADS, which users set on shared machines, is an upper limit if it is a number.
    """
    share = max(1, cores() // count)
    most = os.environ.get("OMP_NUM_THREADS", "")
    return min(share, int(most)) if most.isdecimal() and int(most) > 0 else share


def cores() -> int:
    """The cores that this process may use, by its affinity and its control group (containers, SLURM)."""
    import joblib  # takes a third of a second, which status and dry runs do not need

    return int(joblib.cpu_count())


T = TypeVar("T")
R = TypeVar("R")


def in_processes(
    function: Callable[[T], R],
    items: Iterable[T],
    processes: int,
    *,
    start: Literal["fork", "spawn"] = "fork",
    remedy: str = "free some, or set OMP_NUM_THREADS=1, which also limits the number of such processes",
) -> Generator[R, None, None]:
    """Yield the function's results for the items in order; `processes` compute them in turn.

    A thread reads the items, at most two for each process ahead of the caller, who gets each result as soon
    as it is there. Forked processes share this one's memory; new ones (`spawn`) get the function pickled, and
    may use a GPU and several threads. All processes end with the iterator, or with this process. An error of
    the function or of the items is raised here; a killed process raises `RunError`, which ends with `remedy`.
    """
    if processes < 2:
        yield from map(function, items)
        return
    context: Any = multiprocessing.get_context(start)
    ends: list[Connection] = []
    workers = []
    given: SimpleQueue[Connection | BaseException | None] = SimpleQueue()
    room, stopped = threading.Semaphore(2 * processes), threading.Event()

    def give() -> None:
        """Send the items; the caller gets the ends that results come from, then `None` or an error."""
        try:
            for number, item in enumerate(items):
                room.acquire()
                if stopped.is_set():
                    return
                given.put(ends[number % processes])
                with suppress(ConnectionError):  # its process was killed, as the caller will see
                    ends[number % processes].send(item)
            given.put(None)
        except BaseException as error:
            given.put(error)

    try:
        with _no_interrupt():
            for _ in range(processes):
                mine, theirs = context.Pipe()
                ends.append(mine)
                of_others = tuple(ends) if start == "fork" else ()
                worker = context.Process(target=_serve, args=(theirs, of_others, function))
                with (
                    warnings.catch_warnings()
                ):  # Python 3.12 warns of threads; none of them holds a lock here
                    warnings.simplefilter("ignore", DeprecationWarning)
                    worker.start()
                workers.append(worker)
                theirs.close()
        threading.Thread(target=give, daemon=True).start()
        while (end := given.get()) is not None:
            if isinstance(end, BaseException):
                raise end
            try:
                result = end.recv()
            except (EOFError, ConnectionError):
                raise RunError(
                    f"a process that works for this one was killed, perhaps for lack of memory: {remedy}"
                ) from None
            if isinstance(result, BaseException):
                raise result
            room.release()
            yield result
    finally:
        stopped.set()
        room.release()
        for worker in workers:
            worker.terminate()
            worker.join()


def devices() -> list[str]:
    """The GPUs that torch sees, as `CUDA_VISIBLE_DEVICES` names them; it may also name absent ones."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible == "":
        return []
    import torch

    count = torch.cuda.device_count()
    names = map(str, range(count)) if visible is None else map(str.strip, visible.split(","))
    return [name for name in names if name][:count]


def places_on(gpu: str, peak: float | None, total: float | None = None, most: int = MOST_ON_A_GPU) -> int:
    """The number of runs that fit on a GPU, at most `most`: one until the peak of a finished run is known.

    `peak` and `total`, the GPU's memory, are in gigabytes; `None` for `total`: it is looked up.
    """
    if peak is None:
        return 1
    if total is None:
        import torch

        index = int(gpu) if gpu.isdigit() and int(gpu) < torch.cuda.device_count() else 0
        total = torch.cuda.get_device_properties(index).total_memory / 1e9
    return max(1, min(most, int(0.9 * total / (1.1 * peak + CONTEXT))))


@dataclass
class Sharing:
    """Chooses how many runs share each GPU: twice as many, as long as all together become faster.

    A number of runs is measured from the moment when as many runs have ended an epoch under it. If it is
    hardly faster than half of it, that half is kept to the end.
    """

    gpus: int
    places: int = 1
    """Runs on each GPU."""
    settled: bool = False
    _speed: float = 0.0
    _seen: Mapping[str, float] = field(default_factory=dict)
    _begun: set[str] = field(default_factory=set)
    _start: tuple[float, float] | None = None
    _epochs: int = 0

    def see(self, now: float, done: Mapping[str, float], fits: int) -> int:
        """The runs that each GPU is to have now.

        Args:
            now: The time in seconds.
            done: The work of each run so far, in a unit that all share; it grows with each epoch.
            fits: How many runs fit on a GPU.
        """
        moved = [name for name, work in done.items() if work > self._seen.get(name, 0.0)]
        self._seen = dict(done)
        if self.settled or not moved:
            return self.places
        self._begun.update(moved)
        if self._start is not None:
            self._epochs += len(moved)
        elif len(self._begun) >= self.places * self.gpus:
            self._start = now, sum(done.values())
        if self._start is None or self._epochs < EPOCHS * self.places * self.gpus:
            return self.places
        since, before = self._start
        speed = (sum(done.values()) - before) / (now - since)
        if speed < GAIN * self._speed:
            self.places, self.settled = self.places // 2, True
        elif fits >= 2 * self.places:
            self.places, self._speed = 2 * self.places, speed
            self._begun, self._start, self._epochs = set(), None, 0
        else:
            self.settled = self.places > 1  # one run is also what fits as long as no peak is known
        return self.places


@contextmanager
def multi_process_service() -> Iterator[dict[str, str]]:
    """Have processes compute on a GPU at the same time; yields the variables that they need.

    Starts NVIDIA's Multi-Process Service and stops it at the end. It yields nothing where one is named by the
    environment or runs already, and where there is none or it may not be started: processes then take turns.
    """
    program = shutil.which("nvidia-cuda-mps-control")
    runs = "CUDA_MPS_PIPE_DIRECTORY" in os.environ or Path("/tmp/nvidia-mps/control").exists()
    if program is None or runs:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="mtl-mps-") as folder:
        own = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}

        def control(*words: str, said: str = "") -> bool:
            try:
                ended = subprocess.run(
                    [program, *words], env={**os.environ, **own}, input=said, text=True, timeout=30,
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
                )  # fmt: skip
            except (OSError, subprocess.TimeoutExpired):
                return False
            return ended.returncode == 0

        started = control("-d")
        try:
            yield own if started else {}
        finally:
            if started:
                control(said="quit\n")


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Processes that the block starts ignore Ctrl-C, which also reaches them: this process stops them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _serve(end: Connection, of_others: Sequence[Connection], function: Callable[[Any], Any]) -> None:
    """Send the function's results for the items that come, until nobody is left to read them."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in of_others:  # while a reading end is open anywhere, a write waits for a reader
        other.close()
    with suppress(EOFError, ConnectionResetError, BrokenPipeError):
        while True:
            item = end.recv()
            try:
                end.send(function(item))
            except BrokenPipeError:
                return
            except Exception as error:
                end.send(_as_sent(error))
                return


def _as_sent(error: Exception) -> Exception:
    """The error with its traceback as a note; if it cannot be pickled and read again, a `RuntimeError`."""
    note = traceback.format_exc()
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(note)
    return error

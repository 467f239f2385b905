"""A study on a Ray cluster: workers wherever there is room, and anew where one is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from mtl.crew import DISK_FULL, INTERRUPTED, LOOK, TRIES, environment_for, full_disk
from mtl.errors import InputError
from mtl.study.folder import Job, StudyFolder
from mtl.study.local import watching
from mtl.study.status import states_of

UNLIKE = 4
"""Exit code of a worker where the study would become something else; the last line of its log says why."""
PATIENCE = 15.0
"""Seconds that workers have to end by themselves when nothing is left to do."""
KNOCK = 10.0
"""Seconds in which the head of a cluster has to answer."""


@dataclass(frozen=True)
class Room:
    """What a run takes of a node."""

    cpus: float = 1.0
    """Cores; also the threads, at least one."""
    gpus: float | None = None
    """GPUs; 0.25: four runs to each. `None`: one if the cluster has any."""


def run_on_ray(
    study: StudyFolder,
    jobs: Sequence[Job],
    count: int,
    console: Console,
    address: str | None = None,
    room: Room = Room(),
) -> None:
    """Have at most `count` workers (0: as many as fit) do the jobs; `KeyboardInterrupt` when asked to stop.

    Every worker is a Ray task that holds the room for one run and watches over a process that takes jobs from
    the folder. Workers for which there is no room wait for nodes to join; a lost one is begun again by Ray.
    """
    ray = _ray()
    _check(count, room)
    with _connected(ray, address), _mark(study) as mark:
        gpus = float("GPU" in ray.cluster_resources()) if room.gpus is None else room.gpus
        fitting = fitting_in(ray.nodes(), room.cpus, gpus)
        wanted = min(count or len(jobs), len(jobs))
        console.print(_begun(ray.nodes(), wanted, fitting, room.cpus, gpus), highlight=False, soft_wrap=True)
        held = ray.remote(
            num_cpus=room.cpus, num_gpus=gpus, max_retries=-1, scheduling_strategy="SPREAD"
        )(hold)  # fmt: skip
        threads = max(1, int(room.cpus))
        place = Place(str(study.path), str(Path.cwd()), mark.name)
        workers = [held.remote(place, threads, gpus > 0) for _ in range(wanted)]
        settled = None
        try:
            with watching(study, jobs, max(1, min(wanted, fitting)), console) as look:
                while workers:
                    ended, workers = ray.wait(workers, timeout=LOOK)
                    for problem in _outcomes(ray, ended):
                        raise InputError(problem)
                    states = look()
                    if states["finished"] + states["failed"] == len(jobs):
                        settled = settled or time.monotonic()
                        if time.monotonic() - settled > PATIENCE:
                            break
        finally:
            for worker in workers:
                ray.cancel(worker)  # those at work save their runs
            if workers:
                ray.wait(workers, num_returns=len(workers))


@dataclass(frozen=True)
class Place:
    """Where the study is, for a process elsewhere."""

    study: str
    """The folder's path as the jobs have it."""
    here: str
    """The directory to which relative paths refer."""
    mark: str
    """Name of a file in the folder that only this call of `mtl study` has made."""


def hold(place: Place, threads: int, on_gpu: bool) -> str | None:
    """Runs on a node: keep a process at work on the study; returns what forbids it, if anything does."""
    node = socket.gethostname()
    study = StudyFolder(Path(place.here, place.study))
    if not (study.path / place.mark).exists() or not Path(place.here).is_dir():
        return (
            f"node {node} does not see {study.path}, or not from {place.here}: the study's folder and the "
            "directory in which mtl is called have to lie on a file system that all nodes share"
        )
    log = study.path / "logs" / f"worker-{node}-{os.getpid()}.log"
    deaths, ended = 0, -1
    while _left(study):
        code = _work(place, threads, on_gpu, log)
        if code in (0, INTERRUPTED):
            return None
        if code == DISK_FULL:
            return f"node {node}: {full_disk(study.path)}"
        if code == UNLIKE:
            return f"node {node}: {log.read_text().splitlines()[-1]}"
        now_ended = sum(study.last_progress(job.name).ended > 0 for job in study.jobs())
        deaths, ended = (deaths + 1 if now_ended == ended else 1), now_ended
        if deaths > TRIES:
            return f"node {node}: processes die at once; see {log}"
    return None


def _left(study: StudyFolder) -> bool:
    """Whether any job may still have to be done."""
    jobs = study.jobs()
    return any(state not in ("finished", "failed") for state in states_of(study, jobs).values())


def _work(place: Place, threads: int, on_gpu: bool, log: Path) -> int:
    """One process at work, until it ends; when this task is cancelled, it saves its run first."""
    environment = environment_for(threads)
    if not on_gpu:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    # Ray's processes block the signal by which a task is cancelled and a worker asked to stop, and those that
    # a script began in the background ignore it; what they begin would, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "mtl.study.node", place.study, str(os.getpid()), str(threads)],
            cwd=place.here,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        # Not wait(): Ray's cancelling is noticed between two steps of Python only.
        while process.poll() is None:
            time.sleep(LOOK)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait()
    return process.returncode


def _outcomes(ray: Any, ended: Sequence[Any]) -> Iterator[str]:
    """What forbade workers to go on."""
    for worker in ended:
        try:
            problem = ray.get(worker)
        except ray.exceptions.RayTaskError as error:
            last = str(error.cause).strip().splitlines()[-1]
            problem = f"node {error.ip}: {last} (every node needs the same version of mtl[ray])"
        if problem is not None:
            yield problem


def _ray() -> Any:
    # Ray is said to report its use to its makers otherwise.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise InputError(
            "--engine ray needs Ray, which is not installed; run: pip install 'mtl[ray]'"
        ) from error
    return ray


def _check(count: int, room: Room) -> None:
    if count < 0:
        raise InputError(f"--jobs={count}: give a number of runs side by side, or 0 for as many as fit")
    if room.cpus <= 0:
        raise InputError(f"--cpus={room.cpus:g}: give the cores of one run, for instance 2")
    gpus = room.gpus or 0.0
    if gpus < 0 or gpus > 1:
        raise InputError(f"--gpus={gpus:g}: give a run's share of a GPU, between 0 and 1, for instance 0.25")


@contextlib.contextmanager
def _connected(ray: Any, address: str | None) -> Iterator[None]:
    """In touch with the cluster at an address, or with that of this machine, begun if there is none."""
    address = address or os.environ.get("RAY_ADDRESS")
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"no Ray cluster answers at {address or 'this machine'}: {reason} (one that was begun with a "
            "token wants RAY_AUTH_MODE=token)"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _knock(address: str | None) -> None:
    """Raise `OSError` at once where Ray would try for minutes: nobody listens at HOST:PORT."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=KNOCK).close()


@contextlib.contextmanager
def _mark(study: StudyFolder) -> Iterator[Path]:
    """A file in the study's folder by which nodes know that they see the same folder."""
    mark = study.path / f".ray-{uuid.uuid4().hex}"
    mark.touch()
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)


def fitting_in(nodes: Sequence[dict[str, Any]], cpus: float, gpus: float) -> int:
    """How many workers the living nodes have room for."""
    fits = 0
    for node in nodes:
        has = node["Resources"]
        rooms = [has.get(kind, 0.0) // share for kind, share in (("CPU", cpus), ("GPU", gpus)) if share > 0]
        fits += int(min(rooms)) if node["Alive"] and rooms else 0
    return fits


def _begun(nodes: Sequence[dict[str, Any]], wanted: int, fitting: int, cpus: float, gpus: float) -> str:
    alive = sum(node["Alive"] for node in nodes)
    each = f"cores each: {cpus:g}, GPUs each: {gpus:g}"
    if fitting == 0:
        return f"Ray (nodes: {alive}): no node has room for a run ({each}); waiting for one that has"
    return f"Ray (nodes: {alive}): {min(wanted, fitting)} side by side ({each})"

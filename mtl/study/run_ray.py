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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from mtl.errors import InputError
from mtl.study.folder import StudyFolder
from mtl.study.job import Job
from mtl.study.ray_cluster import ONE_CORE, Room, connected, fitting_in, imported, largest_of
from mtl.study.run_local import watching
from mtl.study.status import states_of
from mtl.workers.pool import (
    DISK_FULL,
    LOOK,
    TRIES,
    disk_is_full,
    environment_for,
    full_disk,
    interruptible,
)

UNLIKE = 4
"""Exit code of a worker where the study would become something else; the last line of its log says why."""
PATIENCE = 15.0
"""Seconds that workers have to end by themselves when nothing is left to do."""
ROOMLESS = 600.0
"""Seconds a cluster may be without a node that is large enough; those of a cloud take minutes to come."""
ACCOUNT = ("WANDB_API_KEY", "WANDB_BASE_URL")
"""Variables that say to whom runs are logged, which are those of the command where a node has none."""


def run_on_ray(
    study: StudyFolder,
    jobs: Sequence[Job],
    count: int,
    console: Console,
    address: str | None = None,
    room: Room = ONE_CORE,
) -> None:
    """Have at most `count` workers (0: as many as fit) do the jobs; `KeyboardInterrupt` when asked to stop.

    Every worker is a Ray task that holds the room for one run and watches over a process that takes jobs from
    the folder. Workers for which there is no room wait for nodes to join; a lost one is begun again by Ray.
    """
    if count < 0:
        raise InputError(f"--jobs={count}: give a number of runs side by side, or 0 for as many as fit")
    room.check()
    ray = imported()
    left = _left(study, jobs)
    if not left:
        return
    with connected(ray, address), _mark(study) as mark:
        interruptible()  # Ray has put handlers of its own
        gpus = float("GPU" in ray.cluster_resources()) if room.gpus is None else room.gpus
        wanted = min(count or left, left)
        space = _Space(ray, room.cpus, gpus, console)
        fitting = space.look()
        if fitting:
            console.print(f"{space}: {min(wanted, fitting)} side by side", highlight=False, soft_wrap=True)
        held = ray.remote(
            num_cpus=room.cpus, num_gpus=gpus, max_retries=-1, scheduling_strategy="SPREAD"
        )(hold)  # fmt: skip
        threads = max(1, int(room.cpus))
        account = {name: os.environ[name] for name in ACCOUNT if name in os.environ}
        place = Place(str(study.path), str(Path.cwd()), mark.name, account)
        workers = [held.remote(place, threads, gpus > 0) for _ in range(wanted)]
        settled = None
        try:
            with watching(study, jobs, max(1, min(wanted, fitting)), console) as look:
                while workers:
                    ended, workers = ray.wait(workers, timeout=LOOK)
                    for problem in _outcomes(ray, ended):
                        raise InputError(problem)
                    states = look()
                    space.look()
                    if states["finished"] + states["failed"] == len(jobs):
                        settled = settled or time.monotonic()
                        if time.monotonic() - settled > PATIENCE:
                            break
        finally:
            for worker in workers:
                ray.cancel(worker)  # those at work save their runs
            if workers:
                ray.wait(workers, num_returns=len(workers))


class _Space:
    """How many runs the cluster has room for; says when nodes come and go, and when there is no room."""

    def __init__(self, ray: Any, cpus: float, gpus: float, console: Console) -> None:
        self._ray, self._cpus, self._gpus, self._console = ray, cpus, gpus, console
        self._nodes: list[dict[str, Any]] = []
        self._none_since: float | None = None

    def __str__(self) -> str:
        alive = sum(node["Alive"] for node in self._nodes)
        return f"Ray (nodes: {alive}; cores of a run: {self._cpus:g}, GPUs: {self._gpus:g})"

    def look(self) -> int:
        """How many runs fit; raises `InputError` when none could for `ROOMLESS` seconds."""
        before, self._nodes = self._nodes, self._ray.nodes()
        had, has = ({node["NodeID"] for node in nodes if node["Alive"]} for nodes in (before, self._nodes))
        if had and had - has:
            self._say(f"lost: {len(had - has)}")
        if had and has - had:
            self._say(f"joined: {len(has - had)}")
        fitting = fitting_in(self._nodes, self._cpus, self._gpus)
        if fitting:
            self._none_since = None
            return fitting
        lacking = f"no node has room for a run ({largest_of(self._nodes)})"
        if self._none_since is None:
            self._none_since = time.monotonic()
            self._say(f"{lacking}; waiting {ROOMLESS / 60:g} minutes for one that has")
        if time.monotonic() - self._none_since > ROOMLESS:
            raise InputError(f"{self}: {lacking}: start one that has, or give --cpus and --gpus that fit")
        return 0

    def _say(self, what: str) -> None:
        self._console.print(f"{self}: {what}", highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Place:
    """Where the study is, for a process elsewhere."""

    study: str
    """The folder's path as the jobs have it."""
    here: str
    """The directory to which relative paths refer."""
    mark: str
    """Name of a file in the folder that only this call of `mtl study` has made."""
    account: dict[str, str] = field(default_factory=dict, repr=False)
    """Variables of the command that a process has unless the node's own environment does."""


def hold(place: Place, threads: int, on_gpu: bool) -> str | None:
    """Runs on a node: keep a process at work on the study; returns what forbids it, if anything does."""
    node = socket.gethostname()
    study = StudyFolder(Path(place.here, place.study))
    if not (study.path / place.mark).exists() or not Path(place.here).is_dir():
        return (
            f"node {node} does not see {study.path}, or not from {place.here}: the study's folder and the "
            "directory in which mtl is called have to lie on a file system that all nodes share"
        )
    try:
        problem = _kept_at_work(study, place, threads, on_gpu, node)
    except OSError as error:
        problem = full_disk(study.path) if disk_is_full(error, study.path) else str(error)
    return None if problem is None else f"node {node}: {problem}"


def _kept_at_work(study: StudyFolder, place: Place, threads: int, on_gpu: bool, node: str) -> str | None:
    # A process that was interrupted is begun again like one that died: a stop of the study reaches this one.
    log = study.path / "logs" / f"worker-{node}-{os.getpid()}.log"
    deaths, ended = 0, -1
    while _left(study, study.jobs()):
        code = _work(place, threads, on_gpu, log)
        if code == 0:
            return None
        if code == DISK_FULL:
            return full_disk(study.path)
        if code == UNLIKE:
            return log.read_text().splitlines()[-1]
        now_ended = sum(study.last_progress(job.name).ended > 0 for job in study.jobs())
        deaths, ended = (deaths + 1 if now_ended == ended else 1), now_ended
        if deaths > TRIES:
            return f"processes die at once; see {log}"
    return None


def _left(study: StudyFolder, jobs: Sequence[Job]) -> int:
    """How many jobs may still have to be done."""
    return sum(state not in ("finished", "failed") for state in states_of(study, jobs).values())


def _work(place: Place, threads: int, on_gpu: bool, log: Path) -> int:
    """One process at work, until it ends; when this task is cancelled, it saves its run first."""
    environment = {**place.account, **environment_for(threads)}
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
        except ray.exceptions.RayError as error:
            first = (str(error).strip().splitlines() or [""])[0]
            problem = f"Ray has given up a worker ({type(error).__name__}: {first}); the same command goes on"
        if problem is not None:
            yield problem


@contextlib.contextmanager
def _mark(study: StudyFolder) -> Iterator[Path]:
    """A file in the study's folder by which nodes know that they see the same folder."""
    mark = study.path / f".ray-{uuid.uuid4().hex}"
    mark.touch()
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)

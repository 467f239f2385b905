"""A study on a Ray cluster: workers wherever they fit; lost ones are started again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from mtl.errors import InputError
from mtl.files import full_disk
from mtl.study.jobs.folder import StudyFolder
from mtl.study.jobs.job import Job
from mtl.study.jobs.status import StudyView
from mtl.study.processes.ray_cluster import (
    ONE_CORE,
    RunResources,
    connected,
    fitting_in,
    imported,
    largest_of,
)
from mtl.study.processes.worker import CHECK
from mtl.tasks.in_words import first_line
from mtl.workers.pool import WorkerPool
from mtl.workers.watch import watching
from mtl.workers.worker import LOOK, interruptible, no_room

MARKER = ".ray-"
"""Start of the names of the files by which nodes recognise the study's folder."""
PATIENCE = 15.0
"""Seconds that workers may take to end by themselves when nothing is left to do."""
ROOMLESS = 600.0
"""Seconds a cluster may be without a node that is large enough; in a cloud, nodes take minutes to start."""
ACCOUNT = ("WANDB_API_KEY", "WANDB_BASE_URL")
"""Environment variables of the W&B account; the command's are used where a node has none."""


def run_on_ray(
    study: StudyFolder,
    jobs: Sequence[Job],
    count: int,
    console: Console,
    address: str | None = None,
    resources: RunResources = ONE_CORE,
) -> None:
    """Have at most `count` workers (0: as many as fit) do the jobs.

    Every worker is a Ray task that holds the resources of one run and keeps a process at work on the folder.
    Workers that do not fit wait for nodes to join; Ray starts a lost one again. Raises `KeyboardInterrupt`
    when asked to stop, and `InputError` where Ray or a worker cannot do the jobs.
    """
    if count < 0:
        raise InputError(f"--jobs={count}: use a number of runs side by side, or 0 for as many as fit")
    resources.check()
    ray = imported()
    unfinished = len(jobs) - study.snapshot(jobs).ended()
    if not unfinished:
        return
    with connected(ray, address), _marker_file(study) as marker:
        interruptible()  # Ray has installed handlers of its own
        gpus = float("GPU" in ray.cluster_resources()) if resources.gpus is None else resources.gpus
        wanted = min(count or unfinished, unfinished)
        capacity = ClusterCapacity(ray, resources.cpus, gpus, console)
        fitting = capacity.look()
        if fitting:
            console.print(f"{capacity}: {min(wanted, fitting)} side by side", soft_wrap=True)
        worker = ray.remote(
            num_cpus=resources.cpus, num_gpus=gpus, max_retries=-1, scheduling_strategy="SPREAD"
        )(ray_worker)  # fmt: skip
        threads = max(1, int(resources.cpus))
        location = StudyLocation(str(study.path), str(Path.cwd()), marker.name)
        workers = [worker.remote(location, threads, gpus > 0) for _ in range(wanted)]
        settled = None
        try:
            with watching(StudyView(study, jobs, max(1, min(wanted, fitting))), console) as look:
                while workers:
                    ended, workers = ray.wait(workers, timeout=LOOK)
                    for problem in _outcomes(ray, ended):
                        raise InputError(problem)
                    capacity.look()
                    if look() == len(jobs):
                        settled = settled or time.monotonic()
                        if time.monotonic() - settled > PATIENCE:
                            break
        finally:
            for worker in workers:
                ray.cancel(worker)  # those at work save their runs
            if workers:
                ray.wait(workers, num_returns=len(workers))


class ClusterCapacity:
    """The number of runs that fit on the cluster; prints when nodes join, are lost or are all too small."""

    def __init__(self, ray: Any, cpus: float, gpus: float, console: Console) -> None:
        self._ray, self._cpus, self._gpus, self._console = ray, cpus, gpus, console
        self._nodes: list[dict[str, Any]] = []
        self._none_since: float | None = None

    def __str__(self) -> str:
        alive = sum(node["Alive"] for node in self._nodes)
        return f"Ray (nodes: {alive}; cores of a run: {self._cpus:g}, GPUs: {self._gpus:g})"

    def look(self) -> int:
        """The number of runs that fit; raises `InputError` if none could for `ROOMLESS` seconds."""
        before, self._nodes = self._nodes, self._ray.nodes()
        had, has = ({node["NodeID"] for node in nodes if node["Alive"]} for nodes in (before, self._nodes))
        if had and had - has:
            self._print(f"lost: {len(had - has)}")
        if had and has - had:
            self._print(f"joined: {len(has - had)}")
        fitting = fitting_in(self._nodes, self._cpus, self._gpus)
        if fitting:
            self._none_since = None
            return fitting
        lacking = f"no node has room for a run ({largest_of(self._nodes)})"
        if self._none_since is None:
            self._none_since = time.monotonic()
            self._print(f"{lacking}; waiting {ROOMLESS / 60:g} minutes for one that has")
        if time.monotonic() - self._none_since > ROOMLESS:
            raise InputError(f"{self}: {lacking}: start one that has, or use --cpus and --gpus that fit")
        return 0

    def _print(self, what: str) -> None:
        self._console.print(f"{self}: {what}", soft_wrap=True)


@dataclass(frozen=True)
class StudyLocation:
    """Where the study is, for a process on another node."""

    study: str
    """The path of the study's folder, as the jobs have it."""
    directory: str
    """The directory that relative paths start from."""
    marker: str
    """Name of a file in the folder that only this call of `mtl study` has made; it holds `ACCOUNT`."""


def ray_worker(location: StudyLocation, threads: int, on_gpu: bool) -> str | None:
    """On a node: keep a process at work on the study; returns the reason if that is not possible."""
    node = socket.gethostname()
    study = StudyFolder(Path(location.directory, location.study))
    if not (study.path / location.marker).exists() or not Path(location.directory).is_dir():
        return (
            f"node {node} does not see {study.path}, or not from {location.directory}: the study's folder "
            "and the directory in which mtl is called must be on a file system that all nodes share"
        )
    # SIGINT cancels a task and asks a worker to stop. Ray's processes block it, and those that a script has
    # started in the background ignore it. Child processes would inherit both.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    pool = WorkerPool(
        "mtl.study.processes.worker",
        study.path,
        threads,
        gpus=() if on_gpu else ("",),
        arguments=(CHECK,),
        directory=Path(location.directory),
        environment=_account(study.path / location.marker),
        restart_interrupted=True,  # a stop of the study reaches this process, too
    )
    try:
        pool.work(
            lambda: int(not study.ended()),
            lambda: sum(progress.ended > 0 for progress in study.snapshot().progress.values()),
        )
    except InputError as error:
        return f"node {node}: {error}"
    except OSError as error:
        problem = str(error) if full_disk(error, study.path) is None else no_room(study.path)
        return f"node {node}: {problem}"
    return None


def _account(marker: Path) -> dict[str, str]:
    """The command's `ACCOUNT` variables; another user's process cannot read them and has its own only."""
    try:
        values = json.loads(marker.read_bytes() or b"{}")
    except PermissionError:
        return {}
    return {str(name): str(value) for name, value in values.items()}


def _outcomes(ray: Any, ended: Sequence[Any]) -> Iterator[str]:
    """Why workers could not continue."""
    for worker in ended:
        try:
            problem = ray.get(worker)
        except ray.exceptions.RayTaskError as error:
            last = str(error.cause).strip().splitlines()[-1]
            problem = f"node {error.ip}: {last} (every node needs the same version of mtl-heads[ray])"
        except ray.exceptions.RayError as error:
            first = first_line(error)
            problem = (
                f"Ray lost a worker ({type(error).__name__}: {first}); run the command again to continue"
            )
        if problem is not None:
            yield problem


@contextlib.contextmanager
def _marker_file(study: StudyFolder) -> Iterator[Path]:
    """A file in the study's folder by which nodes know that they see the same folder.

    It holds the variables in `ACCOUNT`, and only this user may read it. As arguments of a task they would be
    stored in the cluster's object store. The next command removes the file of a killed one.
    """
    if len(study.commands()) <= 1:  # this one's
        for leftover in study.path.glob(f"{MARKER}*"):
            leftover.unlink(missing_ok=True)
    marker = study.path / f"{MARKER}{uuid.uuid4().hex}"
    account = {name: os.environ[name] for name in ACCOUNT if name in os.environ}
    marker.touch(mode=0o600, exist_ok=False)
    marker.write_text(json.dumps(account), encoding="utf-8")
    try:
        yield marker
    finally:
        marker.unlink(missing_ok=True)

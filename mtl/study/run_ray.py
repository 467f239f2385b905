"""A study on a Ray cluster: workers run wherever they fit, and lost ones are started again."""

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
from mtl.study.jobs import Job, StudyFolder, StudyView
from mtl.tasks.in_words import counted, first_line
from mtl.workers.pool import STARTER, WorkerPool
from mtl.workers.queue import LOOK, interruptible, no_room
from mtl.workers.watch import watching

MARKER = ".ray-"
"""The start of the names of files by which nodes recognise the study's folder."""
PATIENCE = 15.0
"""Seconds that workers may take to end by themselves when all jobs have ended."""
ROOMLESS = 600.0
"""Seconds that a cluster may lack a node that is large enough; in a cloud, nodes take minutes to start."""
ACCOUNT = ("WANDB_API_KEY", "WANDB_BASE_URL")
"""Environment variables of the W&B account; the command's are used where a node has none."""


def run_on_ray(
    study: StudyFolder,
    jobs: Sequence[Job],
    count: int,
    console: Console,
    address: str | None = None,
    cpus: float = 1.0,
    gpus: float | None = None,
) -> None:
    """Do the jobs with at most `count` workers (0: as many as fit) on the cluster at `address` (`connected`).

    Every worker is a Ray task that reserves the resources of one run, `cpus` cores and `gpus` GPUs (`None`:
    one if the cluster has any), and keeps a process at work on the folder. A run has as many threads as whole
    cores, at least one. Workers that do not fit wait for nodes to join; Ray starts lost ones again. Raises
    `KeyboardInterrupt` when asked to stop, and `InputError` if Ray or a worker cannot do the jobs.
    """
    ray = imported()
    unfinished = len(jobs) - study.snapshot(jobs).ended()
    if not unfinished:
        return
    with connected(ray, address), _marker_file(study) as marker:
        interruptible()  # Ray has installed handlers of its own
        gpus = float("GPU" in ray.cluster_resources()) if gpus is None else gpus
        wanted = min(count or unfinished, unfinished)
        capacity = ClusterCapacity(ray, cpus, gpus, console)
        fitting = capacity.look()
        if fitting:
            console.print(f"{capacity}: {min(wanted, fitting)} side by side", soft_wrap=True)
        as_task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=-1, scheduling_strategy="SPREAD")
        worker = as_task(ray_worker)
        location = StudyLocation(str(study.path), str(Path.cwd()), marker.name)
        workers = [worker.remote(location, max(1, int(cpus)), gpus > 0) for _ in range(wanted)]
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
    """The number of runs that fit on the cluster; prints when nodes join, are lost, or are all too small."""

    def __init__(self, ray: Any, cpus: float, gpus: float, console: Console) -> None:
        self._ray, self._cpus, self._gpus, self._console = ray, cpus, gpus, console
        self._nodes: list[dict[str, Any]] = []
        self._none_since: float | None = None

    def __str__(self) -> str:
        alive = sum(node["Alive"] for node in self._nodes)
        return f"Ray (nodes: {alive}; cores of a run: {self._cpus:g}, GPUs: {self._gpus:g})"

    def look(self) -> int:
        """The number of runs that fit; raises `InputError` if none has for `ROOMLESS` seconds."""
        before, self._nodes = self._nodes, self._ray.nodes()
        had, has = ({node["NodeID"] for node in nodes if node["Alive"]} for nodes in (before, self._nodes))
        for what, nodes in (("lost", had - has), ("joined", has - had if had else ())):
            if nodes:
                self._print(f"{what}: {len(nodes)}")
        fitting = fitting_in(self._nodes, self._cpus, self._gpus)
        if fitting:
            self._none_since = None
            return fitting
        lacking = f"no node has room for a run ({largest_of(self._nodes)})"
        if self._none_since is None:
            self._none_since = time.monotonic()
            self._print(f"{lacking}; waiting {ROOMLESS / 60:g} minutes for a larger one")
        if time.monotonic() - self._none_since > ROOMLESS:
            raise InputError(f"{self}: {lacking}: start a larger one, or use --cpus and --gpus that fit")
        return 0

    def _print(self, what: str) -> None:
        self._console.print(f"{self}: {what}", soft_wrap=True)


@dataclass(frozen=True)
class StudyLocation:
    """Where a process on another node finds the study."""

    study: str
    """The path of the study's folder, relative to `directory` or absolute."""
    directory: str
    """The directory in which `mtl study` was called."""
    marker: str
    """The name of a file in the study's folder that this call of `mtl study` made; it holds `ACCOUNT`."""


def ray_worker(location: StudyLocation, threads: int, on_gpu: bool) -> str | None:
    """Keep a process at work on the study, on a node; returns the reason if that is not possible."""
    node = socket.gethostname()
    study = StudyFolder(Path(location.directory, location.study))
    if not (study.path / location.marker).exists() or not Path(location.directory).is_dir():
        return (
            f"node {node} does not see {study.path}, or not from {location.directory}: the study's folder "
            "and the directory in which mtl was called must be on a file system that all nodes share"
        )
    # SIGINT cancels a task and asks a worker to stop. Ray's processes block it, and processes that a script
    # started in the background ignore it. Child processes would inherit both.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    pool = WorkerPool(
        (STARTER, "mtl.study.perform:work_after_check"),
        study.path,
        lambda workers: threads,
        gpus=() if on_gpu else ("",),
        directory=Path(location.directory),
        environment=_account(study.path / location.marker),
        restart_interrupted=True,  # when the study is stopped, this process is stopped, too
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
    """The command's `ACCOUNT` variables; empty for another user's process, which may not read them."""
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
            last = (str(error.cause).strip().splitlines() or [type(error.cause).__name__])[-1]
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

    It holds the variables in `ACCOUNT`, and only this user may read it; as arguments of a task they would be
    stored in the cluster's object store. If a command is killed, the next one removes its file.
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


KNOCK = 10.0
"""Seconds within which the head of a cluster must answer."""
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": "."}
"""Environment variables that are set before Ray is imported, unless the user has set them. They turn off
usage statistics, and messages of several lines about lost nodes."""


def imported() -> Any:
    """The module `ray`; raises `InputError` if it is not installed."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise InputError(
            "--engine ray needs Ray, which is not installed; run: pip install 'mtl-heads[ray]'"
        ) from error
    return ray


@contextlib.contextmanager
def connected(ray: Any, address: str | None) -> Iterator[None]:
    """Connect to the cluster at `address`, else at RAY_ADDRESS, else to this machine's, started if needed.

    Raises `InputError` if no cluster answers, or if its versions of Ray or Python differ.
    """
    address = address or os.environ.get("RAY_ADDRESS")
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    except (OSError, RuntimeError, ValueError) as error:
        where, reason = address or "this machine", " ".join(str(error).split())
        raise InputError(
            f"the Ray cluster at {where} cannot be used (a cluster that was started with a token needs "
            f"RAY_AUTH_MODE=token and the same token): {reason}"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _knock(address: str | None) -> None:
    """Raise `OSError` if no process listens at HOST:PORT; Ray would try for minutes."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=KNOCK).close()


def fitting_in(nodes: Sequence[dict[str, Any]], cpus: float, gpus: float) -> int:
    """The number of runs that fit on the living nodes, if each takes these cores and GPUs of one node."""
    shares = {kind: share for kind, share in (("CPU", cpus), ("GPU", gpus)) if share > 0}
    return sum(
        min(int(node["Resources"].get(kind, 0.0) // share) for kind, share in shares.items())
        for node in nodes
        if node["Alive"]
    )


def largest_of(nodes: Sequence[dict[str, Any]]) -> str:
    """The largest numbers of cores and GPUs of a living node, in words."""
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    most = (max((has.get(kind, 0.0) for has in alive), default=0.0) for kind in ("CPU", "GPU"))
    cores, gpus = map(int, most)
    return f"no node has more than {counted(cores, 'core')} and {counted(gpus, 'GPU')}"

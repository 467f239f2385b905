"""A Ray cluster: connecting to it, and the number of runs that fit on its nodes."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mtl.errors import InputError
from mtl.tasks.in_words import counted

KNOCK = 10.0
"""Seconds within which the head of a cluster must answer."""
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": "."}
"""Environment variables that are set before Ray is imported, unless the user has set them."""


@dataclass(frozen=True)
class RunResources:
    """The resources of one run."""

    cpus: float = 1.0
    """Cores; also the threads, at least one."""
    gpus: float | None = None
    """GPUs, at most one; 0.25: four runs share one. `None`: one if the cluster has any."""

    def check(self) -> None:
        """Raise `InputError` for a run without cores, or with GPUs outside 0 to 1."""
        if self.cpus <= 0:
            raise InputError(f"--cpus={self.cpus:g}: use the number of cores of one run, for instance 2")
        gpus = self.gpus or 0.0
        if gpus < 0 or gpus > 1:
            raise InputError(
                f"--gpus={gpus:g}: use a run's share of a GPU, between 0 and 1, for instance 0.25"
            )


ONE_CORE = RunResources()


def imported() -> Any:
    """The module `ray`; raises `InputError` where it is not installed."""
    # Turn off Ray's usage statistics and its multi-line messages about lost nodes.
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
    """Connect to the cluster at `address`, else at RAY_ADDRESS, else of this machine, started if need be.

    Raises `InputError` if no cluster answers, or one of other versions.
    """
    address = address or os.environ.get("RAY_ADDRESS")
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    except (OSError, RuntimeError, ValueError) as error:
        where, reason = address or "this machine", " ".join(str(error).split())
        raise InputError(
            f"the Ray cluster at {where} cannot be used (one that was started with a token needs "
            f"RAY_AUTH_MODE=token and the same token): {reason}"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _knock(address: str | None) -> None:
    """Raise `OSError` at once if no process listens at HOST:PORT; Ray would try for minutes."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=KNOCK).close()


def fitting_in(nodes: Sequence[dict[str, Any]], cpus: float, gpus: float) -> int:
    """The number of runs with these cores and GPUs that fit on the living nodes."""
    shares = {kind: share for kind, share in (("CPU", cpus), ("GPU", gpus)) if share > 0}
    return sum(
        min(int(node["Resources"].get(kind, 0.0) // share) for kind, share in shares.items())
        for node in nodes
        if node["Alive"]
    )


def largest_of(nodes: Sequence[dict[str, Any]]) -> str:
    """The most cores and GPUs that a living node has, in words."""
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    most = (max((has.get(kind, 0.0) for has in alive), default=0.0) for kind in ("CPU", "GPU"))
    cores, gpus = map(int, most)
    return f"no node has more than {counted(cores, 'core')} and {counted(gpus, 'GPU')}"

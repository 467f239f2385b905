"""A Ray cluster: the connection to it, and the number of runs that fit on its nodes."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from mtl.errors import InputError
from mtl.tasks.in_words import counted

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

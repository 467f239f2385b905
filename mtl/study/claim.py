"""Who works on what: a file that exactly one process can make, on one machine or a shared file system."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

BEAT = 10.0
"""Seconds between two signs of life."""
SILENCE = 120.0
"""Seconds after which a process on another machine counts as dead."""


@dataclass(frozen=True)
class Owner:
    """A process; its start time tells it from a later one with the same number."""

    host: str
    pid: int
    started: float

    @classmethod
    def me(cls) -> Owner:
        """This process."""
        return cls(socket.gethostname(), os.getpid(), psutil.Process().create_time())

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def owner_of(claim: Path) -> Owner | None:
    """Who holds a claim, if it is held by a process that lives."""
    try:
        owner = Owner(**json.loads(claim.read_text()))
        silent = time.time() - claim.stat().st_mtime
    except (FileNotFoundError, json.JSONDecodeError, TypeError):
        return None
    if owner.host != socket.gethostname():
        return None if silent > SILENCE else owner
    try:
        process = psutil.Process(owner.pid)
        same = abs(process.create_time() - owner.started) < 1
        # In a container nobody may collect the dead.
        dead = process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return None
    return owner if same and not dead else None


@contextmanager
def claimed(claim: Path) -> Iterator[bool]:
    """Whether this process got the claim, which it then holds, with signs of life, until the block ends."""
    me = Owner.me()
    if not _take(claim, me):
        yield False
        return
    ended = threading.Event()
    beating = threading.Thread(target=_beat, args=(claim, ended), daemon=True)
    beating.start()
    try:
        yield True
    finally:
        ended.set()
        beating.join()
        if owner_of(claim) == me:
            claim.unlink(missing_ok=True)


def _take(claim: Path, me: Owner) -> bool:
    claim.parent.mkdir(parents=True, exist_ok=True)
    own = claim.with_name(f".{claim.name}.{me.host}.{me.pid}.{threading.get_ident()}")
    own.write_text(json.dumps(asdict(me)))
    try:
        if claim.exists() and owner_of(claim) is None:
            # Of several that see a dead owner's claim, one moves it away.
            buried = own.with_suffix(".dead")
            try:
                claim.rename(buried)
            except FileNotFoundError:
                return False
            living = owner_of(buried)
            if living is not None:  # another has buried it and claimed anew in between: give it back
                _link(buried, claim)
            buried.unlink(missing_ok=True)
            if living is not None:
                return False
        return _link(own, claim)
    finally:
        own.unlink(missing_ok=True)


def _link(source: Path, target: Path) -> bool:
    """Make `target`, whole at once, unless it exists."""
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    return True


def _beat(claim: Path, ended: threading.Event) -> None:
    while not ended.wait(BEAT):
        try:
            os.utime(claim)
        except OSError:
            return

"""Who works on what: a file that exactly one process can make, on one machine or a shared file system."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
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
LOST = 5
"""Exit code of a process whose claim another has taken over, since it had given no sign of life."""


@dataclass(frozen=True)
class Owner:
    """A process; when it was started tells it from a later one with the same number."""

    host: str
    pid: int
    started: str

    @classmethod
    def me(cls) -> Owner:
        """This process."""
        return cls(socket.gethostname(), os.getpid(), started(os.getpid()))

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def started(pid: int) -> str:
    """When a process of this machine was started; raises `psutil.Error` if there is none.

    Where the kernel counts from its own start, that is taken: the clock on the wall may be set while a
    process runs.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # The second field is the name in brackets, which may hold blanks and brackets.
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except FileNotFoundError:
        return str(psutil.Process(pid).create_time())
    except ProcessLookupError as error:
        raise psutil.NoSuchProcess(pid) from error
    return f"{boot} {ticks}"


def owner_of(claim: Path) -> Owner | None:
    """Who holds a claim, if it is held by a process that lives."""
    owner = _named_in(_content(claim))
    return owner if owner is not None and _lives(owner, claim) else None


def _lives(owner: Owner, claim: Path) -> bool:
    """Whether a process lives, as far as it or the claim that names it tells."""
    if owner.host != socket.gethostname():
        try:
            return _silence(claim) <= SILENCE
        except FileNotFoundError:
            return False
    try:
        same = started(owner.pid) == owner.started
        # In a container nobody may collect the dead.
        dead = psutil.Process(owner.pid).status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
    return same and not dead


@contextmanager
def claimed(claim: Path) -> Iterator[bool]:
    """Whether this process got the claim, which it then holds, with signs of life, until the block ends.

    A process that finds its claim taken over, having been stopped for longer than `SILENCE`, ends at once:
    it must not write any more where another is at work.
    """
    me = Owner.me()
    claim.parent.mkdir(parents=True, exist_ok=True)
    if not _take(claim, me):
        yield False
        return
    ended = threading.Event()
    beating = threading.Thread(target=_beat, args=(claim, me, ended), daemon=True)
    beating.start()
    try:
        yield True
    finally:
        ended.set()
        beating.join()
        if _named_in(_content(claim)) == me:
            claim.unlink(missing_ok=True)


def _take(claim: Path, me: Owner) -> bool:
    """Take a claim that nobody has, or whose owner is dead.

    To replace a dead owner's claim is a right that is itself claimed, one right for each dead owner. Whoever
    has it finds the claim either as the dead left it, and nobody else may change it, or already another's.
    """
    own = claim.with_name(f".{claim.name}.{me.host}.{me.pid}.{threading.get_ident()}")
    own.write_text(json.dumps(asdict(me)))
    try:
        if _link(own, claim):
            return True
        left = _content(claim)
        if left is None:
            return False  # given back in between, and free for the next who asks
        owner = _named_in(left)
        if owner is not None and _lives(owner, claim):
            return False
        right = claim.with_name(f".{hashlib.sha256(claim.name.encode() + left).hexdigest()[:16]}.right")
        if not _take(right, me):
            return False
        try:
            if _content(claim) != left:
                return False
            own.replace(claim)
            return True
        finally:
            right.unlink(missing_ok=True)
    finally:
        own.unlink(missing_ok=True)


def _content(claim: Path) -> bytes | None:
    try:
        return claim.read_bytes()
    except FileNotFoundError:
        return None


def _named_in(content: bytes | None) -> Owner | None:
    """Who is named in a claim's content, alive or not."""
    try:
        return None if content is None else Owner(**json.loads(content))
    except (ValueError, TypeError):  # damaged, or of another version: nobody's
        return None


def _link(source: Path, target: Path) -> bool:
    """Make `target`, whole at once, unless it exists."""
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    return True


def _silence(claim: Path) -> float:
    """Seconds since the last sign of life, by the clock of the file system, which all machines share."""
    last = claim.stat().st_mtime
    look = claim.with_name(f".look.{socket.gethostname()}.{os.getpid()}.{threading.get_ident()}")
    try:
        look.touch()
        now = look.stat().st_mtime
        look.unlink(missing_ok=True)
    except OSError:  # a folder that can only be read
        now = time.time()
    return now - last


def _beat(claim: Path, me: Owner, ended: threading.Event) -> None:
    while not ended.wait(BEAT):
        try:
            if _named_in(_content(claim)) != me:
                print(f"mtl: {claim} was taken over by another process; ending", file=sys.stderr, flush=True)
                os._exit(LOST)
            os.utime(claim)
        except OSError:
            continue  # a file system that is away for a while

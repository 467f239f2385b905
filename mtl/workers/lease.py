"""Leases: files that one living process holds at a time, on one machine or on a shared file system."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from mtl.files import naming_full_disk, remove_unused, short_name, temporary_file

BEAT = 10.0
"""Seconds between two signs of life."""
SILENCE = 120.0
"""Seconds without a sign of life after which a process that cannot be looked up here counts as dead."""
PAUSE = 0.05
"""Seconds between two attempts at a lease that another process holds for a moment."""
LOST = 5
"""Exit code of a process whose lease another one has taken over because it gave no sign of life."""


@dataclass(frozen=True)
class Holder:
    """A process that holds a lease."""

    host: str
    pid: int
    started: str
    """When it started; distinguishes it from a later process with the same number."""
    namespace: str
    """The process namespace in which `pid` is valid: containers may share the machine's host name, but not
    its process numbers."""

    @classmethod
    def me(cls) -> Holder:
        """This process."""
        return cls(socket.gethostname(), os.getpid(), _start_of(os.getpid()), _namespace())

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def holder_of(path: Path) -> Holder | None:
    """The living process that holds a lease; `None` if there is none."""
    holder = _parsed(_content(path))
    return holder if holder is not None and _lives(holder, path) else None


@contextmanager
def lease(path: Path) -> Iterator[bool]:
    """Try to take the lease at `path`; yields whether this process holds it until the block ends.

    The holder gives a sign of life every `BEAT` seconds. A holder that was stopped for longer than `SILENCE`
    and finds its lease taken over ends at once with exit code `LOST`, since another process writes there now.
    Folders that this process made for the lease are removed with it; those of a process that made them and
    did not get the lease stay, empty.
    """
    me = Holder.me()
    made = [folder for folder in path.absolute().parents if not folder.exists()]
    if not _take_in_folder(path, me):
        yield False
        return
    for right in _rights(path):  # left by processes that took it over and were killed
        right.unlink(missing_ok=True)
    ended = threading.Event()
    beating = threading.Thread(target=_beat, args=(path, me, ended), daemon=True)
    beating.start()
    try:
        yield True
    finally:
        ended.set()
        beating.join()
        if _parsed(_content(path)) == me:
            path.unlink(missing_ok=True)
        with suppress(OSError):  # a folder that is not empty
            for folder in made:
                folder.rmdir()


def remove_dead(folder: Path) -> None:
    """Remove what killed processes of this machine left of their leases in a folder.

    No process may be taking a lease there meanwhile.
    """
    for path in folder.glob("[!.]*.lease"):
        holder = _parsed(_content(path))
        if holder is not None and holder.namespace == _namespace() and not _lives(holder, path):
            path.unlink(missing_ok=True)
    for left in folder.glob(".*.lease.new.*"):
        remove_unused(left)


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lease at `path` during the block; wait while another process holds it."""
    while True:
        with lease(path) as mine:
            if mine:
                yield
                return
        time.sleep(PAUSE)


def changing(path: Path) -> AbstractContextManager[None]:
    """The exclusive right to read a file and replace it during the block; waits for it."""
    return exclusive(path.with_name(f".{short_name(path.name)}.lock"))


def _start_of(pid: int) -> str:
    """When a process of this machine was started; raises `psutil.Error` if there is no such process.

    Linux counts from the boot, so that the result does not change when the wall clock is set.
    """
    try:
        # The second field, the name in brackets, may contain spaces, brackets and half a character.
        ticks = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19].decode()
    except FileNotFoundError:
        return str(psutil.Process(pid).create_time())
    except ProcessLookupError as error:
        raise psutil.NoSuchProcess(pid) from error
    return f"{_boot()} {ticks}"


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _namespace() -> str:
    """The machine's boot and its process namespace; the host name if these are unknown."""
    try:
        return f"{_boot()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def _lives(holder: Holder, path: Path) -> bool:
    """Whether the holder lives: for a process of another namespace, whether it gives signs of life."""
    if holder.namespace != _namespace():
        try:
            return _silence(path) <= SILENCE
        except FileNotFoundError:
            return False
    try:
        same = _start_of(holder.pid) == holder.started
        # A container may lack a process that reaps zombies.
        dead = psutil.Process(holder.pid).status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
    return same and not dead


def _rights(path: Path) -> list[Path]:
    """The existing rights to replace a lease."""
    length = len(_right(path, path, b"").name)
    start = f".{short_name(path.name)}."
    return [
        other
        for other in path.parent.iterdir()
        if other.name.startswith(start) and other.suffix == ".right" and len(other.name) == length
    ]


def _right(of: Path, path: Path, left: bytes) -> Path:
    """The right (a lease, too) to replace what a dead holder `left` at `path`, to get the lease `of`."""
    dead = hashlib.sha256(path.name.encode() + left).hexdigest()[:16]
    return of.with_name(f".{short_name(of.name)}.{dead}.right")


def _take_in_folder(path: Path, me: Holder) -> bool:
    """Take a lease, and make its folder; another process may remove the folder meanwhile with its lease."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return _take(path, me)
        except FileNotFoundError:
            if path.parent.is_dir():
                raise


def _take(path: Path, me: Holder, of: Path | None = None) -> bool:
    """Take a lease that is free or whose holder is dead, or the right to replace the lease `of`.

    The right to replace a dead holder's lease is itself a lease, one for each dead holder. While a process
    has this right, no other may replace the lease; the process may find that it was replaced before. The next
    holder removes rights that killed processes left: none of them concerns its own lease.

    In one rare case, two processes hold a lease for up to `BEAT` seconds: a holder that was only silent gives
    the lease back between the comparison and the replacement, and a third process takes it in that moment.
    The third then finds its lease replaced and ends.
    """
    with temporary_file(path) as mine:
        with naming_full_disk(path.parent):
            mine.write_text(json.dumps(asdict(me)))
        if _link(mine, path):
            return True
        left = _content(path)
        if left is None:
            return False  # given back just now: the next attempt may get it
        holder = _parsed(left)
        if holder is not None and _lives(holder, path):
            return False
        right = _right(of or path, path, left)
        if not _take(right, me, of or path):
            return False
        try:
            if _content(path) != left:
                return False
            mine.replace(path)
            return True
        finally:
            right.unlink(missing_ok=True)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _parsed(content: bytes | None) -> Holder | None:
    """The process that a lease names, alive or not; `None` without a lease, or for a damaged one."""
    try:
        return None if content is None else Holder(**json.loads(content))
    except (ValueError, TypeError):
        return None


def _link(source: Path, target: Path) -> bool:
    """Make `target`, complete from the start, unless it exists; returns whether this call made it."""
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    return True


def _silence(path: Path) -> float:
    """Seconds since the last sign of life, by the clock of the file system, which all machines share."""
    last = path.stat().st_mtime
    try:
        with temporary_file(path) as probe:
            time_there = probe.stat().st_mtime
    except OSError:  # a read-only folder
        time_there = time.time()
    return time_there - last


def _beat(path: Path, me: Holder, ended: threading.Event) -> None:
    while not ended.wait(BEAT):
        try:
            if _parsed(_content(path)) != me:
                print(f"mtl: {path} was taken over by another process; ending", file=sys.stderr, flush=True)
                os._exit(LOST)
            os.utime(path)
        except OSError:
            continue  # the file system is unavailable for a while

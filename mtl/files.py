"""Files that appear whole or not at all, and their hashes."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_ROOM = 1 << 20
"""A disk with fewer free bytes counts as full: libraries write about as many at once."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_OF_RUST = re.compile(r"\(os error (\d+)\)")
_LONGEST = 160
"""Maximum bytes of a name inside the name of a temporary file; file systems allow 255 for the latter."""


@contextmanager
def naming_full_disk(path: Path) -> Iterator[None]:
    """Make an error about a full disk name `path`, the file or folder that the block writes.

    Python's `OSError` names no file if a write fails, and libraries raise errors of any type.
    """
    try:
        yield
    except Exception as error:
        number = full_disk(error, path.parent)
        if number is None:
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


def full_disk(error: BaseException, folder: Path) -> int | None:
    """The error number of a full disk or an exhausted quota; `None` for any other error.

    If neither the error nor any of its causes has a number, the free space in the folder decides.
    """
    numbers = [number for each in _origins(error) if (number := _system_number(each)) is not None]
    if numbers:
        return next((number for number in numbers if number in _FULL), None)
    return errno.ENOSPC if shutil.disk_usage(folder).free < _ROOM else None


def _origins(error: BaseException | None) -> Iterator[BaseException]:
    """The error and its causes; SQLAlchemy keeps the database's error in `orig`."""
    while error is not None:
        yield error
        if isinstance(origin := getattr(error, "orig", None), BaseException):
            yield origin
        error = error.__cause__


def _system_number(error: BaseException) -> int | None:
    """The operating system's number of an error; `None` if it has none.

    Errors of libraries in Rust (safetensors, polars) have it only in their text, as Rust prints it.
    """
    if isinstance(error, OSError):
        return error.errno
    if getattr(error, "sqlite_errorname", "") == "SQLITE_FULL":
        return errno.ENOSPC
    of_rust = _OF_RUST.search(str(error))
    return int(of_rust[1]) if of_rust else None


def may_be_written(folder: Path) -> bool:
    """Whether permissions allow files in a folder, which need not exist yet."""
    try:
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    except OSError:  # a folder above it may not be entered, such as another user's home
        return False
    return there.is_dir() and os.access(there, os.W_OK)


def check_folder_place(folder: Path) -> None:
    """Raise `OSError`, as writing would, if files cannot be written into a folder, which need not exist yet.

    A file without a name is written into the nearest folder that exists: permissions alone do not tell.
    """
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    try:
        for part in folder.absolute().relative_to(there.absolute()).parts:
            (there / part).exists()  # raises for a name that is too long
            _check_prints(folder, part)
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(bytes(_ROOM))
    except OSError as error:
        error.filename = str(folder if error.errno in (errno.ENAMETOOLONG, errno.EILSEQ) else there)
        raise


def check_file_place(path: Path) -> None:
    """Raise `OSError`, as writing would, if a file cannot be written there, or if something else is there.

    Writing replaces what is there, which would destroy a device such as /dev/null.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), str(path))
    _check_prints(path, path.name)
    check_folder_place(path.parent)


def _check_prints(path: Path, name: str) -> None:
    """Raise `OSError` for a name that lists and tables could not show."""
    if not os.fsencode(name).decode(errors="replace").isprintable():
        raise OSError(errno.EILSEQ, os.strerror(errno.EILSEQ), str(path))


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that replaces it when the block ends without an error.

    If `path` is a link, the file that it points to is replaced.
    """
    path = Path(os.path.realpath(path)) if path.is_symlink() else path
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming_full_disk(path), temporary_file(path) as temporary:
        yield temporary
        temporary.replace(path)


@contextmanager
def temporary_file(path: Path) -> Iterator[Path]:
    """A new file beside `path`, removed when the block ends; after a kill the next such block removes it."""
    with _beginning(path, _make_file) as temporary:
        try:
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A temporary folder that replaces `path` when the block ends without an error.

    A folder that is not empty cannot be replaced in one step. After an error between the two steps the old
    folder is put back; after a kill `recover_folder` puts it back.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    old = _beside(path, "old")
    with naming_full_disk(path), _beginning(path, _make_folder) as temporary:
        try:
            yield temporary
            if path.exists() and any(path.iterdir()):
                path.rename(old)
            temporary.rename(path)
        finally:
            if old.exists() and not path.exists():
                old.rename(path)  # if this fails, both folders stay for `recover_folder`
            remove(temporary)
            remove(old)


@contextmanager
def _beginning(path: Path, make: Callable[[Path], int]) -> Iterator[Path]:
    """A temporary file or folder beside `path`, which `make` creates and opens.

    A lock marks it as that of a living process. What killed processes of this machine left has no lock, and
    is removed first. On a file system without locks it stays.
    """
    for left in left_beside(path, f"new.{_host()}"):
        remove_unused(left)
    while True:
        temporary = _beside(path, "new")
        with _named(temporary, path):
            descriptor = make(temporary)
            try:
                with suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_SH)
                if temporary.exists():  # before the lock, another process may have taken it for a leftover
                    yield temporary
                    return
            finally:
                os.close(descriptor)


@contextmanager
def _named(temporary: Path, path: Path) -> Iterator[None]:
    """Make an error name `path`, which the user gave or knows, and not the temporary file or folder."""
    try:
        yield
    except OSError as error:
        if isinstance(error.filename, str) and Path(error.filename).is_relative_to(temporary):
            error.filename = str(path / Path(error.filename).relative_to(temporary))
        raise


def _make_file(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)


def _make_folder(path: Path) -> int:
    path.mkdir()
    return os.open(path, os.O_RDONLY)


def _locked_alone(path: Path) -> int | None:
    """A descriptor with the exclusive lock on a file or folder; `None` if the lock cannot be had."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except OSError:
            os.close(descriptor)
    return None


def in_use(path: Path) -> bool:
    """Whether a living process holds a lock on a file or folder; true, too, if locks cannot be had."""
    if (descriptor := _locked_alone(path)) is None:
        return True
    os.close(descriptor)
    return False


def remove_unused(path: Path) -> bool:
    """Remove a file or folder that is not `in_use`; returns whether it is gone.

    It is locked meanwhile, so that a process that opens it and waits for a lock finds it incomplete.
    """
    if (descriptor := _locked_alone(path)) is not None:
        remove(path)
        os.close(descriptor)
    return not path.exists()


def share_as(example: Path, paths: Iterable[Path]) -> None:
    """Give files the permissions of another one, which was made with those of the process (umask).

    safetensors 0.8 writes files that only their owner can read (its issue 782).
    """
    mode = stat.S_IMODE(example.stat().st_mode)
    for path in paths:
        with suppress(PermissionError):  # not every file system has them
            path.chmod(mode)


def remove(path: Path) -> None:
    """Remove a file, or a folder with everything in it, if it exists."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """As `whole_folder`, for a folder that does not exist or is empty.

    Raises `FileExistsError` if another process has filled it meanwhile.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming_full_disk(path), _beginning(path, _make_folder) as temporary:
        try:
            yield temporary
            try:
                temporary.rename(path)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                raise FileExistsError(
                    errno.EEXIST, "another process has made it meanwhile; use another --out", str(path)
                ) from error
        finally:
            remove(temporary)


def recover_folder(path: Path) -> None:
    """Clean up after a process that was killed while it replaced the folder `path`.

    The old folder is put back if there is no new one. No other process may be replacing `path` at this time.
    """
    if not path.parent.exists():
        return
    old = sorted(left_beside(path, "old"), key=lambda folder: folder.stat().st_mtime)
    if old and not path.exists():
        old.pop().rename(path)
    for leftover in [*old, *left_beside(path, "new")]:
        remove(leftover)


def left_beside(path: Path, kind: str = "") -> list[Path]:
    """Temporary files and folders beside `path`, which killed processes leave: all, or those of a `kind`."""
    start = f".{short_name(path.name)}.{kind}{'.' if kind else ''}"
    return [other for other in path.parent.iterdir() if other.name.startswith(start)]


def remove_temporary_files(folder: Path) -> None:
    """Remove temporary files that killed processes left in a folder; no process may be writing there."""
    for leftover in folder.glob(".*.new.*"):
        if leftover.is_file():
            leftover.unlink(missing_ok=True)


def _beside(path: Path, kind: str) -> Path:
    """A new hidden name in the same folder, unique among the machines and containers that share it."""
    return path.with_name(f".{short_name(path.name)}.{kind}.{_host()}.{os.urandom(4).hex()}")


def _host() -> str:
    return socket.gethostname()[:24]


def short_name(name: str) -> str:
    """The name, a long one cut and with a hash at its end, so that a longer name can be made of it."""
    encoded = os.fsencode(name)
    if len(encoded) <= _LONGEST:
        return name
    start = encoded[: _LONGEST - 17].decode(errors="ignore")
    return f"{start}-{hashlib.sha256(encoded).hexdigest()[:16]}"


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path`, whole or not at all."""
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, whole or not at all."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def fingerprint(paths: Iterable[Path]) -> str:
    """One sha256 over the contents of files, in the order given (their names and folders do not count)."""
    return hashlib.sha256("".join(sha256(path) for path in paths).encode()).hexdigest()


def sha256(path: Path) -> str:
    """The sha256 of a file's content, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksum(path: Path) -> str:
    """The CRC-32 of a file's content, as hexadecimal digits: it finds accidental changes, not forgeries."""
    total = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            total = zlib.crc32(block, total)
    return f"{total:08x}"

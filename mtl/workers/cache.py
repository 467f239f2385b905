"""A cache of folders: the first process that needs a folder makes it; the least recently used are removed.

The folders are in `cache_folder()`, and their names are a word and a hash. When together they are larger than
`MOST_BYTES`, the least recently used are removed. Other files there are not touched, so that the cache can be
a folder that also has other uses.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from mtl.errors import InputError, RunError
from mtl.files import check_folder_place, remove, remove_unused, whole_folder
from mtl.workers.lease import holder_of, lease

T = TypeVar("T")
MOST_BYTES = 50_000_000_000
VARIABLE = "MTL_CACHE"
"""The environment variable that names another folder."""
_ELSEWHERE = f"set {VARIABLE} to a folder with room for large corpora, or corpus.store=memory"
_LOOK = 0.5
"""Seconds between two looks at a folder that another process is making."""
_NAME = r"[a-z]+-[0-9a-f]{32}"
_LEFT = re.compile(rf"\.({_NAME})\.(?:new|old)\..+")
"""The name under which a folder is written, and under which the one that it replaces is kept meanwhile."""


class Damaged(Exception):
    """A folder whose content is not what it should be."""


def cache_folder() -> Path:
    """`MTL_CACHE`, else `mtl` in the user's cache folder (`XDG_CACHE_HOME`, else `~/.cache`).

    Raises `InputError` for a user without a home folder, as in some containers.
    """
    if named := os.environ.get(VARIABLE):
        return Path(named).absolute()
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError as error:
        raise InputError(f"there is no home folder (HOME is not set): {_ELSEWHERE}") from error
    return caches.absolute() / "mtl"


def kept_once(
    name: str,
    read: Callable[[Path], T],
    make: Callable[[Path], None],
    say: Callable[[str], None],
) -> T:
    """What `read` returns for the folder of this name; `make` fills the folder if there is none.

    The name (`_NAME`) determines the content: its hash covers everything that the content depends on. `read`
    raises `Damaged` for a folder that has to be made again. Processes that need the same folder wait for the
    one that makes it. `say` gets lines for the user. Raises `InputError` if the folder cannot be written, and
    `RunError` if it cannot be read afterwards.
    """
    folder = cache_folder() / name
    waits = False
    while (found := _read(folder, read)) is None:
        _check_writable(folder.parent)
        right = _lease_of(folder)
        with lease(right) as mine:
            if mine and (found := _read(folder, read)) is None:
                if folder.exists():
                    say(f"{folder} is damaged: making it again")
                _remove_left(folder)
                with whole_folder(folder) as temporary:
                    make(temporary)
                if (found := _read(folder, read)) is None:
                    raise RunError(
                        f"{folder} was damaged or removed as soon as it was made: run the command again, or "
                        f"set {VARIABLE} to a folder on another disk"
                    )
                _make_room(folder)
                return found
        if found is None and not mine:
            if not waits:
                say(f"waiting for {folder}, which {holder_of(right) or 'another process'} is making")
            waits = True
            time.sleep(_LOOK)
    with suppress(OSError):  # a read-only cache
        os.utime(folder)
    return found


def _read(folder: Path, read: Callable[[Path], T]) -> T | None:
    """What the folder holds; `None` if there is none or it is damaged, `InputError` without permission."""
    try:
        return read(folder) if folder.exists() else None
    except Damaged:
        return None
    except PermissionError as error:
        raise InputError(f"{error.filename or folder}: {error.strerror}: {_ELSEWHERE}") from error


def _check_writable(root: Path) -> None:
    try:
        check_folder_place(root)
    except OSError as error:
        raise InputError(f"{error.filename or root}: {error.strerror}: {_ELSEWHERE}") from error


def _lease_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lease")


def _remove_left(mine: Path) -> None:
    """Remove what killed processes left, except of folders that other processes than this (`mine`) make."""
    for left in list(mine.parent.iterdir()):
        found = _LEFT.fullmatch(left.name)
        if found and (found[1] == mine.name or holder_of(_lease_of(mine.with_name(found[1]))) is None):
            remove(left)


def _make_room(made: Path) -> None:
    """Remove the least recently used folders until the rest is small enough; those in use and `made` stay."""
    found = {each: _use_and_size(each) for each in made.parent.iterdir() if re.fullmatch(_NAME, each.name)}
    total = sum(size for _, size in found.values())
    for folder in sorted(found, key=found.__getitem__):
        if total > MOST_BYTES and folder != made and remove_unused(folder):
            total -= found[folder][1]


def _use_and_size(folder: Path) -> tuple[float, int]:
    """When a folder was used last, and its bytes; zeros if another process has just removed it."""
    try:
        files = [file.stat() for file in folder.iterdir() if file.is_file()]
        return folder.stat().st_mtime, sum(file.st_size for file in files)
    except OSError:
        return 0.0, 0

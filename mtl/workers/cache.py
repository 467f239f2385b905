"""Folders of what can be made again: made once by whoever needs them first, given up when unused.

They lie in the folder `cache_folder`, under names of a word and a hash; a folder that has not been used for
the longest time goes first, once all of them together are larger than `MOST_BYTES`. Whatever else is there,
as in a folder that users have for much that is large, is left alone.
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
"""Seconds between two looks at a folder that another process makes."""
_NAME = r"[a-z]+-[0-9a-f]{32}"
_LEFT = re.compile(rf"\.({_NAME})\.(?:new|old)\..+")
"""The name of what a folder is written in before it is whole, or was before it was replaced."""


class Damaged(Exception):
    """A folder that does not hold what it should."""


def cache_folder() -> Path:
    """`MTL_CACHE`, else `mtl` in the user's folder of caches (`XDG_CACHE_HOME`, else `~/.cache`).

    Raises `InputError` for a user without a home, as in a container that does not know it.
    """
    if named := os.environ.get(VARIABLE):
        return Path(named).absolute()
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError as error:
        raise InputError(f"there is no home folder (HOME is not set): {_ELSEWHERE}") from error
    return caches.absolute() / "mtl"


def made_once(
    name: str,
    read: Callable[[Path], T],
    make: Callable[[Path], None],
    say: Callable[[str], None],
) -> T:
    """What `read` returns for the folder of this name, which `make` fills where it is not there.

    The name, a word and a hash (`_NAME`), says all that its content depends on. `read` raises `Damaged`
    for a folder that is to be made again. Processes that need the same folder wait for the one that makes
    it. Raises `InputError` if the folder cannot be written, `RunError` if it cannot be read then.
    """
    folder = cache_folder() / name
    waits = False
    while (found := _read(folder, read)) is None:
        _check_writable(folder.parent)
        right = _lease_of(folder)
        with lease(right) as mine:
            if mine and (found := _read(folder, read)) is None:
                if folder.exists():
                    say(f"{folder} is damaged: it is made anew")
                _remove_left(folder)
                with whole_folder(folder) as temporary:
                    make(temporary)
                if (found := _read(folder, read)) is None:
                    raise RunError(
                        f"{folder} was damaged or removed as soon as it was made: start again, or set "
                        f"{VARIABLE} to a folder on another disk"
                    )
                _keep_within(MOST_BYTES, folder)
                return found
        if found is None and not mine:
            if not waits:
                say(f"waiting for {folder}, which {holder_of(right) or 'another process'} makes")
            waits = True
            time.sleep(_LOOK)
    with suppress(OSError):  # a cache that can only be read
        os.utime(folder)
    return found


def _read(folder: Path, read: Callable[[Path], T]) -> T | None:
    """What the folder holds; `None` if it is not there, or damaged. Raises `InputError` without the right."""
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
    """Remove what killed processes left of folders that nobody makes; this process is to make `mine`."""
    for left in list(mine.parent.iterdir()):
        found = _LEFT.fullmatch(left.name)
        if found and (found[1] == mine.name or holder_of(_lease_of(mine.with_name(found[1]))) is None):
            remove(left)


def _keep_within(most: int, made: Path) -> None:
    """Remove the folders that were used longest ago, until the rest is small enough; none that is in use."""
    folders = [each for each in made.parent.iterdir() if re.fullmatch(_NAME, each.name)]
    used = {folder: _used(folder) for folder in folders}
    sizes = {folder: _size(folder) for folder in folders}
    for folder in sorted(folders, key=used.__getitem__):
        if sum(sizes.values()) <= most:
            return
        if folder != made and remove_unused(folder):
            del sizes[folder]


def _size(folder: Path) -> int:
    """The bytes in a folder; none if another process has just removed it."""
    try:
        return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    except OSError:
        return 0


def _used(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0

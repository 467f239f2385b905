"""Folders of what can be made again: made once by whoever needs them first, given up when unused.

They lie in the folder `cache_folder`; a folder that has not been used for the longest time goes first, once
all of them together are larger than `MOST_BYTES`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from mtl.errors import InputError
from mtl.files import check_folder_place, in_use, remove, whole_folder
from mtl.workers.lease import holder_of, lease

T = TypeVar("T")
MOST_BYTES = 50_000_000_000
VARIABLE = "MTL_CACHE"
"""The environment variable that names another folder."""
_LOOK = 0.5
"""Seconds between two looks at a folder that another process makes."""


class Damaged(Exception):
    """A folder that does not hold what it should."""


def cache_folder() -> Path:
    """`MTL_CACHE`, else `mtl` in the user's folder of caches (`XDG_CACHE_HOME`, else `~/.cache`)."""
    if named := os.environ.get(VARIABLE):
        return Path(named).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "mtl"


def made_once(
    name: str,
    read: Callable[[Path], T],
    make: Callable[[Path], None],
    say: Callable[[str], None],
) -> T:
    """What `read` returns for the folder of this name, which `make` fills where it is not there.

    The name says all that its content depends on. `read` raises `Damaged` for a folder that is to be made
    again. Processes that need the same folder wait for the one that makes it. Raises `InputError` if the
    folder cannot be written.
    """
    folder = cache_folder() / name
    waits = False
    while (found := _read(folder, read)) is None:
        _check_writable(folder.parent)
        right = folder.with_name(f".{name}.lease")
        with lease(right) as mine:
            if mine and (found := _read(folder, read)) is None:
                if folder.exists():
                    say(f"{folder} is damaged: it is made anew")
                with whole_folder(folder) as temporary:
                    make(temporary)
                _keep_within(MOST_BYTES, folder)
                return read(folder)
        if found is None and not mine:
            if not waits:
                say(f"waiting for {folder}, which {holder_of(right) or 'another process'} makes")
            waits = True
            time.sleep(_LOOK)
    with suppress(OSError):  # a cache that can only be read
        os.utime(folder)
    return found


def _read(folder: Path, read: Callable[[Path], T]) -> T | None:
    """What the folder holds; `None` if it is not there, or damaged."""
    try:
        return read(folder) if folder.exists() else None
    except Damaged:
        return None


def _check_writable(root: Path) -> None:
    try:
        check_folder_place(root)
    except OSError as error:
        raise InputError(
            f"{error.filename or root}: {error.strerror}: set {VARIABLE} to a folder with room for large "
            "corpora, or corpus.store=memory"
        ) from error


def _keep_within(most: int, made: Path) -> None:
    """Remove the folders that were used longest ago, until the rest is small enough; none that is in use."""
    folders = [each for each in made.parent.iterdir() if each.is_dir() and not each.name.startswith(".")]
    sizes = {folder: _size(folder) for folder in folders}
    for folder in sorted(folders, key=_used):
        if sum(sizes.values()) <= most:
            return
        if folder != made and not in_use(folder):
            remove(folder)
            del sizes[folder]


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())


def _used(folder: Path) -> float:
    return folder.stat().st_mtime

"""Files and folders found by patterns and below folders, symbolic links included."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path


def matching(pattern: Path) -> list[Path]:
    """The files and folders that match a pattern (`*`, `?`, `[…]`, `**`), in order.

    A part of the path is a pattern only if nothing has exactly that name. As in a shell, hidden names match
    only a part that begins with a dot.
    """
    found = [Path(pattern.anchor)]
    for part in pattern.relative_to(pattern.anchor).parts:
        try:
            found = [
                match
                for place in found
                for match in _matches(place, part)
                if part.startswith(".") or not is_hidden(match, place)
            ]
        except ValueError:  # pathlib refuses `a**` before Python 3.13: it matches nothing
            return []
    return sorted(set(found))


def _matches(place: Path, part: str) -> Iterable[Path]:
    if (place / part).exists():
        return [place / part]
    if part == "**":
        return folders_below(place) if place.is_dir() else []
    return place.glob(part)


def folders_below(folder: Path) -> Iterator[Path]:
    """A folder and all folders below it except hidden ones; links are followed, which pathlib does not do.

    Each folder is given once, however many links lead to it. Raises `OSError` for one that cannot be listed.
    """
    seen: set[str] = set()
    for place, inside, _ in os.walk(folder, onerror=_raise, followlinks=True):
        real = os.path.realpath(place)
        inside[:] = [] if real in seen else sorted(name for name in inside if not name.startswith("."))
        if real not in seen:
            seen.add(real)
            yield Path(place)


def _raise(error: OSError) -> None:
    raise error


def is_hidden(path: Path, folder: Path) -> bool:
    """Whether any part of a path below a folder begins with a dot."""
    return any(part.startswith(".") for part in path.relative_to(folder).parts)

"""What a setup, a task or a method looks like: its name decides, in every figure and in the report."""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Iterable, Sequence

from mtl.probes.figures.style import LOOKS, Look
from mtl.tasks.order import NAMES

_SETUP = re.compile(r"(STL|MTL-\d+)(?:, (.*))?")
_OF_SETUPS = (
    *(("STL", variant) for variant in ("", "dynamic", "static")),
    *(("MTL", variant) for variant in ("", "dynamic", "static", "dynamic, a mask per task")),
    *(("MTL-2", variant) for variant in ("", "dynamic", "static")),
)
"""The plain setups (`MTL` has more than two tasks), which never look like each other."""


def looks_of(names: Iterable[str], among: Iterable[str] = (), known: Sequence[str] = ()) -> dict[str, Look]:
    """A look for each name, in their order; different names look different, as far as there are looks.

    `known` names take the looks in their order, plain setups theirs, and all others one by a checksum of the
    name. So a name looks the same whatever stands beside it, unless a name before it in the alphabet has the
    same look: then it takes the next free one. Figures of one page give all names of the page as `among`, so
    that they agree there, too.
    """
    names = list(dict.fromkeys(names))
    every = sorted({*names, *among}, key=lambda name: (name not in known, _plain(name) is None, name))
    taken: dict[int, str] = {}
    places: dict[str, int] = {}
    for name in every:
        place = known.index(name) if name in known else _place(name)
        free = (place + step for step in range(len(LOOKS)))
        places[name] = next((look % len(LOOKS) for look in free if look % len(LOOKS) not in taken), place)
        taken[places[name] % len(LOOKS)] = name
    return {name: LOOKS[places[name] % len(LOOKS)] for name in names}


def task_looks(tasks: Collection[str]) -> dict[str, Look]:
    """A look for each task, in their order: its place in the catalogue decides."""
    return looks_of(tasks, known=NAMES)


def _plain(name: str) -> tuple[str, str] | None:
    """The plain setup of this name; `None` for any other name."""
    found = _SETUP.fullmatch(name)
    if found is None:
        return None
    base, variant = found[1], found[2] or ""
    setup = (base if base in ("STL", "MTL-2") else "MTL", variant)
    return setup if setup in _OF_SETUPS else None


def _place(name: str) -> int:
    plain = _plain(name)
    return zlib.crc32(name.encode()) % len(LOOKS) if plain is None else _OF_SETUPS.index(plain)

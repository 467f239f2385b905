"""The colour and marker of a setup, a task or a method: its name decides, in every figure and on the page."""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from mtl.probes.appearance import ordered
from mtl.probes.figures.palette import colour_of
from mtl.probes.figures.style import LOOKS, Look
from mtl.tasks.order import NAMES

_SETUP = re.compile(r"(STL|MTL(?:-\d+)?)(?:, (.*))?")
_OF_SETUPS = (
    *(("STL", variant) for variant in ("", "dynamic", "static")),
    *(("MTL", variant) for variant in ("", "dynamic", "static", "dynamic, a mask per task")),
    *(("MTL-2", variant) for variant in ("", "dynamic", "static")),
)
"""The plain setups (`MTL` has more than two tasks), which all look different."""


def looks_of(names: Iterable[str], among: Iterable[str] = (), known: Sequence[str] = ()) -> dict[str, Look]:
    """A look for each name, in the chosen order; different names look different, as long as there are looks.

    `known` names have the looks in their order, plain setups have looks of their own, and any other name has
    the look that a checksum of the name gives. So a name looks the same whatever stands beside it. If names
    have the same look, all but the first in the alphabet take the next look that no other name has, and
    legends number them (`Look.named`). Figures of one page give all names of the page as `among`, so that
    these agree, too. Chosen colours and order (`mtl.probes.appearance`) take precedence.
    """
    names = list(dict.fromkeys(names))
    alike: dict[int, list[str]] = {}
    for name in sorted({*names, *among}, key=lambda name: (name not in known, _plain(name) is None, name)):
        alike.setdefault(_place(name, known), []).append(name)
    free = [place for place in range(len(LOOKS)) if place not in alike]
    looks: dict[str, Look] = {}
    for own, (first, *others) in alike.items():
        looks[first] = replace(LOOKS[own], number=int(bool(others)))
        for number, name in enumerate(others, 2):
            place = min(free, key=lambda place: (place - own) % len(LOOKS), default=own)
            if place in free:
                free.remove(place)
            looks[name] = replace(LOOKS[place], number=number)
    return {name: replace(looks[name], colour=colour_of(name, looks[name].colour)) for name in ordered(names)}


def task_looks(tasks: Collection[str]) -> dict[str, Look]:
    """A look for each task, by its place in the catalogue unless one is chosen; in the chosen order."""
    return looks_of(tasks, known=NAMES)


def _plain(name: str) -> tuple[str, str] | None:
    """The plain setup of this name; `None` for any other name."""
    found = _SETUP.fullmatch(name)
    if found is None:
        return None
    base, variant = found[1], found[2] or ""
    setup = (base if base in ("STL", "MTL-2") else "MTL", variant)
    return setup if setup in _OF_SETUPS else None


def _place(name: str, known: Sequence[str] = ()) -> int:
    """The place of a name's own look, on which other names have no influence."""
    if name in known:
        return known.index(name) % len(LOOKS)
    plain = _plain(name)
    if plain is not None and not known:
        return _OF_SETUPS.index(plain)
    reserved = min(len(known) or len(_OF_SETUPS), len(LOOKS) - 1)
    return reserved + zlib.crc32(name.encode()) % (len(LOOKS) - reserved)

"""How a user wants names to be shown: their colours and their order, in figures and on pages.

Whatever is drawn within `appearing` follows the choice, as matplotlib's figures follow `rc_context`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Appearance:
    """How names are shown; by default as usual."""

    palette: str = ""
    """A list of colours of matplotlib (`Dark2`), taken instead of the usual ones."""
    colours: dict[str, str] = field(default_factory=dict)
    """Colours by name of a task, setup, method or run: `{pos: black, STL: "#0072B2"}`."""
    order: tuple[str, ...] = ()
    """Names in the order in which they are shown; others follow as usual."""


@dataclass(frozen=True)
class Shown:
    """An appearance, and the names that were shown by it."""

    chosen: Appearance
    coloured: dict[str, None] = field(default_factory=dict)
    ordered: dict[str, None] = field(default_factory=dict)

    def faults(self, what: str) -> Iterator[str]:
        """What was chosen and had no effect on `what` was drawn, a line each."""
        if self.chosen.palette and not self.coloured:
            yield f"palette: {what} has no colours of names"
        for key, named, there in (
            ("colours", self.chosen.colours, self.coloured),
            ("order", self.chosen.order, self.ordered),
        ):
            unknown = [name for name in named if name not in there]
            if unknown:
                known = f"it has {', '.join(there)}" if there else f"it has no {key} of names"
                yield f"{key}: {what} has no '{unknown[0]}'; {known}"


_SHOWN: ContextVar[Shown | None] = ContextVar("shown", default=None)


@contextmanager
def appearing(chosen: Appearance) -> Iterator[Shown]:
    """Have all that is drawn within it look as chosen."""
    shown = Shown(chosen)
    token = _SHOWN.set(shown)
    try:
        yield shown
    finally:
        _SHOWN.reset(token)


def ordered(names: Iterable[str]) -> list[str]:
    """The names, each once: the chosen ones in their order, then the others as they are."""
    shown = _SHOWN.get()
    names = dict.fromkeys(names)
    if shown is None:
        return list(names)
    shown.ordered.update(names)
    first = [name for name in dict.fromkeys(shown.chosen.order) if name in names]
    return [*first, *(name for name in names if name not in first)]


def chosen_colour(name: str) -> str | None:
    """The colour chosen for a name; `None`: the usual one, or that of the chosen palette."""
    shown = _SHOWN.get()
    if shown is None:
        return None
    shown.coloured[name] = None
    return shown.chosen.colours.get(name)


def chosen_palette() -> str:
    """The name of the palette that is chosen; empty: the usual one."""
    shown = _SHOWN.get()
    return "" if shown is None else shown.chosen.palette

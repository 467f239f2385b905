"""The colours and the order in which a user wants names to be shown, in figures and on pages.

Everything that is drawn within `appearing` follows the choice, as matplotlib's figures follow `rc_context`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Appearance:
    """How names are shown; the default changes nothing."""

    palette: str = ""
    """The name of a list of colours of matplotlib, such as `Dark2`, that replaces the usual one."""
    colours: dict[str, str] = field(default_factory=dict)
    """Colours by the name of a task, setup, method or run: `{pos: black, STL: "#0072B2"}`."""
    order: tuple[str, ...] = ()
    """Names in the order in which they are shown; other names follow in their usual order."""


@dataclass(frozen=True)
class ShownNames:
    """An appearance, and the names that were shown in it."""

    chosen: Appearance
    usual: tuple[str, ...] = ()
    """Names in the order in which they follow the chosen ones: a study's tasks, as its file lists them."""
    coloured: dict[str, None] = field(default_factory=dict)
    ordered: dict[str, None] = field(default_factory=dict)

    def faults(self, what: str) -> Iterator[str]:
        """A line for each choice that had no effect on what was drawn, which is called `what`."""
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


_SHOWN: ContextVar[ShownNames | None] = ContextVar("shown", default=None)


@contextmanager
def appearing(chosen: Appearance, usual: tuple[str, ...] = ()) -> Iterator[ShownNames]:
    """Everything that is drawn within it looks as chosen; `usual` is the order of names that are not."""
    shown = ShownNames(chosen, usual)
    token = _SHOWN.set(shown)
    try:
        yield shown
    finally:
        _SHOWN.reset(token)


def ordered(names: Iterable[str]) -> list[str]:
    """The names, each once: those of the chosen order first, then the others as they come."""
    names = dict.fromkeys(names)
    if (shown := _SHOWN.get()) is not None:
        shown.ordered.update(names)
    return arranged(names)


def arranged(names: Iterable[str]) -> list[str]:
    """`ordered`, of names that are not shown as they are."""
    shown = _SHOWN.get()
    names = dict.fromkeys(names)
    wanted = () if shown is None else (*shown.chosen.order, *shown.usual)
    first = [name for name in dict.fromkeys(wanted) if name in names]
    return [*first, *(name for name in names if name not in first)]


def chosen_colour(name: str) -> str | None:
    """The colour that is chosen for a name; `None`: none is, so that the palette's is taken."""
    shown = _SHOWN.get()
    if shown is None:
        return None
    shown.coloured[name] = None
    return shown.chosen.colours.get(name)


def chosen_palette() -> str:
    """The name of the chosen palette; empty: the usual one."""
    shown = _SHOWN.get()
    return "" if shown is None else shown.chosen.palette

"""The table of figures, to which features and their pieces of evidence add rows.

A function is imported when its figure is drawn, so that the table itself is quick to import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal

from mtl.features import Evidence, FigureRow, added, in_order

if TYPE_CHECKING:
    from mtl.probes.report.page_part import PagePart
    from mtl.runs.figures.drawn import FigureWithTables


MOVING = ("gif", "webp")
"""The kinds of files that hold moving figures."""


def page_parts() -> tuple[PagePart, ...]:
    """What all pieces of evidence add to the report's page."""
    from mtl.probes.report.page_part import PagePart

    return tuple(PagePart(_loaded(piece.answer), _loaded(piece.shown)) for piece in evidence().values())


def _loaded(function: str | None) -> Callable[..., Any] | None:
    return None if function is None else resolve_name(function)


@cache
def evidence() -> Mapping[str, Evidence]:
    """Every piece of evidence by its name."""
    return added(lambda feature: feature.evidence)


_DRAWN = "mtl.runs.figures.drawn"

_OWN = {
    "rgb": FigureRow("overlap of three runs of a task, or of three tasks, as colours", f"{_DRAWN}:rgb"),
    "grey": FigureRow("overlap of all masks", f"{_DRAWN}:grey"),
    "correlation": FigureRow(
        "correlation of tasks' masks", f"{_DRAWN}:draw_correlation", tables=("", "-overlap")
    ),
    "gates": FigureRow("gates over the training of one run", f"{_DRAWN}:draw_gates"),
    "masks": FigureRow("masks of one run", f"{_DRAWN}:final"),
    "animation": FigureRow("masks over the training of one run, moving", animate=f"{_DRAWN}:animate_masks"),
    "labels": FigureRow("best head per label and regime, of probed runs of one task", f"{_DRAWN}:labels"),
    "heatmap": FigureRow("heads by labels, of probed runs of one task and regime", f"{_DRAWN}:heatmap"),
    "map": FigureRow(
        "best label of every head in its cell, of probed runs of one task and regime",
        f"{_DRAWN}:label_in_cells",
    ),
    "layers": FigureRow(
        "accuracy by layer, a line for each label, of probed runs of one task and regime",
        f"{_DRAWN}:by_layer",
    ),
    "heads-kept": FigureRow(
        "score against open heads", f"{_DRAWN}:against_open_heads", uses=("tasks", "split")
    ),
    "heads": FigureRow("a measure per head and task", f"{_DRAWN}:maps", uses=("tasks", "measure")),
    "prediction": FigureRow("how well measures predict ablation", f"{_DRAWN}:predictions"),
    "agreement": FigureRow(
        "correlation of a measure between seeds, tasks and tables", f"{_DRAWN}:agreements",
        uses=("tasks", "measure"),
    ),
    "importance-over-time": FigureRow(
        "importance over the training of one run; as .gif or .webp moving", f"{_DRAWN}:draw_importance",
        f"{_DRAWN}:animate_importance",
    ),
}  # fmt: skip
FIGURES = in_order(
    _OWN,
    added(lambda feature: feature.figures)
    | {name: row for piece in evidence().values() for name, row in piece.figures.items()},
)
"""Every figure by its name, in the order in which the help lists them."""
SUMMARIES = {name: row.summary for name, row in FIGURES.items()}
if TYPE_CHECKING:
    FigureName = str
else:
    FigureName = Literal[tuple(FIGURES)]


def file_kinds_of(name: FigureName) -> tuple[str, ...]:
    """The kinds of files in which a figure can be written."""
    from mtl.probes.figures.style import FORMATS

    row = FIGURES[name]
    return (*(FORMATS if row.draw else ()), *(MOVING if row.animate else ()))


def draw(
    name: FigureName,
    paths: Sequence[Path],
    tasks: Sequence[str] = (),
    split: str = "test",
    measure: str = "ablation",
) -> FigureWithTables:
    """Draw a figure by its name; runs come in their own order (`runs_in_order`), tables in that of `paths`.

    Raises `InputError` or `ValueError` if it cannot be drawn from these.
    """
    from mtl.runs.compare.comparable import runs_in_order
    from mtl.runs.figures.drawn import FigureRequest

    row = FIGURES[name]
    if row.draw is None:
        raise ValueError(f"{name} is a moving figure: it can only be animated")
    request = FigureRequest(runs_in_order(paths), tasks, split, measure)
    drawn: FigureWithTables = resolve_name(row.draw)(request)
    assert set(drawn.tables) == set(row.tables)
    return drawn


def animate(
    name: FigureName, paths: Sequence[Path], tasks: Sequence[str], out: Path
) -> tuple[int, tuple[str, ...]]:
    """Write a moving figure as .gif or .webp; returns the number of pictures, and notes."""
    from mtl.runs.figures.drawn import FigureRequest

    row = FIGURES[name]
    if row.animate is None:
        raise ValueError(f"{name} is a single picture: it can only be drawn")
    request = FigureRequest(paths, tasks, "test", "ablation")
    kind = "gif" if out.suffix.lower() == ".gif" else "webp"
    made: tuple[int, tuple[str, ...]] = resolve_name(row.animate)(request, out, kind)
    return made

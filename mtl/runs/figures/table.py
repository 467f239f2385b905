"""The table of figures: a new figure is a function and a row here; pieces of evidence add their own rows.

A function is imported when its figure is drawn, so that the table itself is quick to import.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mtl.runs.evidence import evidence
from mtl.runs.figures.row import FigureRow

if TYPE_CHECKING:
    from mtl.runs.figures.drawn import FigureWithTables

FIGURES = {
    "rgb": FigureRow("overlap of three runs of a task, or of three tasks, as colours", "masks:rgb"),
    "grey": FigureRow("overlap of all masks", "masks:grey"),
    "correlation": FigureRow(
        "correlation of tasks' masks", "masks:correlation", tables=("", "-overlap")
    ),
    "gates": FigureRow("gates over the training of one run", "masks:over_time"),
    "masks": FigureRow("masks of one run", "masks:final"),
    "animation": FigureRow("masks over the training of one run, moving", animate="masks:animate"),
    "labels": FigureRow("best head per label and regime, of probed runs of one task", "probed:labels"),
    "heatmap": FigureRow("heads by labels, of probed runs of one task and regime", "probed:heatmap"),
    "heads-kept": FigureRow(
        "score against open heads", "scores:against_open_heads", uses=("tasks", "split")
    ),
    "heads": FigureRow("a measure per head and task", "worth:maps", uses=("tasks", "measure")),
    "prediction": FigureRow("how well measures predict ablation", "worth:predictions"),
    "agreement": FigureRow(
        "correlation of a measure between seeds, tasks and tables", "worth:agreements",
        uses=("tasks", "measure"),
    ),
    "importance-over-time": FigureRow(
        "importance over the training of one run; as .gif or .webp moving", "importance:over_time",
        "importance:animate",
    ),
    "curve": FigureRow(
        "score against heads kept, of runs with pruning curves (mtl curve)", "scores:curve",
        uses=("tasks", "split"),
    ),
    "curve-roles": FigureRow(
        "roles that survive along pruning curves", "scores:roles", uses=("tasks", "split")
    ),
    "curve-kinds": FigureRow(
        "heads of each kind of attention that are kept along pruning curves: which kind goes first",
        "scores:kinds", uses=("tasks", "split"),
    ),
    "curve-time": FigureRow("time per sentence of cut models along pruning curves", "scores:times"),
    "energy": FigureRow(
        "variance that leading components of queries and keys capture, of tables that mtl energy wrote",
        "energy:captured", uses=(),
    ),
    **{name: row for piece in evidence().values() for name, row in piece.figures.items()},
}  # fmt: skip
"""Every figure by its name, in the order in which the help lists them."""
SUMMARIES = {name: row.summary for name, row in FIGURES.items()}
if TYPE_CHECKING:
    FigureName = str
else:
    FigureName = Literal[tuple(FIGURES)]


def draw(
    name: FigureName,
    paths: Sequence[Path],
    tasks: Sequence[str] = (),
    split: str = "test",
    measure: str = "ablation",
) -> FigureWithTables:
    """Draw a figure by its name; runs come in their own order (`in_order`), tables in that of `paths`.

    Raises `InputError` or `ValueError` if it cannot be drawn from these.
    """
    from mtl.runs.compare.find_runs import in_order
    from mtl.runs.figures.drawn import FigureRequest

    row = FIGURES[name]
    if row.draw is None:
        raise ValueError(f"{name} is a moving figure: it can only be animated")
    request = FigureRequest(in_order(paths), tasks, split, measure)
    drawn: FigureWithTables = row.loaded(row.draw)(request)
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
    made: tuple[int, tuple[str, ...]] = row.loaded(row.animate)(request, out, kind)
    return made

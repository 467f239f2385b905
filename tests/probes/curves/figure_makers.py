"""Every figure of pruning curves with made-up numbers, for any number of tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import polars as pl
from matplotlib.figure import Figure

from mtl.probes.curves import curve_table
from mtl.probes.curves.figures import METHOD_NAMES, kind_curves, pruning_curves, role_curves, time_curves
from tests.probes.figure_makers import SCORES, made_table


def _curve(tasks: tuple[str, ...], lines: Sequence[str] = tuple(METHOD_NAMES)) -> Figure:
    rows = [
        (task, line, epochs, share, 90.0 * share, draw, "run")
        for task in tasks for line in lines for epochs in (0, 1) for share in (0.1, 0.5, 1.0)
        for draw in (0, 1)
    ]  # fmt: skip
    table = made_table(rows, "task", "by", "trained_epochs", "share", "score", "draw", "run")
    return pruning_curves(table, SCORES, known=tuple(lines))


def _survival(column: str, names: tuple[str, ...], tasks: tuple[str, ...]) -> pl.DataFrame:
    rows = [
        (method, name, task, share, share, 24, "run")
        for method in METHOD_NAMES for name in names for task in tasks for share in (0.1, 0.5, 1.0)
    ]  # fmt: skip
    return made_table(rows, "by", column, "task", "share", "surviving", "at_start", "run")


def _times(tasks: tuple[str, ...]) -> Figure:
    rows = [
        (task, batch, share, share, share, "run")
        for task in tasks
        for batch in (1, 16, 64)
        for share in (0.5, 1.0)
    ]
    columns = ("task", "batch", "share", "seconds_of_whole", "operations_of_whole", "run")
    return time_curves(made_table(rows, *columns))


MAKERS: Mapping[str, Callable[[tuple[str, ...]], Figure]] = {
    "curve": _curve,
    "curve-roles": lambda tasks: role_curves(_survival("role", ("positional", "rare_words"), tasks)),
    "curve-kinds": lambda tasks: kind_curves(_survival("attention", ("encoder", "decoder", "cross"), tasks)),
    "curve-time": _times,
    "curve-epochs": lambda tasks: _curve(tasks, [f"importance, epoch {epoch}" for epoch in (1, 2, 3)]),
}
"""By the name of `mtl figure`."""


def curve_rows():
    """Four heads of the encoder, four of the decoder, two of cross-attention, which go in this order."""
    going = [
        ("decoder", 0, 0), ("encoder", 0, 0), ("decoder", 0, 1), ("decoder", 1, 0), ("encoder", 0, 1),
        ("decoder", 1, 1), ("encoder", 1, 0), ("cross", 0, 0), ("encoder", 1, 1), ("cross", 0, 1),
    ]  # fmt: skip
    part = {"by": "importance", "draw": 0, "task": "translate"}
    orders = [
        part | dict(zip(("attention", "layer", "head"), place, strict=True)) | {"rank": rank}
        for rank, place in zip(range(9, -1, -1), going, strict=True)
    ]
    points = [
        part | {"trained_epochs": 0, "kept": kept, "share": kept / 10, "split": "test", "figure": "bleu",
                "score": 4.0 * kept, "source": "run"}
        for kept in (10, 6, 3, 0)
    ]  # fmt: skip
    return pl.DataFrame(orders, curve_table.ORDERS), pl.DataFrame(points, curve_table.SCORES)

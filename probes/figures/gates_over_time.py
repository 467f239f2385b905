"""The gates of each head in the course of training."""

from __future__ import annotations

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mtl.probes.figures.style import FAINT, INK, colour_bar, grid_size, panel_figure, site_ticks, styled
from mtl.probes.sites import in_order, kind_starts
from mtl.probes.task_order import tasks_in


def gates_over_time(gates: pl.DataFrame) -> Figure:
    """The gates of a run's gates.parquet, with marks beside the heads that a target forced at the end."""
    forced = "learned" in gates.columns and not gates["open"].equals(gates["learned"])
    key = "gate: white closed, black open" + (f"\n{MARKED}" if forced else "")
    return heads_over_time(gates, "gate", key)


MARKED = "at the right: ▲ forced open, ▽ shut"


@styled
def heads_over_time(table: pl.DataFrame, column: str, key: str) -> Figure:
    """A panel for each task, a row for each head, and for each evaluation a column that ends at its update.

    `table` has the columns of gates.parquet that name a head and a step, and `column` with values from 0
    (white) to 1 (black), which `key` explains. Lines separate layers, which are numbered from 0. Thicker
    lines separate kinds of attention, which are named at their first layer.
    """
    tasks = tasks_in(table)
    sites, heads = grid_size(table)
    layers = len(sites)
    places, texts = site_ticks(sites)
    starts = kind_starts(sites)
    height = 0.35 + 0.028 * min(max(layers * heads, 50), 100)
    figure, panels = panel_figure(len(tasks), height, 0.6, most=3, sharey=True)
    images = []
    for task, axes in zip(tasks, panels, strict=True):
        of_task = table.filter(pl.col("task") == task).sort("step", in_order(sites), "layer", "head")
        steps = of_task["step"].unique().sort().to_numpy()
        values = of_task[column].to_numpy().reshape(len(steps), layers * heads).T
        image = axes.pcolormesh(
            _edges(steps),
            np.arange(layers * heads + 1),
            values,
            cmap="gray_r",
            vmin=0,
            vmax=1,
            rasterized=True,
        )
        for layer in range(1, layers):
            starts_kind = layer in starts
            axes.axhline(
                layer * heads, color=INK if starts_kind else FAINT, linewidth=0.9 if starts_kind else 0.5
            )
        axes.set_yticks((np.array(places) + 0.5) * heads, texts)
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(layers * heads, 0)
        axes.set_title(task)
        images.append(image)
        if "learned" in of_task.columns:
            _mark_forced(axes, of_task.filter(pl.col("step") == int(steps[-1])))
        edges = _edges(steps)
        axes.set_xlim(edges[0], edges[-1])
        axes.set_xticks(
            edges[np.unique(np.linspace(0, len(edges) - 1, min(len(edges), 4)).round().astype(int))]
        )
    figure.supxlabel("update (a column for each evaluation, ending there)", fontsize=7)
    figure.supylabel("layer (a row for each head)", fontsize=7)
    colour_bar(
        figure, images[0], key, ax=figure.axes, location="top", fraction=0.03, pad=0.02, aspect=40,
        ticks=[0, 0.5, 1],
    )  # fmt: skip
    return figure


def _mark_forced(axes: Axes, last: pl.DataFrame) -> None:
    """Draw triangles beside the last column, at the rows of the heads that a target forced."""
    opened, learned = (last[name].cast(pl.Boolean).to_numpy() for name in ("open", "learned"))
    beside = axes.get_yaxis_transform()
    for forced, marker, fill in ((opened & ~learned, "^", INK), (~opened & learned, "v", "none")):
        rows = np.flatnonzero(forced) + 0.5
        if not len(rows):
            continue
        (marks,) = axes.plot(
            np.full(len(rows), 1.02), rows, marker, transform=beside, clip_on=False, color=INK,
            markerfacecolor=fill, markersize=2.2, markeredgewidth=0.4, linewidth=0,
        )  # fmt: skip
        marks.set_in_layout(False)


def _edges(steps: np.ndarray) -> np.ndarray:
    """Limits of the columns: an evaluation's column covers the updates since the previous evaluation."""
    first = max(0, 2 * steps[0] - steps[1]) if len(steps) > 1 else 0
    return np.concatenate([[first], steps])

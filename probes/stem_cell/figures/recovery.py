"""What remedies bring back of what joint training loses, and what they cost in parameters."""

from __future__ import annotations

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mtl.probes.figures.looks import looks_of
from mtl.probes.figures.palette import colour_of
from mtl.probes.figures.style import COLUMN, FAINT, INK, Look, new_figure, open_frame, styled
from mtl.probes.stem_cell.statistics.equivalence import JOINT, SINGLE
from mtl.probes.stem_cell.statistics.remedies import CONDITIONS, recoveries
from mtl.probes.task_order import tasks_in

ROW = 0.17
"""Height in inches of a condition's row."""
COSTS = 2.2
"""Height in inches of the panel of parameters."""
WIDEST = 250.0
"""Per cent beyond which an interval is cut off."""


@styled
def recovery(scores: pl.DataFrame) -> Figure:
    """A panel per task, joint training at 0 and the single task at 100 %, and scores against parameters.

    `scores`: condition, task, seed, score (per cent), parameters (of the encoder; null where unknown). Bars
    are 95 % intervals over seeds; one that leaves the panel ends in an arrow. A condition has no dot where
    the interval of what joint training loses holds 0. The last panel has means over tasks, with standard
    deviations over seeds.
    """
    table = recoveries(scores)
    tasks = tasks_in(table)
    shown = [name for name in CONDITIONS if name in set(table["condition"]) - {SINGLE, JOINT}]
    looks = looks_of(shown, known=[name for name in CONDITIONS if name not in (SINGLE, JOINT)])
    shown = list(looks)
    looks |= {JOINT: Look(colour_of(JOINT, FAINT), "X"), SINGLE: Look(colour_of(SINGLE, INK), "*")}
    columns = min(len(tasks), 2)
    rows = -(-len(tasks) // columns)
    panel = ROW * len(shown) + 0.6
    figure = new_figure(rows * panel + COSTS, COLUMN * 1.6)
    grid = figure.add_gridspec(rows + 1, columns, height_ratios=[*[panel] * rows, COSTS])
    for place, task in enumerate(tasks):
        row, column = divmod(place, columns)
        axes = figure.add_subplot(grid[row, column])
        _recovered(axes, table.filter(task=task), shown, looks)
        axes.set_title(task)
        if column:
            axes.set_yticklabels([])
    costs = figure.add_subplot(grid[rows, :])
    _costs(costs, scores, looks)
    if costs.has_data():
        figure.legend(*costs.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def _recovered(axes: Axes, table: pl.DataFrame, shown: list[str], looks: dict[str, Look]) -> None:
    values = {row["condition"]: row for row in table.iter_rows(named=True)}
    ends = [
        100 * values[name][end]
        for name in shown
        for end in ("recovery_low", "recovery", "recovery_high")
        if name in values and values[name][end] is not None
    ]
    low, high = max(min([0.0, *ends]) - 10, -WIDEST), min(max([100.0, *ends]) + 10, WIDEST)
    for place, name in enumerate(shown):
        row = values.get(name)
        if row is None or row["recovery"] is None:
            axes.text(
                50, place, "no seeds, or no certain loss", fontsize=5.5, color=INK, ha="center", va="center"
            )
            continue
        start, middle, end = (100 * row[key] for key in ("recovery_low", "recovery", "recovery_high"))
        look = looks[name]
        axes.plot([max(start, low), min(end, high)], [place, place], color=look.colour, linewidth=1.0)
        for outside, edge, arrow in ((start < low, low, "<"), (end > high, high, ">")):
            if outside:
                axes.plot(edge, place, marker=arrow, color=look.colour, markersize=3)
        if low <= middle <= high:
            axes.plot(middle, place, marker=look.shape, color=look.colour, markersize=4, linestyle="none")
    axes.axvline(0, color=FAINT, linewidth=0.8)
    axes.axvline(100, color=INK, linewidth=0.8, linestyle="--")
    axes.set_xlim(low, high)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlabel("recovered, %")
    axes.set_yticks(range(len(shown)), [f"{name}  {CONDITIONS[name]}" for name in shown])
    open_frame(axes, "x")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _costs(axes: Axes, scores: pl.DataFrame, looks: dict[str, Look]) -> None:
    """The mean score over tasks against the encoder's parameters, of conditions for all tasks."""
    tasks = scores["task"].n_unique()
    means = (
        scores.group_by("condition", "seed")
        .agg(pl.col("score").mean(), pl.col("parameters").max(), tasks=pl.len())
        .filter(tasks=tasks)
        .group_by("condition")
        .agg(
            pl.col("score").mean(), spread=pl.col("score").std().fill_null(0), size=pl.col("parameters").max()
        )
        .drop_nulls("size")
    )
    for condition in CONDITIONS:
        for row in means.filter(condition=condition).iter_rows(named=True):
            look = looks[condition]
            axes.errorbar(
                row["size"] / 1e6, row["score"], row["spread"], marker=look.shape, color=look.colour,
                markersize=4, elinewidth=0.7, linestyle="none", label=f"{condition}  {CONDITIONS[condition]}",
            )  # fmt: skip
    axes.set_xlabel("parameters of an encoder, millions")
    axes.set_ylabel("mean score, %")
    open_frame(axes)

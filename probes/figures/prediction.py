"""How well each measure predicts ablation, as dots with intervals."""

from __future__ import annotations

from textwrap import fill

import polars as pl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mtl.probes.figures.looks import looks_of
from mtl.probes.figures.style import FAINT, open_frame, panel_figure, styled
from mtl.probes.statistics.head_values import PREDICTORS
from mtl.probes.task_order import tasks_in

_CHARACTERS = 56
"""The most characters of a setup's name on a line of the legend."""


@styled
def prediction_dots(table: pl.DataFrame) -> Figure:
    """A panel per task, a row per measure, a colour per setup; full dots: all heads; empty: within layers.

    `table` is that of `mtl.probes.statistics.prediction.prediction`.
    """
    tasks, setups = tasks_in(table), list(table["setup"].unique(maintain_order=True))
    looks = looks_of(setups)
    setups = list(looks)
    measures = [name for name in PREDICTORS if name in set(table["measure"])]
    height = 0.13 * len(measures) * max(1.0, 0.6 * len(setups)) + 0.4
    labels = [fill(looks[setup].named(setup), _CHARACTERS) for setup in setups]
    legend_lines = sum(label.count("\n") + 1 for label in labels) + 1
    figure, panels = panel_figure(len(tasks), height, 0.35 + 0.13 * legend_lines, sharex=True, sharey=True)
    for task, axes in zip(tasks, panels, strict=True):
        for number, setup in enumerate(setups):
            cells = table.filter((pl.col("task") == task) & (pl.col("setup") == setup))
            look = looks[setup]
            for row in cells.iter_rows(named=True):
                place = measures.index(row["measure"]) + 0.7 * ((number + 0.5) / len(setups) - 0.5)
                for value, low, high, full, aside in (
                    (row["spearman"], row["low"], row["high"], True, -0.08),
                    (row["within_layers"], row["within_low"], row["within_high"], False, 0.08),
                ):
                    if value is None:
                        continue
                    if low is not None:
                        axes.hlines(place + aside, low, high, color=look.colour, linewidth=0.7)
                    axes.plot(
                        value, place + aside, look.shape, color=look.colour, markersize=3,
                        markerfacecolor=look.colour if full else "white", markeredgewidth=0.7,
                    )  # fmt: skip
        axes.axvline(0, color=FAINT, linewidth=0.5)
        axes.set_xlim(-1.02, 1.02)
        axes.set_ylim(len(measures) - 0.4, -0.6)
        axes.set_yticks(range(len(measures)), [PREDICTORS[name] for name in measures])
        axes.set_title(task)
        open_frame(axes, "x")
        axes.tick_params(axis="y", length=0)
    figure.supxlabel("Spearman with the score lost by ablation, 95 %", fontsize=7)
    handles = [
        Line2D([], [], color=looks[setup].colour, marker=looks[setup].shape, markersize=3, label=label)
        for setup, label in zip(setups, labels, strict=True)
    ]
    handles += [
        Line2D([], [], color=FAINT, marker="o", markersize=3, markerfacecolor=face, linestyle="", label=name)
        for face, name in ((FAINT, "all heads"), ("white", "within layers"))
    ]
    figure.legend(
        handles=handles, loc="outside upper center", ncols=1 if max(map(len, labels)) > _CHARACTERS / 2 else 2
    )
    return figure

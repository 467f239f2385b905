"""Scores as dots, bars and lines: of setups, labels and measures, over training and over heads kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mtl.probes.figures.style import (
    COLOURS,
    COLUMN,
    FAINT,
    INK,
    SeriesStyle,
    colour_of,
    looks_of,
    name_rows,
    new_figure,
    open_frame,
    panel_figure,
    row_labels,
    styled,
    task_panels,
    title_panel,
    wrapped,
)
from mtl.probes.statistics.head_values import PREDICTORS, REGIME_NAMES, REGIMES
from mtl.probes.tables.heads_table import FEWEST_ITEMS
from mtl.probes.tables.table_files import by_catalogue, tasks_in
from mtl.tasks.in_words import counted

_INTERVALS = {
    "both": ("other runs on other sentences", COLOURS[0], 2.2),
    "seeds": ("other runs on these sentences", COLOURS[1], 1.2),
    "sentences": ("these runs on other sentences", COLOURS[2], 1.2),
}


@styled
def comparison_figure(table: pl.DataFrame, first: str, second: str) -> Figure:
    """A row per task; right of the line, the first side scores higher.

    The legend has the intervals that are known for at least one task. `table` is that of
    `mtl.runs.compare.scores`; `first` and `second` name the two sides.
    """
    table = by_catalogue(table)
    colours = {name: colour_of(label, usual) for name, (label, usual, _) in _INTERVALS.items()}
    tasks = list(table["task"])
    below = wrapped(f"points: {first} less {second}", width=COLUMN - 0.5, letter=0.06)
    labels, least = row_labels(tasks)
    figure = new_figure(max(0.3, least) * len(tasks) + 0.95 + 0.12 * below.count("\n"), COLUMN)
    axes = figure.subplots()
    shown = [name for name in _INTERVALS if table[f"{name}_low"].count()]
    for place, row in enumerate(table.iter_rows(named=True)):
        for number, (name, (_, _, width)) in enumerate(_INTERVALS.items()):
            if row[f"{name}_low"] is not None:
                height = place + 0.22 * (number - 1)
                axes.hlines(
                    height, row[f"{name}_low"], row[f"{name}_high"], color=colours[name], linewidth=width
                )
                axes.plot([row["difference"]], [height], "o", color=colours[name], markersize=2.5)
    axes.axvline(0, color=INK, linewidth=0.5)
    name_rows(axes, labels)
    figure.supxlabel(below, fontsize=7)
    open_frame(axes, "x")
    handles = [
        Line2D([], [], color=colours[name], linewidth=width, label=label)
        for name, (label, _, width) in _INTERVALS.items()
        if name in shown
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=1)
    return figure


PER_ROW = 24
"""Labels in one row of the figure; more would not be legible at column width."""
MARKS = {"pretrained": (0.94, 2.4), "stl": (0.74, 1.4), "pair": (0.5, 1.4), "joint": (0.28, 1.4)}
"""Length (as a share of a label's width) and thickness (in points) of each regime's mark.

Later marks are drawn over earlier ones and are shorter, so that all can be seen if values are equal."""


@styled
def label_accuracy(labels: pl.DataFrame) -> Figure:
    """The best head's accuracy beside chance, for each label of one task that counts, most frequent first.

    `labels` are those of `label_values`, for one task. A regime without a label has no mark there. The number
    of items follows each label, and the axis says how many labels do not count and are left out. Raises
    `ValueError` if none counts.
    """
    left_out = labels.filter(~pl.col("counted")).height
    labels = labels.filter("counted")
    if labels.is_empty():
        raise ValueError(f"no label with at least {FEWEST_ITEMS} items: probe more sentences")
    names = list(labels["label"])
    regimes = [regime for regime in REGIMES if regime in labels.columns]
    colours = _colours(regimes)
    rows = max(1, -(-len(names) // PER_ROW))
    below = 0.05 * max(
        len(f"{name} {count:,}") for name, count in labels.select("label", "count").iter_rows()
    )
    figure = new_figure(0.5 + (0.75 + below) * rows)
    for row, axes in enumerate(figure.subplots(rows, 1, squeeze=False).flat):
        _row(axes, labels.slice(row * PER_ROW, PER_ROW), colours, PER_ROW if rows > 1 else len(names))
    handles = [
        Line2D([], [], color=colours[regime], linewidth=MARKS[regime][1], label=REGIME_NAMES[regime])
        for regime in regimes
    ]
    handles.append(Line2D([], [], color=INK, linestyle=":", linewidth=0.9, label="chance"))
    figure.legend(
        handles=handles,
        loc="outside upper center",
        ncols=len(handles),
        columnspacing=0.9,
        handlelength=1.4,
        title="shorter marks are drawn over longer ones",
        title_fontsize=6,
    )
    figure.supylabel("accuracy of the best head, %", fontsize=7)
    if left_out:
        few = f"{counted(left_out, 'label')} left out: root, or fewer than {FEWEST_ITEMS} items"
        figure.supxlabel(few, fontsize=6)
    return figure


def _colours(regimes: Sequence[str]) -> dict[str, str]:
    """The colours of the setups in other figures; grey before training."""
    looks = looks_of(REGIME_NAMES[regime] for regime in regimes if regime != "pretrained")
    return {
        regime: colour_of("pretrained", FAINT)
        if regime == "pretrained"
        else looks[REGIME_NAMES[regime]].colour
        for regime in regimes
    }


def _row(axes: Axes, labels: pl.DataFrame, colours: Mapping[str, str], room: int) -> None:
    places = np.arange(labels.height)
    for place, regime in enumerate(colours):
        length, thickness = MARKS[regime]
        values = 100 * labels[regime].cast(pl.Float64).to_numpy()
        axes.hlines(
            values, places - length / 2, places + length / 2, color=colours[regime], linewidth=thickness,
            zorder=2 + place, capstyle="butt",
        )  # fmt: skip
    axes.hlines(
        100 * labels["chance"].cast(pl.Float64).to_numpy(), places - 0.47, places + 0.47, color=INK,
        linestyle=":", linewidth=0.9, zorder=1.5,
    )  # fmt: skip
    axes.vlines(places, 0, 100, color="#dddddd", linewidth=0.4, zorder=1)
    between = " " if room > 8 else "\n"
    named = [f"{name}{between}{count:,}" for name, count in labels.select("label", "count").iter_rows()]
    axes.set_xticks(places, named, rotation=90 if room > 8 else 0)
    spare = max(0, 8 - room) / 2
    axes.set_xlim(-0.7 - spare, room - 0.3 + spare)
    axes.set_ylim(-2, 102)
    axes.set_yticks([0, 50, 100])
    axes.tick_params(axis="x", length=0, pad=1)
    axes.spines[["top", "right"]].set_visible(False)


_CHARACTERS = 56
"""The most characters of a setup's name on a line of the legend."""


@styled
def prediction_dots(table: pl.DataFrame) -> Figure:
    """A panel per task, a row per measure, a colour per setup; full dots: all heads; empty: within layers.

    `table` is that of `mtl.probes.statistics.head_values.prediction`.
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
        title_panel(axes, task)
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


@styled
def learning_curves(history: pl.DataFrame, metrics: Mapping[str, str], among: Sequence[str] = ()) -> Figure:
    """A panel for each task: a faint line for each run, and the mean over the runs of a setup.

    `history`: setup, task, run, update, score, with a row for each evaluation. `metrics`: the name of each
    task's score; `among`: the other setups on the page (`looks_of`). The mean is drawn at updates at which
    all runs of the setup were evaluated.
    """
    looks = looks_of(history["setup"].unique(maintain_order=True), among)
    panels = task_panels(tasks_in(history), looks, metrics)
    for task, axes in panels.by_task.items():
        of_task = history.filter(pl.col("task") == task)
        for (setup,), of_setup in of_task.group_by("setup", maintain_order=True):
            look = panels.looks[str(setup)]
            runs = of_setup.sort("update").group_by("run", maintain_order=True).agg("update", "score")
            lines = [list(zip(*line, strict=True)) for _, *line in runs.iter_rows()]
            axes.add_collection(LineCollection(lines, colors=look.colour, linewidths=0.5, alpha=0.3))
            means = of_setup.group_by("update").agg(pl.col("score").mean(), runs=pl.col("run").n_unique())
            means = means.filter(pl.col("runs") == of_setup["run"].n_unique()).sort("update")
            axes.plot(
                means["update"], means["score"], color=look.colour, linewidth=1.1, marker=look.shape,
                markersize=2.8, markeredgewidth=0.5,
            )  # fmt: skip
        axes.set_xlim(left=0)
    keys = [look.key(setup, 2.8, 1.1) for setup, look in panels.looks.items()]
    return panels.finished("update (faint: single runs; bold: means over seeds)", keys)


@styled
def heads_kept(
    runs: pl.DataFrame, heads: int, metrics: Mapping[str, str], among: Sequence[str] = ()
) -> Figure:
    """A panel for each task: a faint point for each run, and per setting the mean over seeds with its spread.

    `runs`: task, setup, setting (penalty or target; null if the runs of a setup are no series), kept, score.
    `heads`: how many the encoder has. `metrics`: the name of each task's score. `among`: the other setups on
    the page (`looks_of`). A setup has a colour and a marker of its own. Lines join only settings of the same
    setup, since runs that were trained differently differ in more than the number of heads. Bars are standard
    deviations over seeds (n - 1) of both numbers.
    """
    looks = looks_of(runs["setup"].unique(maintain_order=True), among)
    panels = task_panels(tasks_in(runs), looks, metrics)
    for task, axes in panels.by_task.items():
        for (setup,), of_setup in runs.filter(pl.col("task") == task).group_by("setup", maintain_order=True):
            _draw(axes, of_setup, panels.looks[str(setup)])
        axes.set_xlim(-0.05 * heads, 1.05 * heads)
    keys = [look.key(setup, 4.0, 0.0) for setup, look in panels.looks.items()]
    return panels.finished(f"open heads of {heads} (faint: single runs; others: means over seeds)", keys)


def _draw(axes: Axes, runs: pl.DataFrame, look: SeriesStyle) -> None:
    axes.plot(
        runs["kept"], runs["score"], marker=look.shape, linestyle="none", color=look.colour,
        markersize=2.4, markeredgewidth=0.4, alpha=0.4,
    )  # fmt: skip
    means = (
        runs.drop_nulls("setting")
        .group_by("setting")
        .agg(
            pl.col("kept", "score").mean(),
            pl.col("kept", "score").std().fill_null(0).name.suffix("_spread"),
        )
        .sort("kept", "setting")
    )
    if means.is_empty():
        return
    axes.errorbar(
        means["kept"], means["score"], means["score_spread"], means["kept_spread"],
        marker=look.shape, linestyle="-" if means.height > 1 else "none", color=look.colour,
        linewidth=0.9, elinewidth=0.6, markersize=4, markeredgewidth=0.6,
    )  # fmt: skip

"""Figures of the laboratory, drawn from tables."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mtl.probes.appearance import ordered
from mtl.probes.figures.style import (
    COLOURS,
    COLUMN,
    FAINT,
    INK,
    colour_of,
    looks_of,
    name_rows,
    new_figure,
    open_frame,
    panel_figure,
    row_labels,
    styled,
    title_panel,
)
from mtl.probes.statistics.significance import CANNOT_TELL
from mtl.probes.stem_cell.competition import CLASSES, ConflictByClaims
from mtl.probes.stem_cell.contest import CONTROL, REFUTED, SUPPORTED, TENTH, TWIN
from mtl.probes.stem_cell.sharing import ALL, KINDS, MARGIN
from mtl.probes.tables.table_files import tasks_in

APART, BESIDE = 1.0, 2.0
SIDES = {CONTROL: 0.0, TWIN: 3.0}
SIDE_COLOURS = {CONTROL: COLOURS[2], TWIN: COLOURS[1]}
PANEL = 1.6


@styled
def contest_figure(lines: pl.DataFrame, means: pl.DataFrame, sides: pl.DataFrame) -> Figure:
    """Grey: the heads that a task claims itself. Blue: their mean, and its fall by beta with the interval.

    At the sides are the control task and the twin, with intervals over seeds. The tables are those of
    `head_lines`, `task_means` and `side_means` (`mtl.probes.stem_cell.contest_table`). Raises
    `ValueError` without a head to compare.
    """
    tasks = tasks_in(lines)
    if not tasks:
        raise ValueError("no claimed head has both a partner that claims it and one that does not")
    shown = [name for name in SIDES if name in set(sides["partner"])]
    places = {APART: "not\nclaimed", BESIDE: "claimed"} | {SIDES[name]: name for name in shown}
    figure, panels = panel_figure(len(tasks), PANEL, 0.45, sharex=True, sharey=True)
    for task, axes in zip(tasks, panels, strict=True):
        _panel(axes, *(table.filter(pl.col("task") == task) for table in (lines, means, sides)))
        title_panel(axes, task)
        axes.set_xticks(sorted(places), [places[place] for place in sorted(places)])
        axes.tick_params(axis="x", length=0, labelbottom=True)
        axes.set_xlim(min(places) - 0.4, max(places) + 0.4)
        open_frame(axes)
    mean = colour_of("mean", COLOURS[0])
    figure.supylabel("worth to the task, standardised logs", fontsize=7)
    figure.supxlabel("by the partner that the task is trained with", fontsize=7)
    handles = [
        Line2D([], [], color=FAINT, linewidth=0.6, label="a head that the task claims"),
        Line2D([], [], color=mean, marker="o", markersize=3, label="mean, 95 %"),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=2)
    return figure


def _panel(axes: Axes, lines: pl.DataFrame, means: pl.DataFrame, sides: pl.DataFrame) -> None:
    for apart, beside in lines.select("apart", "beside").iter_rows():
        axes.plot([APART, BESIDE], [apart, beside], color=FAINT, linewidth=0.5, alpha=0.7)
    mean = colour_of("mean", COLOURS[0])
    for row in means.iter_rows(named=True):
        start, end = row["apart"], row["apart"] - row["beta"]
        axes.plot(
            [APART, BESIDE], [start, end], color=mean, linewidth=1.3, marker="o", markersize=3, zorder=3
        )
        interval = start - row["high"], start - row["low"]
        if np.isfinite(interval).all():
            axes.vlines(BESIDE, *interval, color=mean, linewidth=1.3, zorder=3)
        else:
            # Too few orders of claims for an end: the whole panel.
            axes.axvline(BESIDE, color=mean, linewidth=1.3, zorder=3)
    for row in sides.iter_rows(named=True):
        place = SIDES[row["partner"]]
        colour = colour_of(row["partner"], SIDE_COLOURS[row["partner"]])
        axes.plot([place], [row["mean"]], marker="s", color=colour, markersize=3, zorder=3)
        if row["low"] is not None:
            axes.vlines(place, row["low"], row["high"], color=colour, linewidth=1.0, zorder=3)
    axes.axhline(0, color=INK, linewidth=0.3)


WORD_COLOURS = {SUPPORTED: COLOURS[1], REFUTED: COLOURS[0], CANNOT_TELL: FAINT}


@styled
def forest(table: pl.DataFrame) -> Figure:
    """A dot and an interval per estimate, in per cent of a claimed head's worth; the primary one is bold.

    The band ends at a tenth: an interval inside it refutes a loss of that size. `table`: group, estimate,
    primary, share, share_low, share_high, word (`mtl.probes.stem_cell.contest_table`). Estimates
    not defined have a name and no dot; an interval without an end reaches the figure's edge. Raises
    `ValueError` without estimates.
    """
    if table.is_empty():
        raise ValueError("no estimates of the contest to draw")
    colours = {word: colour_of(word, usual) for word, usual in WORD_COLOURS.items()}
    groups = list(table["group"].unique(maintain_order=True))
    rows = [row for group in groups for row in table.filter(pl.col("group") == group).iter_rows(named=True)]
    gaps = np.cumsum([0.0] + [0.5 * (one["group"] != two["group"]) for one, two in itertools.pairwise(rows)])
    places = np.arange(len(rows)) + gaps
    figure = new_figure(0.15 * (places[-1] + 1) + 0.75, COLUMN)
    axes = figure.subplots()
    ends = table.select("share", "share_low", "share_high").to_numpy().ravel()
    ends = 100 * np.append(ends[np.isfinite(ends.astype(np.float64))], [0.0, 1.5 * TENTH])
    left, right = min(ends.min(), -2.0) - 1, ends.max() + 1
    axes.axvspan(left, 100 * TENTH, color="#eef3f8", linewidth=0)
    axes.axvline(0, color=INK, linewidth=0.5)
    axes.axvline(100 * TENTH, color=FAINT, linewidth=0.5, linestyle="--")
    for place, row in zip(places, rows, strict=True):
        share = row["share"]
        if share is None or not np.isfinite(share):
            continue
        colour, width = colours[row["word"]], 1.6 if row["primary"] else 0.8
        low, high = np.clip([100 * row["share_low"], 100 * row["share_high"]], left, right)
        axes.hlines(place, low, high, color=colour, linewidth=width)
        axes.plot([100 * share], [place], "o", color=colour, markersize=4 if row["primary"] else 2.8)
    axes.set_yticks(places, [row["estimate"] for row in rows])
    for text, row in zip(axes.get_yticklabels(), rows, strict=True):
        text.set_fontweight("bold" if row["primary"] else "normal")
    axes.set_ylim(places[-1] + 0.6, -0.6)
    axes.set_xlim(left, right)
    figure.supxlabel("% of a head's worth lost beside a partner that claims it, too", fontsize=7)
    open_frame(axes, "x")
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    handles = [
        Line2D([], [], color=colour, marker="o", markersize=3, label=word) for word, colour in colours.items()
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=3)
    return figure


TWINS = "twins"
NAMES = {"neither": "neither\nclaims it", "one": "one\nclaims it", "both": "both\nclaim it", TWINS: TWINS}


@styled
def conflict_figure(result: ConflictByClaims, twins: pl.DataFrame) -> Figure:
    """A column of dots (a head of a pair each) with its mean, per class of claims; twins at the side.

    `twins`: a column `cosine`, of heads in twin runs; it shows what two decoders for one task have. Below 0
    tasks pull a head apart.
    """
    columns = {name: result.heads.filter(pl.col("claims") == name)["cosine"].to_numpy() for name in CLASSES}
    if not twins.is_empty():
        columns[TWINS] = twins["cosine"].to_numpy()
    figure = new_figure(1.9, COLUMN)
    axes = figure.subplots()
    for place, (name, values) in enumerate(columns.items()):
        if not len(values):
            continue
        aside = 0.5 * (np.random.default_rng(0).random(len(values)) - 0.5)
        colour = colour_of(name, COLOURS[1] if name == TWINS else COLOURS[0])
        axes.plot(place + aside, values, ".", color=FAINT, markersize=1.8, alpha=0.6)
        axes.hlines(values.mean(), place - 0.3, place + 0.3, color=colour, linewidth=1.6)
    axes.axhline(0, color=INK, linewidth=0.4)
    axes.set_xticks(range(len(columns)), [NAMES[name] for name in columns])
    axes.set_ylabel("cosine of gradients")
    open_frame(axes)
    axes.tick_params(axis="x", length=0)
    if np.isfinite(result.difference):
        axes.set_title(
            f"both less one, within layers: {result.difference:+.2f} "
            f"({result.low:+.2f} to {result.high:+.2f}), p {result.p:.2g}",
            fontsize=6.5,
        )
    return figure


@styled
def sharing_figure(table: pl.DataFrame, among: Sequence[str] = (), to: str = "training jointly") -> Figure:
    """A row per task, a colour per setup; right of the line scores are lost, the dashed line is the margin.

    `table` is that of `mtl.probes.stem_cell.sharing`; `among`: the other setups on the page
    (`looks_of`); `to`: what points are lost to. The mean over tasks has the interval that is paired by seed.
    Intervals are cut at three times the largest loss or margin.
    """
    setups = list(table["setup"].unique(maintain_order=True))
    looks = looks_of(setups, among)
    tasks = [task for task in tasks_in(table) if task != ALL]
    tasks += [ALL] * (ALL in set(table["task"]))
    labels, least = row_labels(tasks)
    height = max(0.12 * max(1.5, len(setups)), least)
    figure = new_figure(height * len(tasks) + 0.5 + 0.13 * len(setups), COLUMN)
    axes = figure.subplots()
    widest = 3 * max(*np.abs(table["loss"].to_numpy()), MARGIN)
    for number, (setup, look) in enumerate(looks.items()):
        for row in table.filter(pl.col("setup") == setup).iter_rows(named=True):
            place = tasks.index(row["task"]) + 0.7 * ((number + 0.5) / len(setups) - 0.5)
            ends = ("paired_low", "paired_high") if row["task"] == ALL else ("low", "high")
            low, high = (row[end] for end in ends)
            if low is not None:
                low, high = max(low, -widest), min(high, widest)
                axes.hlines(place, low, high, color=look.colour, linewidth=0.9)
            axes.plot([row["loss"]], [place], look.shape, color=look.colour, markersize=3)
    axes.axvline(0, color=INK, linewidth=0.5)
    axes.axvline(MARGIN, color=FAINT, linewidth=0.6, linestyle="--")
    name_rows(axes, labels)
    figure.supxlabel(f"points lost to {to}, 95 % over runs", fontsize=7)
    open_frame(axes, "x")
    handles = [look.key(setup, 3.0, 1.5) for setup, look in looks.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=1 if len(setups) < 3 else 2)
    return figure


@styled
def wanted_figure(table: pl.DataFrame) -> Figure:
    """A column of dots per kind of comparison (a dot per pair of tasks, or task) and their mean as a bar.

    Where a target forced heads open, hollow dots and a dashed bar beside it are those of learned heads alone.
    `table` is that of `mtl.probes.stem_cell.sharing.wanted`.
    """
    kinds = ordered(kind for kind in KINDS if kind in set(table["kind"]))
    forced = not table["learned"].equals(table["jaccard"], null_equal=True)
    figure = new_figure(1.8 + 0.2 * forced, COLUMN)
    axes = figure.subplots()
    for place, kind in enumerate(kinds):
        colour = colour_of(kind, COLOURS[KINDS.index(kind)])
        of_kind = table.filter(pl.col("kind") == kind)
        _column(axes, of_kind["jaccard"], place - 0.2 * forced, colour, "full")
        if forced:
            _column(axes, of_kind["learned"], place + 0.2, colour, "none")
    axes.set_xticks(range(len(kinds)), [kind.replace(", ", ",\n") for kind in kinds])
    axes.set_xlim(-0.5, len(kinds) - 0.5)
    axes.set_ylim(0, 1)
    axes.set_ylabel("Jaccard of open heads,\nseed by seed")
    open_frame(axes)
    axes.tick_params(axis="x", length=0)
    if forced:
        handles = [
            Line2D(
                [], [], color=INK, marker="o", markerfacecolor=face, linestyle=line, markersize=3.5,
                label=label,
            )
            for label, face, line in (("open heads", INK, "-"), ("learned alone", "white", "--"))
        ]  # fmt: skip
        figure.legend(handles=handles, loc="outside upper center", ncols=2, handlelength=3.5)
    return figure


def _column(axes: Axes, jaccard: pl.Series, place: float, colour: str, fill: Literal["full", "none"]) -> None:
    values = jaccard.drop_nulls().sort().to_numpy()
    if not len(values):
        return
    aside = 0.06 * np.sin(2.4 * np.arange(len(values)))
    axes.plot(
        place + aside, values, "o", color=colour, markersize=2.6, alpha=0.6, linewidth=0, fillstyle=fill
    )
    style = "-" if fill == "full" else "--"
    axes.hlines(values.mean(), place - 0.17, place + 0.17, color=colour, linewidth=1.6, linestyle=style)

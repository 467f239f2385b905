"""All estimates of the contest in one figure: units, budgets and subsets, with the band of refutation."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mtl.probes.figures.palette import colour_of
from mtl.probes.figures.style import COLOURS, COLUMN, FAINT, INK, new_figure, open_frame, styled
from mtl.probes.stem_cell.statistics.contest import CANNOT_TELL, REFUTED, SUPPORTED, TENTH

WORD_COLOURS = {SUPPORTED: COLOURS[1], REFUTED: COLOURS[0], CANNOT_TELL: FAINT}


@styled
def forest(table: pl.DataFrame) -> Figure:
    """A dot and an interval per estimate, in per cent of a claimed head's worth; the primary one is bold.

    The band ends at a tenth: an interval inside it refutes a loss of that size. `table`: group, estimate,
    primary, share, share_low, share_high, word (`mtl.probes.stem_cell.statistics.contest_table`). Estimates
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

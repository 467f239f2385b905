"""The best head's accuracy per label: before training, and after training alone, in pairs and jointly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mtl.probes.figures.looks import looks_of
from mtl.probes.figures.palette import colour_of
from mtl.probes.figures.style import FAINT, INK, new_figure, styled
from mtl.probes.statistics.skill import REGIME_NAMES, REGIMES
from mtl.probes.tables.label_scores import FEWEST_ITEMS
from mtl.tasks.in_words import counted

PER_ROW = 24
"""Labels in one row of the figure; more would not be legible at column width."""
MARKS = {"static": (0.94, 2.4), "stl": (0.74, 1.4), "pair": (0.5, 1.4), "joint": (0.28, 1.4)}
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
    figure = new_figure(0.3 + 1.25 * rows)
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
    looks = looks_of(REGIME_NAMES[regime] for regime in regimes if regime != "static")
    return {
        regime: colour_of("static", FAINT) if regime == "static" else looks[REGIME_NAMES[regime]].colour
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

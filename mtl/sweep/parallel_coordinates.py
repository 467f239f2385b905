"""Trials of a sweep as lines across an axis for each parameter, coloured by their score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mtl.probes.figures.style import FAINT, INK, colour_bar, new_figure, styled

NEAR = 0.09
"""Smallest distance between marks of an axis, as a share of its length."""
SPREAD = 0.05
"""How far lines through one category are spread at most, upwards and downwards."""


@dataclass(frozen=True)
class Axis:
    """A parameter, or another number beside the score, of all trials."""

    name: str
    scale: Literal["linear", "log", "categories"]
    values: tuple[float | str | None, ...]
    """One for each trial; texts if `scale` is `categories`; `None` if not known."""
    order: tuple[str, ...] = ()
    """The categories, from the lowest upwards."""


@styled
def parallel_coordinates(
    axes: Sequence[Axis], scores: Sequence[float | None], metric: str, best: int | None, maximize: bool = True
) -> Figure:
    """A line for every trial that has a score: better ones are on top, and the best is bold.

    `best` is the place of the best trial. Raises `ValueError` if no trial has a score.
    """
    scored = [place for place, score in enumerate(scores) if score is not None and math.isfinite(score)]
    if not scored:
        raise ValueError("no trial has a score: there is nothing to draw")
    score = np.array([scores[place] for place in scored], dtype=float)
    rank = np.argsort(np.argsort(score if maximize else -score, kind="stable"), kind="stable")
    all_axes = [*axes, Axis(metric, "linear", tuple(scores))]
    columns = [_heights(axis, scored, rank) for axis in all_axes]
    figure = new_figure(2.6, max(3.3, 1.0 + 0.95 * len(all_axes)))
    panel = figure.subplots()
    norm = Normalize(score.min(), score.max() if score.max() > score.min() else score.min() + 1)
    colours = colormaps["viridis" if maximize else "viridis_r"]
    for place in np.argsort(rank):
        chosen = scored[place] == best
        panel.plot(
            range(len(all_axes)), [heights[place] for heights in columns],
            color=colours(norm(score[place])), linewidth=2.2 if chosen else 0.9,
            alpha=1.0 if chosen else 0.75, zorder=3 if chosen else 2, solid_capstyle="round",
        )  # fmt: skip
        if chosen:
            panel.plot(
                range(len(all_axes)), [heights[place] for heights in columns], linestyle="none", marker="o",
                markersize=3.5, color=INK, zorder=4,
            )  # fmt: skip
    for across, axis in enumerate(all_axes):
        _draw_axis(panel, across, axis, scored)
    panel.set_xlim(-0.35, len(all_axes) - 0.45)
    panel.set_ylim(-0.06, 1.06)
    panel.set_xticks(range(len(all_axes)), [_wrapped(axis.name) for axis in all_axes])
    panel.tick_params(axis="x", length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    panel.set_yticks([])
    panel.spines[:].set_visible(False)
    colour_bar(figure, ScalarMappable(norm, colours), metric, ax=panel, fraction=0.03, pad=0.01)
    return figure


def _heights(axis: Axis, scored: Sequence[int], rank: np.ndarray) -> Float[np.ndarray, " trial"]:
    """The trials' values, scaled to 0 to 1; NaN if not known."""
    values = [axis.values[place] for place in scored]
    if axis.scale == "categories":
        steps = max(len(axis.order) - 1, 1)
        middle = np.array([axis.order.index(str(value)) / steps for value in values])
        aside = (rank / max(len(values) - 1, 1) - 0.5) * 2
        return (middle if len(axis.order) > 1 else middle + 0.5) + aside * min(SPREAD, 0.3 / steps)
    numbers = _scaled(axis, [math.nan if value is None else float(value) for value in values])
    low, high = _ends(axis, scored)
    return (numbers - low) / (high - low) if high > low else np.where(np.isnan(numbers), np.nan, 0.5)


def _is_log(axis: Axis) -> bool:
    """Whether the axis is logarithmic: not if a value has no logarithm, such as one rounded to 0."""
    return axis.scale == "log" and all(value is None or float(value) > 0 for value in axis.values)


def _scaled(axis: Axis, numbers: Sequence[float]) -> Float[np.ndarray, " number"]:
    array = np.array(numbers, dtype=float)
    return np.log10(array) if _is_log(axis) else array


def _ends(axis: Axis, scored: Sequence[int]) -> tuple[float, float]:
    known = [float(value) for place in scored if (value := axis.values[place]) is not None]
    scaled = _scaled(axis, known or [1.0])
    return float(scaled.min()), float(scaled.max())


def _draw_axis(panel: Axes, across: int, axis: Axis, scored: Sequence[int]) -> None:
    panel.plot([across, across], [0, 1], color=FAINT, linewidth=0.6, zorder=1)
    for height, text in _marks(axis, scored):
        panel.plot([across - 0.03, across], [height, height], color=FAINT, linewidth=0.6, zorder=1)
        panel.text(
            across - 0.05, height, text, ha="right", va="center", fontsize=5.5, color=INK, zorder=5,
            bbox={"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.4},
        )  # fmt: skip


def _marks(axis: Axis, scored: Sequence[int]) -> list[tuple[float, str]]:
    """Heights and texts: every category, or both ends of the numbers and round numbers between them."""
    if axis.scale == "categories":
        steps = len(axis.order) - 1
        return [(place / steps if steps else 0.5, text) for place, text in enumerate(axis.order)]
    low, high = _ends(axis, scored)
    spelt = (lambda place: f"{10**place:.3g}") if _is_log(axis) else (lambda place: f"{place:.4g}")
    if high <= low:
        return [(0.5, spelt(low))]
    between = (
        range(math.ceil(low), math.floor(high) + 1)
        if _is_log(axis)
        else MaxNLocator(4).tick_values(low, high)
    )
    marks = [(0.0, spelt(low)), (1.0, spelt(high))]
    for place in between:
        height = (float(place) - low) / (high - low)
        if NEAR < height < 1 - NEAR:
            marks.append((height, spelt(float(place))))
    return marks


def _wrapped(name: str) -> str:
    """A dotted key on two lines, so that axes can be close together."""
    return name.replace(".", ".\n", 1) if len(name) > 12 else name

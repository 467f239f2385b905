"""Masks as pictures: at one moment and over time, and the pictures of overlap in He & Choi 2021."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from jaxtyping import Bool, Float, UInt8
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.patches import Patch

from mtl.probes.figures.history import HeadHistory, by_step, history_panels, names_of, write_animation
from mtl.probes.figures.style import (
    COLUMN,
    FORCED,
    INK,
    MOSTLY_FORCED,
    cell_inches,
    colour_bar,
    grid_size,
    head_axes,
    is_dark,
    mask_colours,
    new_figure,
    strike,
    styled,
    wrapped,
)
from mtl.probes.sites import Site
from mtl.tasks.in_words import counted


def mask_picture(gates: pl.DataFrame) -> Figure:
    """The masks at the last step of a run's gates.parquet, a panel each: black is open, white is closed.

    Heads that a target forced open or shut (`learned` differs from `open`) are struck through.
    """
    return history_panels(_history(gates))


def animation(
    gates: pl.DataFrame,
    path: Path,
    kind: Literal["gif", "webp"] = "gif",
    seconds: float = 6.0,
    notes: Sequence[str] = (),
) -> int:
    """Write the masks of all steps as an animation with these notes, and return the number of pictures."""
    return write_animation(_history(gates), path, kind, seconds, notes)


def _history(gates: pl.DataFrame) -> HeadHistory:
    """The gates; titles have the number of open heads, and of those that no target forced open."""
    tasks, steps = names_of(gates)
    values = by_step(gates, "gate")
    opened = by_step(gates, "open") > 0
    learned = by_step(gates, "learned") > 0 if "learned" in gates.columns else opened
    heads = values[0, 0].size
    titles = [
        [_title(task, now, before, heads) for task, now, before in zip(tasks, *at_step, strict=True)]
        for at_step in zip(opened, learned, strict=True)
    ]
    key = "gate: white closed, black open"
    forced = opened & ~learned, ~opened & learned
    return HeadHistory(tasks, steps, grid_size(gates)[0], values, titles, key, forced)


def _title(
    task: str, opened: Bool[np.ndarray, "site head"], learned: Bool[np.ndarray, "site head"], heads: int
) -> str:
    if (opened == learned).all():
        return f"{task}: {opened.sum()} of {heads} open"
    return f"{task}: {opened.sum()} of {heads} open,\n{(opened & learned).sum()} learned"


CHANNELS = 3
LETTER = 0.057
"""Width in inches of a letter of the key; the average is at most this."""
MOST_SHADES = 6
"""The most colours in a swatch of the key."""
Forced = tuple[Bool[np.ndarray, "3 site head"], Bool[np.ndarray, "3 site head"]]
"""The heads that a target forced open, and those that it forced shut, in each mask."""
Shades = dict[tuple[int, ...], list[tuple[int, int, int]]]
"""For each set of masks, the colours of the heads that exactly these masks keep."""


def rgb_image(
    gates: Float[np.ndarray, "3 ..."], inks: Float[np.ndarray, "3 3"] | None = None
) -> UInt8[np.ndarray, "... 3"]:
    """The colours of heads: channel c is 255 (1 - gate of mask c); black is used by all three, white by none.

    Other `inks` (red, green and blue of each mask, from 0 to 1) blend in the same way, by their product, each
    as strong as its gate. The usual inks are cyan, magenta and yellow.
    """
    if inks is None:
        inks = 1 - np.eye(CHANNELS)
    strength = np.clip(gates, 0, 1)[..., None]
    blend = np.prod(1 - strength * (1 - inks.reshape(CHANNELS, *[1] * (gates.ndim - 1), 3)), axis=0)
    return np.rint(255 * blend).astype(np.uint8)


def shades(
    gates: Float[np.ndarray, "3 ..."],
    kept: Bool[np.ndarray, "3 ..."],
    inks: Float[np.ndarray, "3 3"] | None = None,
) -> Shades:
    """For each set of masks that occurs, the colours of the heads that exactly these masks keep, dark first.

    If there are many colours, `MOST_SHADES` are taken evenly between the darkest and the lightest one. `inks`
    as in `rgb_image`.
    """
    colours = rgb_image(gates, inks).reshape(-1, CHANNELS)
    sets = kept.reshape(CHANNELS, -1).T
    found = {}
    for size in range(CHANNELS + 1):
        for chosen in itertools.combinations(range(CHANNELS), size):
            of_set = colours[(sets == np.isin(np.arange(CHANNELS), chosen)).all(1)]
            if len(of_set):
                distinct = sorted(
                    {tuple(colour) for colour in of_set.tolist()}, key=lambda one: (sum(one), one)
                )
                taken = np.linspace(0, len(distinct) - 1, min(len(distinct), MOST_SHADES)).round().astype(int)
                found[chosen] = [distinct[place] for place in taken]
    return found


def set_names(sets: Sequence[tuple[int, ...]], names: Sequence[str], between: str) -> list[str]:
    """Sets of masks in words: `none`, `all`, or the masks' names joined by `between`."""
    words = {0: "none", CHANNELS: "all"}
    return [words.get(len(chosen), between.join(names[mask] for mask in chosen)) for chosen in sets]


@styled
def rgb_overlap(
    gates: Float[np.ndarray, "3 site head"],
    sites: Sequence[Site],
    names: Sequence[str],
    kept: Bool[np.ndarray, "3 site head"],
    forced: Forced | None = None,
) -> Figure:
    """The masks of three runs or of three tasks, in colours with a key, and in grey.

    `kept`: the heads that each mask keeps; the key has the sets of masks that occur, each in the colours of
    its heads. In grey, a cell has a third for each mask, so that nobody needs to tell colours apart. `forced`
    heads are struck through in grey; in colours, heads are that are forced in any of the masks.
    """
    _, layers, heads = gates.shape
    height = cell_inches(layers, heads, COLUMN - 0.35)
    struck = forced is not None and any(each.any() for each in forced)
    inks = mask_colours(names)
    keyed = shades(gates, kept, inks)
    texts = set_names(list(keyed), names, "+")
    numbered = max(map(len, texts)) * LETTER + 0.3 > COLUMN
    if numbered:
        texts = set_names(list(keyed), "123", "+")
    lines = [f"{number}: {name}" for number, name in enumerate(names, 1)] if numbered else []
    if struck:
        lines.append(f"{FORCED}; above: in any of the masks, below: in this one")
    title = wrapped(*lines, "kept by (the colours that such heads have):", width=COLUMN)
    columns = max(1, min(4, len(texts), int(COLUMN / (max(map(len, texts)) * LETTER + 0.3))))
    key = 0.14 * (title.count("\n") + 1 + -(-len(texts) // columns)) + 0.1
    figure = new_figure(2 * height + 0.75 + key)
    picture, grey = figure.subplots(2, 1)
    colours = rgb_image(gates, inks)
    picture.imshow(colours, aspect="auto", interpolation="nearest")
    head_axes(picture, sites, heads)
    if struck and forced is not None:
        opened, closed = (np.any(each, axis=0, keepdims=True)[0] for each in forced)
        strike(picture, opened, closed, is_dark(colours / 255))
    _draw_in_grey(grey, gates, sites, forced)
    parts = "left, middle, right: " + ", ".join(names)
    if numbered or len(parts) * LETTER > COLUMN:
        parts = "left, middle, right: masks 1, 2, 3"
    grey.set_xlabel(parts)
    grey.xaxis.set_label_position("bottom")
    swatches = [
        tuple(Patch(facecolor=np.array(colour) / 255, edgecolor=INK, linewidth=0.3) for colour in of_set)
        for of_set in keyed.values()
    ]
    figure.legend(
        handles=swatches,
        labels=texts,
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0)},
        loc="outside lower center",
        ncols=columns,
        title=title,
        title_fontsize=6.5,
        columnspacing=1.0,
    )
    return figure


def _draw_in_grey(
    axes: Axes, gates: Float[np.ndarray, "3 site head"], sites: Sequence[Site], forced: Forced | None
) -> None:
    """The same masks in grey, each in a third of every cell: left, middle, right."""
    _, layers, heads = gates.shape
    axes.imshow(
        thirds(gates), cmap="gray_r", vmin=0, vmax=1, aspect="auto", interpolation="nearest",
        extent=(-0.5, heads - 0.5, layers - 0.5, -0.5),
    )  # fmt: skip
    head_axes(axes, sites, heads)
    if forced is not None:
        opened, closed = map(thirds, forced)
        strike(axes, opened, closed, thirds(gates) > 0.5, 1 / CHANNELS)


def thirds(masks: np.ndarray) -> np.ndarray:
    """Three masks (mask, site, head) side by side within every head: (site, 3 heads)."""
    return np.moveaxis(masks, 0, -1).reshape(masks.shape[1], -1)


@styled
def grey_overlap(
    gates: Float[np.ndarray, "mask site head"],
    sites: Sequence[Site],
    forced: tuple[Bool[np.ndarray, "site head"], Bool[np.ndarray, "site head"]] | None = None,
) -> Figure:
    """The mean gate over all masks: a black head is used by all of them, a white one by none.

    `forced` heads, open and shut (`mtl.probes.statistics.masks.mostly_forced`), are struck through.
    """
    _, layers, heads = gates.shape
    height = cell_inches(layers, heads, COLUMN - 0.35)
    struck = forced is not None and any(each.any() for each in forced)
    figure = new_figure(height + 0.8 + 0.25 * struck)
    axes, below = figure.subplots(2, 1, height_ratios=[height, 0.06])
    image = axes.imshow(gates.mean(0), cmap="gray_r", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    head_axes(axes, sites, heads)
    key = f"mean gate over {counted(len(gates), 'mask')}"
    if forced is not None and struck:
        strike(axes, forced[0], forced[1], gates.mean(0) > 0.5)
        key = f"{key}\n{MOSTLY_FORCED}"
    colour_bar(figure, image, key, cax=below, orientation="horizontal")
    return figure

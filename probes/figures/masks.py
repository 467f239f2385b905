"""Masks as pictures, at one moment and over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from PIL import Image

from probes.figures.style import (
    COLUMN,
    cell_inches,
    grid_size,
    head_axes,
    new_figure,
    pixels,
    styled,
)
from probes.heads_table import Site
from probes.sites import in_order

MOST_FRAMES = 60
"""Most pictures in an animation; longer histories are sampled evenly."""


@styled
def mask_picture(gates: pl.DataFrame) -> Figure:
    """The masks at the last step of a run's gates.parquet, a panel each: black is open, white closed."""
    tasks, _, sites, history, opened = _history(gates)
    figure, _ = _panels(tasks, sites, history[-1], _titles(tasks, history, opened[-1]))
    return figure


@styled
def animation(
    gates: pl.DataFrame, path: Path, kind: Literal["gif", "webp"] = "gif", seconds: float = 6.0
) -> int:
    """Write how heads were claimed over the steps as an endless GIF or WebP; returns the number of pictures.

    The last picture stays for a second longer. The same table gives the same file.
    """
    tasks, steps, sites, history, opened = _history(gates)
    chosen = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), MOST_FRAMES)).round().astype(int))
    figure, images = _panels(tasks, sites, history[0], _titles(tasks, history, opened[0]))
    below = figure.supxlabel("update", fontsize=7)
    frames = []
    pixels(figure)
    # The pictures are laid out once; what changes keeps its size.
    figure.set_layout_engine("none")
    for moment in chosen:
        titles = _titles(tasks, history, opened[moment])
        for title, image, gate in zip(titles, images, history[moment], strict=True):
            image.set_data(gate)
            image.axes.set_title(title)
        below.set_text(f"update {steps[moment]}")
        # Sixteen shades of grey make small files, and no palette has to be chosen.
        frames.append(Image.fromarray(pixels(figure, dpi=150)[..., 0] // 17 * 17))
    duration = round(1000 * min(0.5, seconds / len(frames)))
    durations = [duration] * (len(frames) - 1) + [duration + 1000]
    first, *others = frames if kind == "gif" else [frame.convert("RGB") for frame in frames]
    first.save(path, save_all=True, append_images=others, duration=durations, loop=0, format=kind.upper())
    return len(frames)


def _history(
    gates: pl.DataFrame,
) -> tuple[
    list[str],
    list[int],
    tuple[Site, ...],
    Float[np.ndarray, "step task site head"],
    Int[np.ndarray, "step task"],
]:
    """Names of masks, steps, sites, gates, and how many heads are open."""
    tasks = list(gates["task"].unique(maintain_order=True))
    steps = gates["step"].unique().sort().to_list()
    sites, heads = grid_size(gates)
    if gates.height != len(tasks) * len(steps) * len(sites) * heads:
        raise ValueError("not one gate for every task, step, layer and head: give one run's gates.parquet")
    order = pl.col("task").replace_strict(
        {task: place for place, task in enumerate(tasks)}, return_dtype=pl.Int32
    )
    gates = gates.sort("step", order, in_order(sites), "layer", "head")
    shape = len(steps), len(tasks), len(sites), heads
    values = gates["gate"].to_numpy().reshape(shape).astype(np.float64)
    return tasks, steps, sites, values, gates["open"].to_numpy().reshape(shape).sum((2, 3))


def _panels(
    tasks: list[str], sites: Sequence[Site], masks: Float[np.ndarray, "task site head"], titles: list[str]
) -> tuple[Figure, list[AxesImage]]:
    _, layers, heads = masks.shape
    columns = 1 if len(tasks) == 1 else 2
    rows = -(-len(tasks) // columns)
    height = cell_inches(layers, heads, COLUMN / columns - 0.35)
    figure = new_figure(rows * (height + 0.6) + 0.6)
    parts = figure.subfigures(2, 1, squeeze=False, height_ratios=[rows * (height + 0.6), 0.45])[:, 0]
    panels = parts[0].subplots(rows, columns, squeeze=False)
    for panel in panels.flat[len(tasks) :]:
        panel.axis("off")
    images = []
    for axes, mask, title in zip(panels.flat, masks, titles, strict=False):
        images.append(
            axes.imshow(mask, cmap="gray_r", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        )
        head_axes(axes, sites, heads, COLUMN / columns - 0.35)
        axes.set_title(title)
    key = parts[1].subplots()
    bar = figure.colorbar(images[0], cax=key, orientation="horizontal", ticks=[0, 0.5, 1])
    bar.set_label("gate: white closed, black open")
    bar.outline.set_linewidth(0.5)
    return figure, images


def _titles(
    tasks: list[str], history: Float[np.ndarray, "step task site head"], opened: Int[np.ndarray, " task"]
) -> list[str]:
    heads = history[0, 0].size
    return [f"{task}: {count} of {heads} open" for task, count in zip(tasks, opened, strict=True)]

"""A value of every head over the steps of a run: gates, importance; as panels and as an animation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from PIL import ExifTags, Image

from mtl.probes.figures.style import (
    COLUMN,
    FAINT,
    FORCED,
    INK,
    cell_inches,
    colour_bar,
    grid_size,
    head_axes,
    new_figure,
    panel_figure,
    pixels,
    set_strokes,
    site_ticks,
    strike,
    styled,
    title_panel,
)
from mtl.probes.sites import Site, attention_order, kind_starts
from mtl.probes.tables.table_files import tasks_in

MOST_FRAMES = 60
"""The most pictures of an animation; longer histories are sampled evenly."""
Forced = tuple[Bool[np.ndarray, "step task site head"], Bool[np.ndarray, "step task site head"]]


@dataclass(frozen=True)
class HeadHistory:
    """Values from 0 (white) to 1 (black) of every head, for each step and task."""

    tasks: list[str]
    steps: list[int]
    sites: tuple[Site, ...]
    values: Float[np.ndarray, "step task site head"]
    titles: list[list[str]]
    """The titles of panels, by step and task."""
    key: str
    """What white and black mean."""
    forced: Forced | None = None
    """The heads that a target forced open, and those that it forced shut; `None` if there is no target."""

    def forced_at(
        self, step: int, task: int
    ) -> tuple[Bool[np.ndarray, "site head"], Bool[np.ndarray, "site head"]]:
        """The heads that are forced open, and those forced shut, at the place of a step and of a task."""
        if self.forced is None:
            return (np.zeros(self.values.shape[2:], dtype=bool),) * 2
        opened, closed = self.forced
        return opened[step, task], closed[step, task]


def by_step(table: pl.DataFrame, column: str) -> Float[np.ndarray, "step task site head"]:
    """A column laid out by step, task and head; raises `ValueError` unless each has exactly one value."""
    tasks, steps = names_of(table)
    sites, heads = grid_size(table)
    if table.height != len(tasks) * len(steps) * len(sites) * heads:
        raise ValueError(f"not one {column} for every task, step, layer and head: use one run's table")
    order = pl.col("task").replace_strict(
        {task: place for place, task in enumerate(tasks)}, return_dtype=pl.Int32
    )
    table = table.sort("step", order, attention_order(sites), "layer", "head")
    return table[column].to_numpy().reshape(len(steps), len(tasks), len(sites), heads).astype(np.float64)


def names_of(table: pl.DataFrame) -> tuple[list[str], list[int]]:
    """The tasks in the catalogue's order, and the steps."""
    return tasks_in(table), table["step"].unique().sort().to_list()


@styled
def history_panels(history: HeadHistory, step: int = -1) -> Figure:
    """A panel per task at one step, by default the last; `step` is its place."""
    figure, _, _ = _panels(history, step)
    return figure


@styled
def write_animation(
    history: HeadHistory,
    path: Path,
    kind: Literal["gif", "webp"] = "gif",
    seconds: float = 6.0,
    notes: Sequence[str] = (),
) -> int:
    """Write all steps as a GIF or WebP that repeats without end, and return the number of pictures.

    `seconds` is the length of one round; the last picture stays for a further second. The same history gives
    the same file. Notes are the file's comment in GIF, and its description (Exif) in WebP.
    """
    steps = history.steps
    chosen = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), MOST_FRAMES)).round().astype(int))
    figure, images, strokes = _panels(history, 0)
    below = figure.supxlabel("update", fontsize=7)
    frames = []
    pixels(figure)
    # The layout is computed once: what changes keeps its size.
    figure.set_layout_engine("none")
    for moment in chosen.tolist():
        for task, (image, struck) in enumerate(zip(images, strokes, strict=True)):
            values = history.values[moment, task]
            image.set_data(values)
            title_panel(image.axes, history.titles[moment][task])
            opened, closed = history.forced_at(moment, task)
            set_strokes(struck, opened, closed, values > 0.5)
        below.set_text(f"update {steps[moment]}")
        # Sixteen shades of grey make small files, and need no choice of a palette.
        frames.append(Image.fromarray(pixels(figure, dpi=150)[..., 0] // 17 * 17))
    duration = round(1000 * min(0.5, seconds / len(frames)))
    durations = [duration] * (len(frames) - 1) + [duration + 1000]
    first, *others = frames if kind == "gif" else [frame.convert("RGB") for frame in frames]
    first.save(
        path,
        save_all=True,
        append_images=others,
        duration=durations,
        loop=0,
        format=kind.upper(),
        **_noted("\n".join(notes), kind),
    )
    return len(frames)


def _noted(text: str, kind: Literal["gif", "webp"]) -> dict[str, bytes]:
    """The argument with which Pillow writes the text into a file of this kind."""
    if not text:
        return {}
    if kind == "gif":
        return {"comment": text.encode()}
    described = Image.Exif()
    described[ExifTags.Base.ImageDescription] = text.encode()
    return {"exif": described.tobytes()}


def _panels(history: HeadHistory, step: int) -> tuple[Figure, Sequence[AxesImage], Sequence[LineCollection]]:
    values, titles, sites = history.values[step], history.titles[step], history.sites
    tasks, layers, heads = values.shape
    columns = 1 if tasks == 1 else 2
    rows = -(-tasks // columns)
    height = cell_inches(layers, heads, COLUMN / columns - 0.35)
    forced = history.forced is not None and any(each.any() for each in history.forced)
    below = 0.45 + 0.12 * forced
    above = rows * (height + 0.6 + 0.12 * forced)
    figure = new_figure(above + 0.15 + below)
    parts = figure.subfigures(2, 1, squeeze=False, height_ratios=[above, below])[:, 0]
    panels = parts[0].subplots(rows, columns, squeeze=False)
    for panel in panels.flat[tasks:]:
        panel.axis("off")
    images, strokes = [], []
    for task, (axes, cells, title) in enumerate(zip(panels.flat, values, titles, strict=False)):
        images.append(
            axes.imshow(cells, cmap="gray_r", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        )
        opened, closed = history.forced_at(step, task)
        strokes.append(strike(axes, opened, closed, cells > 0.5))
        head_axes(axes, sites, heads, COLUMN / columns - 0.35)
        title_panel(axes, title)
    key = f"{history.key}\n{FORCED}" if forced else history.key
    place = parts[1].subplots()
    colour_bar(figure, images[0], key, cax=place, orientation="horizontal", ticks=[0, 0.5, 1])
    return figure, images, strokes


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
        of_task = table.filter(pl.col("task") == task).sort("step", attention_order(sites), "layer", "head")
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
        title_panel(axes, task)
        images.append(image)
        if "learned" in of_task.columns:
            _mark_forced(axes, of_task.filter(pl.col("step") == int(steps[-1])))
        edges = _edges(steps)
        axes.set_xlim(edges[0], edges[-1])
        # At equal distances, the last edge among them.
        axes.set_xticks(edges[:: -max(1, round((len(edges) - 1) / 3))])
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


KEY = "importance, share of the most important head's at the evaluation"


def importance_history(importance: pl.DataFrame) -> HeadHistory:
    """A run's importance.parquet as shares of the task's most important head at each evaluation.

    Importance falls with the loss; shares still compare heads with each other.
    """
    tasks, steps = names_of(importance)
    most = by_step(importance, "value").max(axis=(2, 3))
    titles = [
        [f"{task}: at most {size:.2g} nats" for task, size in zip(tasks, at_step, strict=True)]
        for at_step in most
    ]
    shares = by_step(_with_shares(importance), "share")
    return HeadHistory(tasks, steps, grid_size(importance)[0], shares, titles, KEY)


def importance_over_time(importance: pl.DataFrame) -> Figure:
    """A row for each head and a column for each evaluation; black is the task's most important head there."""
    return heads_over_time(_with_shares(importance), "share", KEY)


def _with_shares(importance: pl.DataFrame) -> pl.DataFrame:
    most = pl.col("value").max().over("step", "task")
    return importance.with_columns(share=pl.when(most > 0).then(pl.col("value") / most).otherwise(0.0))

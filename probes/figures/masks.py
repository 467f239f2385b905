"""Masks as pictures: at one moment and over time, like other values of heads; overlaps as in He & Choi."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from jaxtyping import Bool, Float, UInt8
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.legend_handler import HandlerTuple
from matplotlib.patches import Patch
from PIL import ExifTags, Image

from mtl.probes.figures.style import (
    COLUMN,
    FAINT,
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
    panel_figure,
    pixels,
    set_strokes,
    site_ticks,
    strike,
    styled,
    title_panel,
    wrapped,
)
from mtl.probes.sites import Site, attention_order, kind_starts
from mtl.probes.statistics.masks import force_in_words
from mtl.probes.tables.table_files import tasks_in
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
    """The gates; titles have the numbers of open heads, and of those that a target opened and closed."""
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
    forced = force_in_words(opened, learned)
    return f"{task}: {opened.sum()} of {heads} open" + (f",\n{forced}" if forced else "")


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


MOST_FRAMES = 60
"""The most pictures of an animation; longer histories are sampled evenly."""
ForcedByStep = tuple[Bool[np.ndarray, "step task site head"], Bool[np.ndarray, "step task site head"]]


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
    forced: ForcedByStep | None = None
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

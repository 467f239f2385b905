"""How figures look and are written: one column wide, with embedded fonts, always the same bytes; colours."""

from __future__ import annotations

import io
import itertools
import math
import re
import textwrap
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
import polars as pl
from jaxtyping import Bool, Float, UInt8
from matplotlib.axes import Axes
from matplotlib.backend_bases import get_registered_canvas_class
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import is_color_like, to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from mtl.probes.appearance import Appearance, chosen_colour, chosen_palette, ordered
from mtl.probes.sites import Site, kind_starts, sites_of

COLUMN = 3.3
"""Width of a paper's column in inches."""
INK, FAINT = "#222222", "#999999"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#882255")
"""Okabe and Ito's palette, for the colour-blind, too; wine replaces yellow, which is pale on white paper."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
GRID = "#dddddd"
FONT = "DejaVu Sans"
PANEL = 1.35
"""Height in inches of a panel for one task."""
SCORE_NAMES = {"las": "LAS", "uas": "UAS", "f1": "F1", "accuracy": "accuracy", "bleu": "BLEU", "chrf": "chrF"}
"""Names of scores as the field writes them; others are printed as they are."""
Format = Literal["pdf", "png", "svg"]
FORMATS: tuple[Format, ...] = ("pdf", "png", "svg")

FONT_SIZE = 7.0
"""The size of ordinary letters, in points."""
STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": [FONT],
    "font.size": FONT_SIZE,
    "axes.titlesize": FONT_SIZE,
    "axes.labelsize": FONT_SIZE,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5,
    "axes.linewidth": 0.5,
    "axes.edgecolor": INK,
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
    "xtick.major.size": 2.0,
    "ytick.major.size": 2.0,
    "legend.frameon": False,
    "legend.handlelength": 1.2,
    # A label such as PRP$ is no formula.
    "text.parse_math": False,
    "pdf.fonttype": 42,
    "svg.hashsalt": "mtl",
    "figure.dpi": 100.0,
}


@dataclass(frozen=True)
class SeriesStyle:
    """A colour and a marker that go together."""

    colour: str
    shape: str
    number: int = 0
    """A number from 1 for names that would have the same look by themselves; else 0."""

    def named(self, name: str) -> str:
        """What a legend calls the name that has this look."""
        return f"{name} ({self.number})" if self.number else name

    def key(self, name: str, size: float, width: float) -> Line2D:
        """The legend's entry for the name that has this look; without a line if `width` is 0."""
        return Line2D(
            [], [], color=self.colour, marker=self.shape, markersize=size, linewidth=width,
            linestyle="-" if width else "none", label=self.named(name),
        )  # fmt: skip


LOOKS = tuple(
    SeriesStyle(colour, MARKERS[(place + step) % len(MARKERS)])
    for step in range(len(MARKERS))
    for place, colour in enumerate(COLOURS)
)
"""All pairs of a colour and a marker; in the first ones, both differ."""
styled = mpl.rc_context(STYLE)
"""Decorator of functions that draw."""


def new_figure(height: float, width: float = COLUMN) -> Figure:
    """An empty figure of this size in inches; its parts share the space without overlapping."""
    return Figure(figsize=(width, height), layout=_RoundedLayout())


def figure_of(axes: Axes) -> Figure:
    """The figure that axes are part of."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    return figure


def panel_figure(
    count: int, height: float, more: float, most: int = 2, *, sharex: bool = False, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure with rows of at most `most` panels, and the panels.

    Its height in inches is `height` for each row, and `more`. Places without a panel stay empty.
    """
    columns = min(count, most)
    rows = -(-count // columns)
    figure = new_figure(height * rows + more)
    panels = list(figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey).flat)
    for axes in panels[count:]:
        axes.axis("off")
    return figure, panels[:count]


def open_frame(axes: Axes, grid: Literal["x", "y"] = "y") -> None:
    """Leave out the frame at the top and on the right, and draw a grid for one axis."""
    axes.grid(axis=grid, color=GRID, linewidth=0.4)
    axes.spines[["top", "right"]].set_visible(False)


def colour_bar(figure: Figure, image: ScalarMappable, label: str, **place: Any) -> None:
    """Explain an image's colours by a bar; `place` as `Figure.colorbar` takes it."""
    bar = figure.colorbar(image, **place)
    bar.set_label(label)
    bar.outline.set_linewidth(0.5)


def is_dark(colours: Float[np.ndarray, "*many 3"]) -> Bool[np.ndarray, "*many"]:
    """Whether white has more contrast than black on colours (red, green and blue, from 0 to 1; WCAG 2)."""
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    return linear @ np.array([0.2126, 0.7152, 0.0722]) < 0.179


class _RoundedLayout(ConstrainedLayoutEngine):
    """matplotlib's constrained layout, with places rounded to a millionth of the figure.

    Its solver (kiwi) adds numbers in the order of memory addresses, so places differ in their last digits
    from one figure to the next, and an SVG names its clip paths by these digits.
    """

    def execute(self, fig: Figure) -> None:
        """Lay out the figure, and round the places of its axes."""
        super().execute(fig)
        for axes in fig.axes:
            part_of_layout = axes.get_in_layout()
            bounds = axes.get_position(original=True).bounds
            axes.set_position(Bbox.from_bounds(*(round(bound, 6) for bound in bounds)))
            axes.set_in_layout(part_of_layout)


@dataclass(frozen=True)
class TaskPanels:
    """A figure with a panel for each task and a look for each setup."""

    figure: Figure
    by_task: Mapping[str, Axes]
    looks: Mapping[str, SeriesStyle]
    in_legend: int
    """The number of columns of the legend."""

    def finished(self, below: str, keys: Sequence[Line2D]) -> Figure:
        """The figure with a label below all panels and its legend above them."""
        self.figure.supxlabel(below, fontsize=7)
        self.figure.legend(handles=keys, loc="outside upper center", ncols=self.in_legend)
        return self.figure


def task_panels(
    tasks: Sequence[str], looks: Mapping[str, SeriesStyle], metrics: Mapping[str, str]
) -> TaskPanels:
    """Empty panels with titles and names of scores (`metrics` has each task's), and room for a legend."""
    in_legend = 1 if len(looks) < 7 or len(tasks) == 1 else 2
    figure, panels = panel_figure(len(tasks), PANEL, 0.4 + 0.13 * -(-len(looks) // in_legend))
    by_task = dict(zip(tasks, panels, strict=True))
    for task, axes in by_task.items():
        # At fixed places: otherwise matplotlib looks for ticks beside them whenever it lays out or draws.
        title_panel(axes, task, y=1.0)
        axes.xaxis.set_label_coords(0.5, 0.0)
        axes.set_ylabel(score_name(metrics, task))
        open_frame(axes)
    return TaskPanels(figure, by_task, looks, in_legend)


def score_name(metrics: Mapping[str, str], task: str) -> str:
    """The name of a task's score on an axis, in per cent."""
    name = metrics.get(task, "score")
    return f"{SCORE_NAMES.get(name, name.replace('_', ' '))}, %"


def wrapped(*paragraphs: str, width: float = COLUMN, letter: float = 0.053) -> str:
    """Texts one below the other, in lines that fit into `width` inches if a letter takes `letter` inches.

    Words are broken if they are longer than a line, after an underscore if they have one.
    """
    letters = max(10, int(width / letter))
    lines = [line for text in paragraphs for line in textwrap.wrap(text.replace("_", "_ "), letters) or [""]]
    return "\n".join(lines).replace("_ ", "_")


def row_labels(names: Sequence[str]) -> tuple[list[str], float]:
    """Names beside rows, in lines that leave room for what is drawn, and the height of a row in inches."""
    labels = [wrapped(name, width=0.42 * COLUMN, letter=0.06) for name in names]
    return labels, 0.05 + 0.12 * max(label.count("\n") + 1 for label in labels)


def name_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Write the labels of rows beside them, from the first one on top."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)


def title_panel(axes: Axes, title: str, **place: Any) -> None:
    """Write a title above a panel, in lines that are no longer than the panel is wide."""
    grid = axes.get_gridspec()
    width = COLUMN / (1 if grid is None else grid.ncols) - 0.1
    axes.set_title(wrapped(*title.split("\n"), width=width, letter=0.065), **place)


@styled
def render(figure: Figure, kind: Format, dpi: int = 300, notes: Sequence[str] = ()) -> bytes:
    """The figure as the contents of a file without a date, so that the same figure gives the same bytes.

    Notes are the file's description: `Subject` in PDF, `Description` in PNG and SVG.
    """
    undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {"Software": None}}
    noted = {"Subject" if kind == "pdf" else "Description": "\n".join(notes)} if notes else {}
    file = io.BytesIO()
    with _laid_out(figure, kind, dpi):
        figure.savefig(file, format=kind, dpi=dpi, metadata=undated[kind] | noted)
    return file.getvalue()


@contextmanager
def _laid_out(figure: Figure, kind: Format, dpi: int) -> Iterator[None]:
    """The figure with fixed places; otherwise matplotlib would draw it once more, only for its layout."""
    layout, canvas, usual = figure.get_layout_engine(), figure.canvas, figure.get_dpi()
    if layout is not None:
        figure.set_dpi(get_registered_canvas_class(kind)(figure).fixed_dpi or dpi)
        layout.execute(figure)
        figure.set_layout_engine(None)
        figure.set_canvas(canvas)
        figure.set_dpi(usual)
    try:
        yield
    finally:
        figure.set_layout_engine(layout)


@styled
def pixels(figure: Figure, dpi: int = 100) -> UInt8[np.ndarray, "height width 4"]:
    """The figure as an image in memory."""
    figure.set_dpi(dpi)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba()).copy()


def head_axes(
    axes: Axes, sites: Sequence[Site], heads: int, width: float = COLUMN, named: bool = True
) -> None:
    """Axes of a picture of masks: layers downwards and heads across, numbered from 0, heads on top.

    With several kinds of attention, a line separates them, and the name of each is at its first layer.
    """
    layers = len(sites)
    axes.set_xticks(*_numbers(heads, width))
    axes.set_yticks(*site_ticks(sites, cell_inches(layers, heads, width)))
    axes.set_xticks(np.arange(-0.5, heads), minor=True)
    axes.set_yticks(np.arange(-0.5, layers), minor=True)
    axes.grid(which="minor", color=FAINT, linewidth=0.4)
    for start in kind_starts(sites)[1:]:
        axes.axhline(start - 0.5, color=INK, linewidth=0.9)
    axes.tick_params(which="minor", length=0)
    axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0, pad=1.5)
    axes.xaxis.set_label_position("top")
    axes.spines[:].set(color=FAINT, linewidth=0.4)
    if named:
        axes.set_xlabel("head")
        axes.set_ylabel("layer")


FORCED = "forced by a target: / opened, \\ closed"
"""What strokes through heads mean (`strike`), for the key of one mask; for several masks: `MOSTLY_FORCED`."""
MOSTLY_FORCED = (
    "forced by a target: / opened in most masks that\nkeep the head, \\ closed in most that do not"
)


def strike(
    axes: Axes,
    opened: Bool[np.ndarray, "site head"],
    closed: Bool[np.ndarray, "site head"],
    dark: Bool[np.ndarray, "site head"],
    width: float = 1.0,
) -> LineCollection:
    """Strokes through the heads that a target forced open (/) or shut (\\); white on `dark` heads.

    A cell is `width` wide, in widths of a head.
    """
    strokes = LineCollection([], linewidths=0.9, capstyle="butt")
    axes.add_collection(strokes, autolim=False)
    set_strokes(strokes, opened, closed, dark, width)
    return strokes


def set_strokes(
    strokes: LineCollection,
    opened: Bool[np.ndarray, "site head"],
    closed: Bool[np.ndarray, "site head"],
    dark: Bool[np.ndarray, "site head"],
    width: float = 1.0,
) -> None:
    """Move the strokes of `strike` to other heads."""
    lines, colours = [], []
    for forced, up in ((opened, 0.5), (closed, -0.5)):
        for site, column in np.argwhere(forced).tolist():
            left = column * width - 0.5
            lines.append([(left, site + up), (left + width, site - up)])
            colours.append("white" if dark[site, column] else INK)
    strokes.set_segments(lines)
    strokes.set_color(colours)


def grid_size(table: pl.DataFrame) -> tuple[tuple[Site, ...], int]:
    """The sites of a table of heads and the heads per site; raises `ValueError` if it is empty."""
    if table.is_empty():
        raise ValueError("the table to be drawn is empty")
    return sites_of(table), int(table["head"].to_numpy().max()) + 1


def site_ticks(
    sites: Sequence[Site], inches: float = math.inf, between: str = " "
) -> tuple[list[int], list[str]]:
    """The places of sites and the numbers of their layers, fewer if they would touch within these inches.

    With several kinds of attention, the first layer of each has the kind's name: `cross 0`, with `between` in
    the middle.
    """
    places, texts = [], []
    starts = [*kind_starts(sites), len(sites)]
    for start, end in itertools.pairwise(starts):
        for place, text in zip(*_numbers(end - start, inches * (end - start) / len(sites)), strict=True):
            named = place == 0 and len(starts) > 2
            places.append(start + place)
            texts.append(f"{sites[start].attention}{between}{text}" if named else text)
    return places, texts


def _numbers(count: int, inches: float) -> tuple[list[int], list[str]]:
    """Places from 0, and the same as texts; every second one or fewer if texts would touch."""
    step = next(step for step in (1, 2, 4, 8, 16, count) if step * inches / count > 0.17 or step >= count)
    places = list(range(0, count, step))
    return places, [str(place) for place in places]


def cell_inches(layers: int, heads: int, width: float) -> float:
    """The height of a picture of masks with square cells, or flatter cells if there are very many layers."""
    return min(layers * width / heads, 1.6 * width)


MASKS = ("#00FFFF", "#FF00FF", "#FFFF00")
"""The usual colours of three masks in one picture; together they are black."""


def colour_of(name: str, usual: str) -> str:
    """The colour of a name; `usual` is its colour if nothing is chosen."""
    chosen = chosen_colour(name)
    if chosen is not None:
        return to_hex(chosen)
    palette = chosen_palette()
    return _colours(palette)[COLOURS.index(usual)] if palette and usual in COLOURS else usual


def mask_colours(names: Sequence[str]) -> Float[np.ndarray, "3 3"]:
    """Red, green and blue from 0 to 1 of each of three masks in one picture."""
    palette = chosen_palette()
    usual = _colours(palette)[: len(MASKS)] if palette else MASKS
    chosen = zip(map(chosen_colour, names), usual, strict=True)
    return np.array([to_rgb(other if own is None else own) for own, other in chosen])


def check_appearance(chosen: Appearance) -> None:
    """Raise `ValueError` for colours and palettes that do not exist, and for names that are listed twice."""
    if chosen.palette:
        _colours(chosen.palette)
    for name, colour in chosen.colours.items():
        if not is_color_like(colour):
            raise ValueError(f"colours: {name}: no colour {colour!r}; write a name or '#0072B2'")
    for name in chosen.order:
        if list(chosen.order).count(name) > 1:
            raise ValueError(f"order: '{name}' is listed twice")


def _colours(palette: str) -> list[str]:
    """The first colours of a palette, as many as the usual one has."""
    known = {name: colours for name, colours in mpl.color_sequences.items() if len(colours) >= len(COLOURS)}
    if palette not in known:
        raise ValueError(f"palette: no '{palette}' with {len(COLOURS)} colours; there are {', '.join(known)}")
    return [to_hex(colour) for colour in known[palette]][: len(COLOURS)]


_SETUP = re.compile(r"(STL|MTL(?:-\d+)?)(?:, (.*))?")
_OF_SETUPS = (
    *(("STL", variant) for variant in ("", "dynamic", "static")),
    *(("MTL", variant) for variant in ("", "dynamic", "static", "dynamic, a mask per task")),
    *(("MTL-2", variant) for variant in ("", "dynamic", "static")),
)
"""The plain setups (`MTL` has more than two tasks), which all look different."""


def looks_of(
    names: Iterable[str], among: Iterable[str] = (), known: Sequence[str] = ()
) -> dict[str, SeriesStyle]:
    """A look for each name, in the chosen order; different names look different, as long as there are looks.

    `known` names have the looks in their order, plain setups have looks of their own, and any other name has
    the look that a checksum of the name gives. So a name looks the same whatever stands beside it. If names
    have the same look, all but the first in the alphabet take the next look that no other name has, and
    legends number them (`SeriesStyle.named`). Figures of one page give all names of the page as `among`, so
    that these agree, too. Chosen colours and order (`mtl.probes.appearance`) take precedence.
    """
    names = list(dict.fromkeys(names))
    alike: dict[int, list[str]] = {}
    for name in sorted({*names, *among}, key=lambda name: (name not in known, _plain(name) is None, name)):
        alike.setdefault(_place(name, known), []).append(name)
    free = [place for place in range(len(LOOKS)) if place not in alike]
    looks: dict[str, SeriesStyle] = {}
    for own, (first, *others) in alike.items():
        looks[first] = replace(LOOKS[own], number=int(bool(others)))
        for number, name in enumerate(others, 2):
            place = min(free, key=lambda place: (place - own) % len(LOOKS), default=own)
            if place in free:
                free.remove(place)
            looks[name] = replace(LOOKS[place], number=number)
    return {name: replace(looks[name], colour=colour_of(name, looks[name].colour)) for name in ordered(names)}


def _plain(name: str) -> tuple[str, str] | None:
    """The plain setup of this name; `None` for any other name."""
    found = _SETUP.fullmatch(name)
    if found is None:
        return None
    base, variant = found[1], found[2] or ""
    setup = (base if base in ("STL", "MTL-2") else "MTL", variant)
    return setup if setup in _OF_SETUPS else None


def _place(name: str, known: Sequence[str] = ()) -> int:
    """The place of a name's own look, on which other names have no influence."""
    if name in known:
        return known.index(name) % len(LOOKS)
    plain = _plain(name)
    if plain is not None and not known:
        return _OF_SETUPS.index(plain)
    reserved = min(len(known) or len(_OF_SETUPS), len(LOOKS) - 1)
    return reserved + zlib.crc32(name.encode()) % (len(LOOKS) - reserved)

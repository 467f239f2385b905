"""Nothing of a figure lies outside of its canvas, and no text on another, for any number of tasks."""

from __future__ import annotations

import itertools

import polars as pl
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from mtl.probes.figures.head_maps import correlation_matrix, head_maps
from mtl.probes.figures.publication import Publication, publish
from mtl.probes.figures.scores import comparison_figure
from mtl.probes.figures.style import pixels
from mtl.runs.figures.table import FIGURES
from tests.probes.figure_makers import LONG_TASKS, MAKERS, TASKS, made_table

SLACK = 1.5
"""In pixels of a hundredth of an inch: what antialiasing and side bearings need."""


def texts(figure: Figure) -> list[Text]:
    """What is written and can be seen."""
    hidden = set(itertools.chain.from_iterable(map(_hidden, figure.axes)))
    written = (text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip())
    return [text for text in written if id(text) not in hidden]


def _hidden(axes: Axes) -> set[int]:
    """The texts of axes that are not drawn: of ticks beyond the limits, or all where axes are off."""
    hidden = set() if axes.axison else {id(text) for text in axes.findobj(Text)} - {*map(id, axes.texts)}
    for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        low, high = sorted(limits)
        ticks = (*axis.get_major_ticks(), *axis.get_minor_ticks())
        drawn = {
            id(label)
            for tick in ticks
            if low <= tick.get_loc() <= high
            for label in (tick.label1, tick.label2)
        }
        drawn |= {id(axis.label), id(axis.get_offset_text())}
        hidden |= {id(text) for text in axis.findobj(Text)} - drawn
    return hidden


def faults(figure: Figure) -> list[str]:
    """Texts, legends and axes that leave the canvas, and texts that lie on each other or on a legend.

    Texts within plots (numbers in cells, marks at points) belong where they are, and slanted ones have boxes
    larger than they are: these two may lie on others.
    """
    pixels(figure)
    written, legends = texts(figure), _legends(figure)
    boxes = {id(text): text.get_window_extent() for text in written}
    places = [(repr(text.get_text()), boxes[id(text)]) for text in written]
    places += [("a legend", legend.get_window_extent()) for legend in legends]
    places += [("axes", axes.get_window_extent()) for axes in figure.axes]
    found = [f"outside: {name} {box}" for name, box in places if not _within(figure.bbox, box)]
    inside = {id(text) for axes in figure.axes for text in axes.texts}
    outer = [text for text in written if id(text) not in inside and text.get_rotation() % 90 == 0]
    found += [
        f"on each other: {one.get_text()!r} and {other.get_text()!r}"
        for one, other in itertools.combinations(outer, 2)
        if _overlap(boxes[id(one)], boxes[id(other)]) > 2 * SLACK
    ]
    for legend in legends:
        own = {id(text) for text in legend.findobj(Text)}
        found += [
            f"on a legend: {text.get_text()!r}"
            for text in written
            if id(text) not in own and _overlap(legend.get_window_extent(), boxes[id(text)]) > 2 * SLACK
        ]
    return found


def _legends(figure: Figure) -> list[Legend]:
    return [*figure.legends, *(legend for axes in figure.axes if (legend := axes.get_legend()))]


def _within(canvas: Bbox, box: Bbox) -> bool:
    return (
        box.x0 >= canvas.x0 - SLACK and box.y0 >= canvas.y0 - SLACK
        and box.x1 <= canvas.x1 + SLACK and box.y1 <= canvas.y1 + SLACK
    )  # fmt: skip


def _overlap(one: Bbox, other: Bbox) -> float:
    """The smaller side, in pixels, of what two boxes have in common; 0 without anything."""
    common = Bbox.intersection(one, other)
    return 0.0 if common is None else min(common.width, common.height)


def test_every_figure_is_made_here() -> None:
    drawn_as_others = {"animation", "importance-over-time"}
    own = {name for name, row in FIGURES.items() if (row.draw or row.animate or "").startswith("mtl.runs.")}
    assert own - drawn_as_others <= set(MAKERS)


@pytest.mark.parametrize("count", [3, *(pytest.param(many, marks=pytest.mark.slow) for many in (1, 2, 5, 9))])
@pytest.mark.parametrize("name", MAKERS)
def test_a_figure_fits(name: str, count: int) -> None:
    assert faults(MAKERS[name](TASKS[:count])) == []


@pytest.mark.parametrize("count", [2, *(pytest.param(many, marks=pytest.mark.slow) for many in (1, 3))])
@pytest.mark.parametrize("name", MAKERS)
def test_a_figure_fits_with_long_names_of_tasks(name: str, count: int) -> None:
    assert faults(MAKERS[name](LONG_TASKS[:count])) == []


LONG = [f"MTL-5, {number} epochs, balancer name moving_average" for number in range(1, 7)]


@pytest.mark.slow
@pytest.mark.parametrize("setups", [LONG[:2], LONG])
def test_maps_and_agreement_of_setups_with_long_names_fit(setups: list[str]) -> None:
    names = [f"{task}, {setup}" for task in TASKS[:3] for setup in setups]
    pairs = itertools.combinations_with_replacement(names, 2)
    table = made_table([(*pair, -0.001) for pair in pairs], "first", "second", "spearman")
    matrix = correlation_matrix(table, "spearman")
    assert faults(matrix) == []
    cells = [text.get_window_extent() for text in matrix.axes[0].texts]
    assert all(_overlap(one, other) < SLACK for one, other in itertools.combinations(cells, 2))
    assert {text.get_text() for text in matrix.axes[0].texts} == {"0"}
    maps = [
        (task, setup, "self", layer, head, 0.1, False)
        for task in TASKS[:3] for setup in setups for layer in range(6) for head in range(12)
    ]  # fmt: skip
    columns = ("task", "setup", "attention", "layer", "head", "value", "significant")
    assert faults(head_maps(made_table(maps, *columns), "ablation", "score lost, points")) == []


def test_a_comparison_of_sides_with_long_names_fits_and_its_legend_has_what_is_known() -> None:
    known = {"task": "pos", "difference": 0.5, "sentences_low": 0.0, "sentences_high": 1.0}
    unknown = {f"{name}_{end}": None for name in ("both", "seeds") for end in ("low", "high")}
    figure = comparison_figure(pl.DataFrame([known | unknown]), LONG[0], f"{LONG[1]}, from {LONG[2]}")
    assert faults(figure) == []
    entries = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert entries == ["these runs on other sentences"]


@pytest.mark.parametrize("name", MAKERS)
def test_a_figure_fits_in_longer_words(name: str) -> None:
    """As in languages with longer words; a figure that nothing is changed of keeps its height."""
    longer = {"layer": "Schicht", "head": "Kopf", "heads": "Köpfe", "seed": "Zufallsstart"}
    figure = MAKERS[name](TASKS[:3])
    height = figure.get_figheight()
    assert publish(figure, Publication()).get_figheight() == height
    assert faults(publish(figure, Publication(title="Die Köpfe der Aufmerksamkeit", names=longer))) == []


def test_a_text_outside_and_texts_on_each_other_are_found() -> None:
    figure = Figure(figsize=(4, 3))
    axes = figure.subplots()
    assert faults(figure) == []
    axes.set_title("a title that is far too long for so small a figure " * 2)
    assert [fault.partition(":")[0] for fault in faults(figure)] == ["outside"]
    axes.set_title("title")
    figure.text(0.5, 0.9, "title")
    assert [fault.partition(":")[0] for fault in faults(figure)] == ["on each other"]
    figure.texts[0].remove()
    figure.legend(handles=[Patch(label="a")], loc="upper center")
    figure.suptitle("title")
    assert {fault.partition(":")[0] for fault in faults(figure)} == {"on a legend", "on each other"}

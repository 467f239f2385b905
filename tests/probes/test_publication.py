"""Figures in the words, the letters and the size of a paper."""

from __future__ import annotations

import io

import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text

from mtl.probes.figures.publication import Publication, names_not_in, publish
from mtl.probes.figures.style import COLOURS, FONT_SIZE, new_figure, render, styled


@styled
def drawn(legend: str = "upper") -> Figure:
    figure = new_figure(2.0)
    axes = figure.subplots()
    for name, colour in zip(("STL", "MTL-2"), COLOURS, strict=False):
        axes.plot([0, 1], [0, 1], label=name, color=colour)
    axes.set_yticks([0, 1], ["pos", "dep"])
    axes.set_xlabel("open heads of 72 positions")
    if legend:
        figure.legend(loc=f"outside {legend} center")
    return figure


def texts(figure: Figure) -> list[str]:
    render(figure, "svg")
    return [text.get_text() for text in figure.findobj(Text) if text.get_text() and text.get_visible()]


def test_nothing_is_changed_where_nothing_is_asked_for() -> None:
    assert render(publish(drawn(), Publication()), "svg") == render(drawn(), "svg")


def test_names_are_replaced_as_whole_words_and_once() -> None:
    names = {"pos": "dep", "dep": "pos", "STL": "alone", "open heads": "offene Köpfe", "heads": "?"}
    shown = texts(publish(drawn(), Publication(names=names)))
    assert [text for text in shown if text in ("pos", "dep")] == ["dep", "pos"]
    assert "offene Köpfe of 72 positions" in shown
    assert {"alone", "MTL-2"} <= set(shown)
    assert not {"STL", "?"} & set(shown)


def test_names_of_several_words_are_found_across_lines() -> None:
    figure = drawn()
    figure.axes[0].set_xlabel("open heads\nof 72 positions")
    assert "offene von 72 positions" in texts(
        publish(figure, Publication(names={"open heads of": "offene von"}))
    )


@pytest.mark.parametrize("size", [(), (3.3,), (3.3, 2.5)])
def test_a_wide_legend_gets_shorter_lines_and_the_figure_grows(size: tuple[float, ...]) -> None:
    figure = drawn()
    height = figure.get_figheight()
    publish(figure, Publication(names={"STL": "each task alone " * 6}, size=size))
    render(figure, "svg")
    [legend] = figure.legends
    box, canvas = legend.get_window_extent(), figure.bbox
    assert canvas.x0 <= box.x0 < box.x1 <= canvas.x1
    lines = legend.get_texts()[0].get_text().split("\n")
    assert " ".join(lines) == ("each task alone " * 6).strip()
    assert len(lines) > 1
    assert figure.get_figheight() == 2.5 if len(size) == 2 else figure.get_figheight() > height


@pytest.mark.parametrize("legend", ["upper", "lower", ""])
def test_a_title_stands_above_everything(legend: str) -> None:
    figure = publish(drawn(legend), Publication(title="Heads"))
    render(figure, "svg")
    boxes = {text.get_text(): text.get_window_extent() for text in figure.findobj(Text) if text.get_text()}
    title = boxes.pop("Heads")
    assert all(box.y1 <= title.y0 + 1 for box in boxes.values())


def test_size_and_letters() -> None:
    figure = publish(drawn(), Publication(size=(4.0, 3.0), font="DejaVu Serif", font_size=14))
    assert imread(io.BytesIO(render(figure, "png", dpi=100))).shape[:2] == (300, 400)
    letters = [text for text in figure.findobj(Text) if text.get_text()]
    assert {text.get_fontname() for text in letters} == {"DejaVu Serif"}
    assert {text.get_fontsize() for text in letters} == {14.0, 14 * 6.5 / FONT_SIZE}


def test_a_width_alone_keeps_the_shape() -> None:
    before = drawn().get_size_inches()
    assert publish(drawn(), Publication(size=(6.6,))).get_size_inches() == pytest.approx(2 * before)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (Publication(font="No Such Font"), "no font 'No Such Font' is installed; there are "),
        (Publication(size=(3.0, 0.0)), r"size \[3.0, 0.0\]: use a width"),
        (Publication(size=(3.0, 2.0, 1.0)), r"size \[3.0, 2.0, 1.0\]: use a width, or"),
        (Publication(font_size=-1.0), "font_size -1: use points"),
    ],
)
def test_what_cannot_be_is_refused(wrong: Publication, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        publish(drawn(), wrong)


def test_names_that_a_figure_does_not_have_are_known() -> None:
    known = ["STL", "pos", "open heads of"]
    assert names_not_in(drawn(), [*known, "SRL", "head", ""]) == ["SRL", "head", ""]

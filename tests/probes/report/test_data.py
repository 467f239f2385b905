"""Figures inside of the page: smaller than matplotlib's files, and the same drawing."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from urllib.parse import unquote
from xml.etree import ElementTree

from matplotlib.figure import Figure

from mtl.probes.figures.style import render
from mtl.probes.report.data import embedded

NUMBER = re.compile(r"\d+\.?\d*")


class _Image(HTMLParser):
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found = dict(attrs)


def _drawing() -> Figure:
    figure = Figure(figsize=(3, 2))
    axes = figure.subplots()
    axes.plot([0.123456, 1, 7.77], [3, 1000.4, 2], "o-", color="#d55e00", alpha=0.37)
    axes.set_title("a & b < 50 % 'c' \"d\" é")
    return figure


def _elements(svg: str) -> list[tuple[str, list[tuple[str, str, list[float]]]]]:
    """Of each drawn element its name, and of each attribute the words and the numbers."""
    return [
        (
            element.tag,
            [
                (key, " ".join(NUMBER.sub("", text).split()), [float(each) for each in NUMBER.findall(text)])
                for key, text in element.items()
            ],
        )
        for element in ElementTree.fromstring(svg).iter()
        if not re.search("metadata|purl|creativecommons|rdf", element.tag)
    ]


def test_the_page_shows_what_the_file_shows_to_a_hundredth_of_a_point():
    page = _Image()
    page.feed(str(embedded(_drawing(), 'a "figure"')))
    kind, packed = page.found["src"].split(",", 1)
    assert (kind, page.found["alt"]) == ("data:image/svg+xml", 'a "figure"')
    assert not re.search(r"[#\s]", packed.replace(" ", ""))  # what ends an address or is dropped from it
    file = render(_drawing(), "svg").decode()
    shown, whole = _elements(unquote(packed)), _elements(file)
    assert len(unquote(packed)) < 0.85 * len(file)
    assert [(tag, [each[:2] for each in rest]) for tag, rest in shown] == [
        (tag, [each[:2] for each in rest]) for tag, rest in whole
    ]
    for (_, a), (_, b) in zip(shown, whole, strict=True):
        for (_, _, rounded), (_, _, exact) in zip(a, b, strict=True):
            assert all(
                abs(one - other) <= (0.005001 if other >= 1 else 0)
                for one, other in zip(rounded, exact, strict=True)
            )

"""The attention of a head on sentences, as arcs over the words or as a matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path

from mtl.probes.figures.style import COLUMN, FAINT, FONT, INK, colour_bar, figure_of, new_figure, styled
from mtl.probes.measures.attention import AttentionMatrix
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Sentence

View = Literal["arcs", "matrix"]
LEAST = 0.1
"""Attention below this share has no arc."""
MOST_WORDS = {"arcs": 80, "matrix": 60}
"""The most words of a sentence for which a picture can be read."""
HIT, MISSED, ATTENDS = "#009E73", "#D55E00", "#0072B2"
_LETTER, _BETWEEN = 0.062, 0.09
"""Inches of a letter, and of the space between words."""
_LEVEL = 0.2
"""Inches by which an arc rises each time the number of words that it spans doubles."""


@styled
def attention_figure(
    shown: Sequence[ShownAttention | AttentionMatrix], view: View = "arcs", least: float = LEAST
) -> Figure:
    """A figure with a panel per sentence; raises `ValueError` for a sentence that is too long."""
    sizes = [panel_size(each, view) for each in shown]
    figure = new_figure(sum(height for _, height in sizes), max(width for width, _ in sizes))
    panels = figure.subplots(len(shown), 1, squeeze=False, height_ratios=[height for _, height in sizes])
    for each, axes in zip(shown, panels[:, 0], strict=True):
        draw_attention(each, axes, view, least)
    return figure


def panel_size(shown: ShownAttention | AttentionMatrix, view: View) -> tuple[float, float]:
    """Width and height in inches of a sentence's panel; raises `ValueError` if the sentence is too long."""
    if isinstance(shown, AttentionMatrix):
        view, words, unit = "matrix", max(shown.weights.shape), "subword"
    else:
        words, unit = len(shown.sentence), "word"
    if words > MOST_WORDS[view]:
        raise ValueError(
            f"a sentence of {counted(words, unit)} does not fit into a picture of {view}, which holds at "
            f"most {MOST_WORDS[view]}: choose a shorter one"
        )
    if isinstance(shown, AttentionMatrix) or view == "matrix":
        side = max(COLUMN, 0.13 * words + _LETTER * max(map(len, shown.columns)) + 0.6)
        return side, side
    _, width = _places(shown)
    above = _rise(words + 2) + 0.35
    below = (_rise(words) + 0.1) if shown.gold else 0.1
    return max(width, COLUMN), above + below + 0.3


@styled
def draw_attention(
    shown: ShownAttention | AttentionMatrix, axes: Axes, view: View = "arcs", least: float = LEAST
) -> None:
    """Draw a sentence on given axes; an `AttentionMatrix` is always drawn as a matrix."""
    if isinstance(shown, AttentionMatrix):
        _draw_matrix(shown, axes)
        axes.set_title(as_drawn(shown.title), loc="left")
        return
    if view == "matrix":
        _draw_matrix(shown.matrix(), axes)
        _frame_gold(shown, axes)
    else:
        _draw_arcs(shown, axes, least)
    hits = sum(arc.hit for arc in shown.gold)
    arcs = f", {shown.gold[0].label}: {hits} of {len(shown.gold)} hit" if shown.gold else ""
    name = f", {shown.sentence.id}" if shown.sentence.id else ""
    axes.set_title(as_drawn(f"{shown.head}{name}{arcs}"), loc="left")


def _places(shown: ShownAttention) -> tuple[Float[np.ndarray, " column"], float]:
    """The middle of each column's text, and the width of all columns, in inches."""
    widths = [max(len(as_drawn(text)), 1) * _LETTER + _BETWEEN if text else 0.0 for text in shown.columns]
    ends = np.cumsum(widths)
    return ends - np.array(widths) / 2, float(ends[-1])


def _rise(span: int) -> float:
    """The height of an arc over `span` words, in inches."""
    return _LEVEL * (1 + math.log2(max(span, 1)))


def _draw_arcs(shown: ShownAttention, axes: Axes, least: float) -> None:
    places, width = _places(shown)
    words, top = len(shown.sentence), 0.1
    for column, text in enumerate(shown.columns):
        special = column in (0, words + 1)
        axes.text(
            places[column], 0, as_drawn(text), ha="center", va="center", color=FAINT if special else INK
        )
    for query in range(0 if shown.special[0] else 1, words + 1):
        most = shown.most(query)
        for column in np.flatnonzero(shown.weights[query] >= least).tolist():
            if column == query:
                continue
            weight = float(shown.weights[query, column])
            rise = _rise(abs(column - query))
            top = max(top, rise)
            strength = 0.25 + 0.75 * weight if column == most else 0.12 + 0.3 * weight
            _arc(axes, places[query], places[column], 0.09, rise, ATTENDS, 0.3 + 1.7 * weight, strength)
        if shown.weights[query, query] >= least:
            axes.plot(places[query], 0.14, "o", color=ATTENDS, markersize=1 + 3 * shown.weights[query, query])
    bottom = -0.1
    for arc in shown.gold:
        rise = _rise(abs(arc.start - arc.anchor))
        bottom = min(bottom, -rise - 0.08)
        colour, line = (HIT, "solid") if arc.hit else (MISSED, "dashed")
        ends = places[arc.anchor + 1], places[arc.start + 1]
        _arc(axes, *ends, -0.09, -rise, colour, 1.1, 1.0, line)
        axes.text(
            sum(ends) / 2, -rise - 0.02, as_drawn(arc.label), ha="center", va="top", color=colour, fontsize=6
        )
    weights = shown.weights[0 if shown.special[0] else 1 : words + 1]
    faint = weights[(weights > 0) & (weights < least)]
    if faint.size:
        share = faint.sum() / weights.sum()
        left_out = (
            f"not drawn: {counted(faint.size, 'arc')} below {least:.0%}, in all {share:.0%} of attention"
        )
        axes.text(-0.02, bottom - 0.06, left_out, ha="left", va="top", color=FAINT, fontsize=6)
        bottom -= 0.16
    axes.set_xlim(-0.02, max(width, COLUMN - 0.1))
    axes.set_ylim(bottom - 0.1, top + 0.08)
    axes.axis("off")


def _arc(
    axes: Axes, start: float, end: float, base: float, rise: float, colour: str, line: float, alpha: float,
    style: str = "solid",
) -> None:  # fmt: skip
    """An arc with an arrowhead at its end: at the attended word, or at the dependent."""
    # A cubic curve reaches three quarters of the way to its control points.
    control = base + (rise - base) * 4 / 3
    bend = 0.15 * (end - start)
    points = [(start, base), (start + bend, control), (end - bend, control), (end, base)]
    codes = [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]
    axes.add_patch(
        PathPatch(
            Path(points, codes), fill=False, edgecolor=colour, linewidth=line, alpha=alpha, linestyle=style,
            capstyle="round",
        )
    )  # fmt: skip
    marker = "v" if rise > base else "^"
    axes.plot(end, base, marker, color=colour, markersize=1.2 + line, alpha=alpha, markeredgewidth=0)


def _draw_matrix(shown: AttentionMatrix, axes: Axes) -> None:
    """Rows attend to columns."""
    image = axes.imshow(shown.weights, cmap="Blues", vmin=0, vmax=1, interpolation="nearest", aspect="equal")
    axes.set_xticks(range(len(shown.columns)), [as_drawn(text) for text in shown.columns], rotation=90)
    axes.set_yticks(range(len(shown.rows)), [as_drawn(text) for text in shown.rows])
    axes.tick_params(length=0)
    axes.spines[:].set(color=FAINT, linewidth=0.4)
    axes.set_ylabel("attends")
    axes.set_xlabel("to")
    colour_bar(figure_of(axes), image, "attention", ax=axes, fraction=0.04, pad=0.02)


def _frame_gold(shown: ShownAttention, axes: Axes) -> None:
    """Mark both directions of each gold arc in a matrix, by a solid frame for a hit."""
    rows, there = shown.there
    for arc in shown.gold:
        for word in range(arc.start, arc.end):
            for row, column in ((arc.anchor + 1, word + 1), (word + 1, arc.anchor + 1)):
                if row in rows and column in there:
                    axes.add_patch(
                        Rectangle(
                            (there.index(column) - 0.5, rows.index(row) - 0.5), 1, 1, fill=False,
                            edgecolor=HIT if arc.hit else MISSED, linewidth=1.1,
                            linestyle="solid" if arc.hit else "dotted",
                        )
                    )  # fmt: skip


def as_drawn(text: str) -> str:
    """A text as it can be drawn, with a box for each character that the font lacks."""
    glyphs = _glyphs()
    return "".join(letter if ord(letter) in glyphs else "□" for letter in text)


@cache
def _glyphs() -> frozenset[int]:
    """The characters of the figures' font."""
    return frozenset(get_font(findfont(FONT)).get_charmap())


class GoldArc(NamedTuple):
    """Words `start` to `end` (from 0, without `end`) and the word that they depend on; -1 is the root."""

    start: int
    end: int
    anchor: int
    label: str
    hit: bool
    """Whether the head connects the two, in either direction."""


@dataclass(frozen=True, eq=False)
class ShownAttention:
    """The attention of a head on a sentence, at word level."""

    sentence: Sentence
    head: str
    """The name of the head."""
    special: tuple[str | None, str | None]
    """The first and the final special token; `None` where the model has none."""
    weights: Float[np.ndarray, "query column"]
    """From the first special token and each word (queries) to the first special token, each word and the
    final special token (columns), from 0 to 1. It is 0 for special tokens that do not exist, and for words
    in other windows of a long sentence."""
    gold: tuple[GoldArc, ...] = ()
    root: bool = False
    """Whether the first special token, as the root, competes with the words for the most attended one."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The texts of the columns of `weights`; empty for a special token that does not exist."""
        return self.special[0] or "", *self.sentence.words, self.special[1] or ""

    @property
    def there(self) -> tuple[list[int], list[int]]:
        """The queries and the columns that exist."""
        columns = [number for number, text in enumerate(self.columns) if text]
        return [number for number in columns if number <= len(self.sentence)], columns

    def matrix(self) -> AttentionMatrix:
        """What is there of `weights`."""
        rows, columns = self.there
        return AttentionMatrix(
            ", ".join(filter(None, (self.head, self.sentence.id))),
            tuple(self.columns[number] for number in rows),
            tuple(self.columns[number] for number in columns),
            self.weights[np.ix_(rows, columns)],
        )

    def most(self, query: int) -> int:
        """The column that a query attends to most, of those that compete; ties go to the first."""
        first = 0 if self.root and self.special[0] else 1
        return first + int(self.weights[query, first:-1].argmax())

    def said_of_gold(self, word: int) -> str:
        """The arcs of the relation that end at a word (from 0), and whether they are hit; empty for none."""
        words = self.sentence.words
        return ", ".join(
            f"{arc.label} of {words[arc.anchor] if arc.anchor >= 0 else 'the root'}: "
            f"{'hit' if arc.hit else 'missed'}"
            for arc in self.gold
            if arc.start == word
        )

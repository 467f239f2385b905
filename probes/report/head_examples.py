"""Heads of the first screen on a few sentences: what they attend to before training, alone and jointly."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import polars as pl
from markupsafe import Markup, escape

from mtl.probes.head_names import head_name
from mtl.probes.report.data import RunExamples
from mtl.probes.report.kept_heads import KeptHead, KeptHeads
from mtl.probes.sites import Site
from mtl.probes.tables.examples_file import ExampleArc, ExampleSentence

_REGIMES = {"static": "before training", "stl": "alone", "joint": "jointly"}
_LETTER, _LINE = 7.3, 12.0
"""Width of a letter, and how much an arc rises each time the number of words that it spans doubles."""


@dataclass(frozen=True)
class HeadExamples:
    """What a head attends to in sentences."""

    cell: int
    relation: str
    """The relation whose arcs are drawn; empty: none."""
    sentences: tuple[tuple[str, tuple[tuple[str, Markup], ...]], ...]
    """For each sentence a title, and the pictures with their regimes."""
    command: str
    """The command that shows more."""


class _OnSentence(NamedTuple):
    """A head's row of the examples on a sentence; the arcs that are drawn, and whether each is hit."""

    sentence: ExampleSentence
    attended: Sequence[int]
    share: Sequence[int]
    arcs: tuple[tuple[ExampleArc, bool], ...]

    @property
    def rank(self) -> tuple[float, float]:
        """How well the head does: hits less misses, then its mean attention to the most attended words."""
        hits = sum(1.0 if hit else -1.0 for _, hit in self.arcs)
        return float(hits), sum(self.share) / max(len(self.share), 1)


def head_examples(
    kept: KeptHeads | None, runs: Sequence[RunExamples], sites: Sequence[Site], heads: int, most: int
) -> tuple[HeadExamples, ...]:
    """The best and the worst sentence of those of the first `most` heads that do something clearly.

    A sentence is shown in each regime whose first run has it.
    """
    if kept is None:
        return ()
    found = (_of_head(head, kept.regime, runs, sites, heads) for head in kept.heads[:most] if head.does)
    return tuple(each for each in found if each is not None)


def _of_head(
    head: KeptHead, regime: str, runs: Sequence[RunExamples], sites: Sequence[Site], heads: int
) -> HeadExamples | None:
    by_regime = {
        name: run
        for name in _REGIMES
        for run in reversed(runs)  # of several the first
        if run.regime == name and head.task in ("", *run.tasks)
    }
    if regime not in by_regime:
        return None
    site, number = sites[head.cell // heads], head.cell % heads
    name = head_name(site, number, sites)
    seen = {
        other: _seen(run, head, site, number)
        for other, run in by_regime.items()
        if _words(run) == _words(by_regime[regime])
    }
    ranked = sorted(seen[regime], key=lambda place: seen[regime][place].rank, reverse=True)
    if not ranked:
        return None
    best, worst = ("best", "worst") if head.relation else ("surest", "least sure")
    places = {best: ranked[0], worst: ranked[-1]} if len(ranked) > 1 else {best: ranked[0]}
    sentences = tuple(
        (
            f"{title}: {' '.join(seen[regime][place].sentence.words)}",
            tuple((_REGIMES[other], _picture(of[place], name)) for other, of in seen.items() if place in of),
        )
        for title, place in places.items()
    )
    asked = [f"--task={head.task}", f"--relation={head.relation}"] if head.relation else []
    command = shlex.join(["mtl", "show", by_regime[regime].run, name, *asked])
    return HeadExamples(head.cell, head.relation, sentences, command)


def _words(run: RunExamples) -> list[tuple[str, ...]]:
    return [sentence.words for sentence in run.examples.sentences]


def _seen(run: RunExamples, head: KeptHead, site: Site, number: int) -> dict[int, _OnSentence]:
    """The head on each sentence that has the relation, by the number of the sentence."""
    rows = run.examples.table.filter(
        pl.col("attention") == site.attention,
        pl.col("layer") == site.layer,
        pl.col("head") == number,
        pl.col("mask").is_in(["", head.task or run.tasks[0]]),
    )
    found = {}
    for row in rows.unique("sentence", keep="first", maintain_order=True).iter_rows(named=True):
        sentence = run.examples.sentences[row["sentence"]]
        arcs = tuple(
            (arc, hit)
            for arc, hit in zip(sentence.arcs, row["hit"], strict=True)
            if (arc.task, arc.label) == (head.task, head.relation)
        )
        if arcs or not head.relation:
            found[int(row["sentence"])] = _OnSentence(sentence, row["attended"], row["share"], arcs)
    return found


def _picture(seen: _OnSentence, name: str) -> Markup:
    """Arcs above lead from each word to the one that it attends to most; those below are the relation's."""
    words = seen.sentence.words
    ends = [0.0]
    for word in words:
        ends.append(ends[-1] + _LETTER * (len(word) + 1.2))
    middle = [(start + end) / 2 for start, end in pairwise(ends)]
    above = [
        (query, to, share)
        for query, (to, share) in enumerate(zip(seen.attended, seen.share, strict=True))
        if to >= 0
    ]
    top = max((_rise(to - query) for query, to, _ in above), default=0) + 12
    below = max((_rise(arc.start - arc.anchor) for arc, _ in seen.arcs), default=0) + 8
    parts = [f'<text x="{x:.0f}" y="4">{escape(word)}</text>' for x, word in zip(middle, words, strict=True)]
    for query, to, share in above:
        style = f'class="to" style="opacity: {0.25 + 0.75 * share / 100:.2f}"'
        parts += _arc(middle[query], middle[to], -8.0, -_rise(to - query), style)
    for arc, hit in seen.arcs:
        start = middle[arc.anchor] if arc.anchor >= 0 else middle[arc.start]
        style = f'class="{"hit" if hit else "missed"}"'
        parts += _arc(start, middle[arc.start], 8.0, _rise(arc.start - arc.anchor), style)
    told = "; ".join(_told(seen))
    return Markup(
        f'<svg class="seen" role="img" aria-label="{escape(name)}: {escape(told)}" width="{ends[-1]:.0f}" '
        f'height="{top + below + 12:.0f}" viewBox="0 {-top - 6:.0f} {ends[-1]:.0f} {top + below + 12:.0f}">'
        f"{''.join(parts)}</svg>"
    )


def _rise(span: int) -> float:
    return 8 + _LINE * (1 + math.log2(max(abs(span), 1)))


def _arc(start: float, end: float, base: float, rise: float, style: str) -> Iterator[str]:
    """An arc with a dot at its end; only the dot if it ends where it starts."""
    if start != end:
        control = base + (rise - base) * 4 / 3
        yield (
            f'<path {style} d="M{start:.0f} {base:.0f}C{start:.0f} {control:.0f} {end:.0f} {control:.0f} '
            f'{end:.0f} {base:.0f}"/>'
        )
    yield f'<circle {style} cx="{end:.0f}" cy="{base:.0f}" r="2"/>'


def _told(seen: _OnSentence) -> Iterator[str]:
    """The picture in words."""
    words = seen.sentence.words
    for query, (to, share) in enumerate(zip(seen.attended, seen.share, strict=True)):
        if to >= 0:
            yield f"{words[query]} to {words[to]} {share} %"
    for arc, hit in seen.arcs:
        head = words[arc.anchor] if arc.anchor >= 0 else "the root"
        yield f"{arc.label} of {head}, {words[arc.start]}: {'hit' if hit else 'missed'}"

"""The heads that masks keep, and what they attend to in a few sentences."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import polars as pl
from markupsafe import Markup, escape

from mtl.probes.measures.groups import BY_NAME
from mtl.probes.report.data import RunExamples
from mtl.probes.report.page_part import number
from mtl.probes.sites import KEYS, Site, head_name
from mtl.probes.statistics.masks import Masks, expected_in_all
from mtl.probes.tables.heads_table import POSITIONAL, ExampleArc, ExampleSentence, in_texts, label_scores

CLEAR = 0.2
"""How far above chance a head must be at what the page says it does."""
CLEAR_ALONE = 0.5
"""The share that a head must reach at what has no chance level."""
SHOWN = 12
"""The number of heads that are listed; the others are folded away."""
_REGIMES = ("stl", "joint", "pretrained")
"""Whose probes say what a head does, the preferred one first: claims are those of single-task runs."""
_PLACES = {"0": "the word itself", "+1": "the next word", "-1": "the previous word"}
_RELATIONS = {"to dependent": "from a word to its {}", "to head": "from a word’s {} to the word"}
_IN_WORDS = {
    "nsubj": "subject", "nsubj:pass": "passive subject", "obj": "object", "iobj": "indirect object",
    "det": "determiner", "amod": "adjective", "advmod": "adverb", "aux": "auxiliary", "case": "case marker",
    "compound": "compound part", "conj": "conjunct", "cc": "conjunction", "cop": "copula", "mark": "marker",
    "nmod:poss": "possessor", "nummod": "number",
}  # fmt: skip
"""Relations of Universal Dependencies in words."""
_LOOKS = ("syntactic", "attention", POSITIONAL, "rare_words")
"""Measures of where a head looks; they take precedence over what its output distinguishes."""
_ROLES = (*_LOOKS, "clustering")


@dataclass(frozen=True)
class KeptHead:
    """A head that all tasks claim."""

    cell: int
    """The number of the head, counted over all sites."""
    learned: int
    """The number of tasks that learned to keep the head, without the force of a target."""
    does: str
    """What it does: `looks at the next word in 80 %`; empty if no probe is clearly above chance."""
    task: str = ""
    """The task of the relation that the head finds; empty if it finds none."""
    relation: str = ""
    """The relation that the head finds, such as `nsubj`; empty if it finds none."""


class Role(NamedTuple):
    """What a head does most clearly."""

    words: str
    task: str
    relation: str
    """The relation that the head finds; with `task` its task. Both are empty if it finds none."""


@dataclass(frozen=True)
class KeptHeads:
    """The list of heads on the first screen."""

    heads: Sequence[KeptHead]
    tasks: Sequence[str]
    """The tasks whose masks are compared; others on the page may have none."""
    regime: str
    """The regime whose probes say what heads do; empty without probes."""
    expected: float
    """The number of such heads by chance, if every layer of a mask keeps its number of heads."""


def kept_heads(claimed: Masks | None, heads: pl.DataFrame | None) -> KeptHeads | None:
    """The heads that every task claims; those that most tasks learned come first. `None` without two tasks.

    `heads` has the columns of heads.parquet of all runs, with `regime`, `run` and `seed`.
    """
    if claimed is None or len(claimed.tasks) < 2:
        return None
    common = np.all(claimed.claimed(), axis=0, keepdims=True)[0]
    learned = (claimed.claimed() & claimed.learned_claims()).sum(0)
    probed = None if heads is None else heads.filter(pl.col("measure").is_in([*_ROLES]))["regime"].unique()
    present = set() if probed is None else set(probed)  # runs whose heads are only weighed have no probes
    regime = next((name for name in _REGIMES if name in present), "")
    roles = {} if heads is None or not regime else head_roles(heads.filter(regime=regime))
    found = []
    for place, site in enumerate(claimed.sites):
        for head in range(common.shape[1]):
            if common[place, head]:
                does = roles.get((*site, head), Role("", "", ""))
                found.append(KeptHead(place * common.shape[1] + head, int(learned[place, head]), *does))
    by_learned = sorted(found, key=lambda head: -head.learned)
    return KeptHeads(by_learned, claimed.tasks, regime, expected_in_all(claimed.claimed()))


def head_roles(heads: pl.DataFrame) -> dict[tuple[str, int, int], Role]:
    """By attention, layer and head, what the head does most clearly above chance, as a mean over runs.

    Labels that do not count (`label_scores`) are left out, and so are labels of punctuation. Positions have
    no chance level. Heads that do nothing clearly (`CLEAR`, `CLEAR_ALONE`) are left out.
    """
    chances = {name: BY_NAME[name].chance or "" for name in _ROLES}
    scores = label_scores(heads, {name: level for name, level in chances.items() if level}).filter("counted")
    plain = pl.col("measure").is_in([name for name, level in chances.items() if not level])
    others = heads.filter(plain).with_columns(above="value", chance=pl.lit(None, pl.Float64))
    columns = ("measure", "task", "label", *KEYS, "value", "chance", "above")
    means = (
        pl.concat([table.select(columns) for table in (scores, others)])
        .drop_nulls("above")
        .group_by("measure", "task", "label", *KEYS, maintain_order=True)
        .agg(pl.col("value", "chance", "above").mean())
    )
    best = (
        in_texts(means)
        .filter(pl.col("above") >= pl.when(pl.col("chance").is_null()).then(CLEAR_ALONE).otherwise(CLEAR))
        .filter(pl.col("label").str.contains(r"\w") | (pl.col("label") == ""))
        .sort(pl.col("measure").is_in(_LOOKS), "above", descending=True, maintain_order=True)
        .group_by(KEYS, maintain_order=True)
        .first()
    )
    return {(row["attention"], row["layer"], row["head"]): _role(row) for row in best.iter_rows(named=True)}


def _role(row: dict[str, float | str]) -> Role:
    label, task, relation = str(row["label"]), "", ""
    match row["measure"]:
        case "positional":
            words = f"looks at {_PLACES.get(label) or _far(int(label))}"
        case "rare_words":
            words = "looks at the rarest word of the sentence"
        case "syntactic":
            (relation, _, direction), task = label.partition(" "), str(row["task"])
            called = f"{_IN_WORDS[relation]} ({relation})" if relation in _IN_WORDS else relation
            words = f"looks {_RELATIONS.get(direction, direction + ' {}').format(called)}"
        case "attention":
            words, task, relation = f"finds the other end of {label} ({row['task']})", str(row["task"]), label
        case _:
            words = f"tells {label} from other labels ({row['task']})"
    chance = "" if row["chance"] is None else f", chance {number(float(row['chance']), 0, 100)} %"
    return Role(f"{words} in {number(float(row['value']), 0, 100)} %{chance}", task, relation)


def _far(offset: int) -> str:
    return f"the word {abs(offset)} {'ahead' if offset > 0 else 'back'}"


_REGIMES_SHOWN = {"pretrained": "before training", "stl": "alone", "joint": "jointly"}
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
        for name in _REGIMES_SHOWN
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
            tuple(
                (_REGIMES_SHOWN[other], _picture(of[place], name))
                for other, of in seen.items()
                if place in of
            ),
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

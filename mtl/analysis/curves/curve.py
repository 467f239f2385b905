"""Pruning curves: a task's score with fewer and fewer heads, by the order in which they go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from mtl.analysis.curves.file import CurveFiles, part
from mtl.analysis.curves.head_order import Head, NextHeads, loader, remaining
from mtl.analysis.curves.start import Start
from mtl.analysis.measuring import Progress, silent
from mtl.analysis.trained import TrainedRun
from mtl.models.evaluate import evaluate
from mtl.probes.sites import Site
from mtl.probes.tables import curve_table


@dataclass(frozen=True)
class Method:
    """One order in which heads go."""

    by: str
    """Its name in the tables."""
    draw: int
    """Its number among those of this name, from 0."""
    next_heads: NextHeads
    made_of: Mapping[str, object]
    """By task, what the order depends on besides the model, as values that JSON can hold."""


@dataclass(frozen=True)
class CurvePoint:
    """The heads kept at one point of a curve, and the score with them."""

    by: str
    draw: int
    task: str
    kept: tuple[Head, ...]
    share: float
    """The number of heads kept, divided by the number open at the start."""
    score: float
    """In per cent."""


def measure_curve(
    start: Start,
    methods: Sequence[Method],
    *,
    steps: int = 10,
    progress: Progress = silent,
) -> list[CurvePoint]:
    """Close heads in the order of each method, and score at `steps` + 1 evenly spaced numbers of heads.

    Writes curve.parquet and curve_heads.parquet as it goes, and does not compute again what they hold for the
    same model, sentences and settings. `progress` is as in `mtl.analysis.measuring`, but counts closed heads.
    """
    files = CurveFiles(start.scoring.run.folder)
    scored: dict[tuple[str, frozenset[Head]], float] = {}
    points = []
    draws = Counter(method.by for method in methods)
    with progress(len(methods) * max(map(len, start.pools.values()))) as advance:
        for method in methods:
            for task in start.base:
                files.begin(method.by, draws[method.by], task)
            points += _Curve(start, method, steps, scored).run(advance)
    return points


class _Curve:
    """One method's curve, for all tasks side by side."""

    def __init__(
        self, start: Start, method: Method, steps: int, scored: dict[tuple[str, frozenset[Head]], float]
    ) -> None:
        self.start, self.method, self.scored = start, method, scored
        self.files = CurveFiles(start.scoring.run.folder)
        self.pools = start.pools
        self.grid = [
            {name: round(len(pool) * (steps - step) / steps) for name, pool in self.pools.items()}
            for step in range(steps + 1)
        ]
        self.keys = {
            name: start.key(name, method.by, method.draw, steps, method.made_of[name]) for name in self.pools
        }
        for name, key in self.keys.items():
            self.files.begin_order(method.by, method.draw, name, key)
        self.gone = {name: self._read_order(name) for name in self.pools}
        self.scores = {name: self._read_scores(name) for name in self.pools}

    def run(self, advance: Callable[[int], None]) -> list[CurvePoint]:
        """Compute what is missing; returns all points."""
        points = []
        done = 0
        for wanted in self.grid:
            while behind := self._behind(wanted):
                for name, heads in self.method.next_heads(behind, wanted).items():
                    self.gone[name] += heads
                    self._write_order(name)
                more = max(map(len, self.gone.values())) - done
                advance(more)
                done += more
            # A resumed order may already be longer.
            kept = {
                name: remaining(pool, self.gone[name][: len(pool) - wanted[name]])
                for name, pool in self.pools.items()
            }
            self._score(kept)
            for name, heads in kept.items():
                share = len(heads) / max(len(self.pools[name]), 1)
                score = self.scores[name][len(heads)]
                points.append(CurvePoint(self.method.by, self.method.draw, name, tuple(heads), share, score))
        return points

    def _behind(self, wanted: Mapping[str, int]) -> dict[str, list[Head]]:
        """The heads that are left, for tasks that have more than are wanted."""
        kept = {name: remaining(pool, self.gone[name]) for name, pool in self.pools.items()}
        return {name: heads for name, heads in kept.items() if len(heads) > wanted[name]}

    def _score(self, kept: Mapping[str, Sequence[Head]]) -> None:
        """Score these heads for the tasks that have no score at this number of heads."""
        missing = {}
        for name, heads in kept.items():
            if len(heads) in self.scores[name]:
                continue
            known = self.scored.get((name, frozenset(heads)))
            if known is None:
                missing[name] = self.start.masked(name, heads)
            else:
                self._write_score(name, len(heads), known)
        if missing:
            for name, score in task_scores(self.start.scoring, missing).items():
                self.scored[name, frozenset(kept[name])] = score
                self._write_score(name, len(kept[name]), score)

    def _read_order(self, name: str) -> list[Head]:
        place = {site: number for number, site in enumerate(self.start.scoring.model.encoder.tap.sites)}
        rows = self.files.orders.read(self._part(name), self.keys[name]).sort("rank", descending=True)
        return [
            (place[Site(attention, layer)], head)
            for attention, layer, head in rows.select("attention", "layer", "head").iter_rows()
        ]

    def _write_order(self, name: str) -> None:
        sites = self.start.scoring.model.encoder.tap.sites
        ranked = zip(self.gone[name], count(len(self.pools[name]) - 1, -1), strict=False)
        self.files.orders.put(self._part(name), self.keys[name], order_rows(self._part(name), sites, ranked))

    def _read_scores(self, name: str) -> dict[int, float]:
        rows = self.files.scores.read({**self._part(name), "trained_epochs": 0}, self.keys[name])
        return dict(rows.select("kept", "score").iter_rows())

    def _write_score(self, name: str, kept: int, score: float) -> None:
        self.scores[name][kept] = score
        by, draw, pool = self.method.by, self.method.draw, len(self.pools[name])
        rows = score_rows(self.start.scoring, by, draw, name, pool, self.scores[name])
        self.files.scores.put({**self._part(name), "trained_epochs": 0}, self.keys[name], rows)

    def _part(self, name: str) -> dict[str, str | int]:
        return part(self.method.by, self.method.draw, name)


def order_rows(
    part: Mapping[str, str | int], sites: Sequence[Site], ranked: Iterable[tuple[Head, int]]
) -> pl.DataFrame:
    """Rows of curve_heads.parquet from heads and their ranks."""
    rows = [
        {**part, "attention": sites[site].attention, "layer": sites[site].layer, "head": head, "rank": rank}
        for (site, head), rank in ranked
    ]
    return pl.DataFrame(rows, schema=curve_table.ORDERS)


def score_rows(
    scoring: TrainedRun,
    by: str,
    draw: int,
    task: str,
    pool: int,
    scores: Mapping[int, float],
    *,
    epochs: int = 0,
    source: str | None = None,
) -> pl.DataFrame:
    """Rows of curve.parquet from `scores`, the score at each number of heads kept.

    `pool` is the number of heads at the start, `epochs` the number of epochs that the cut model was trained
    further, and `source` the run that was scored (`None`: the curve's own).
    """
    return pl.DataFrame(
        [
            {
                "by": by,
                "draw": draw,
                "task": task,
                "trained_epochs": epochs,
                "kept": kept,
                "share": kept / max(pool, 1),
                "split": scoring.split,
                "figure": scoring.tasks[task].score,
                "score": score,
                "source": str(scoring.run.folder) if source is None else source,
            }
            for kept, score in scores.items()
        ],
        schema=curve_table.SCORES,
    )


def task_scores(trained: TrainedRun, scales: Mapping[str, Float[Tensor, "site head"]]) -> dict[str, float]:
    """The main score of each of these tasks under its own head scale."""
    model = trained.model
    tap = model.encoder.tap
    opened = torch.ones(len(tap.sites), tap.heads)
    scale = torch.stack([scales.get(name, opened) for name in model.tasks])
    figures = evaluate(model, loader(trained, tuple(scales), model.evaluation_tokens()), scale)
    return {name: figures[name][model.tasks[name].score] for name in scales}

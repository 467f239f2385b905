"""Pruning curves: a task's score with fewer and fewer heads, by the order in which they go."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from mtl.analysis.measuring import Progress, silent
from mtl.analysis.trained import CHOOSING, KeyedTable, TrainedRun, model_fingerprint, open_trained, opened_by
from mtl.corpora.load import corpus_fingerprint
from mtl.curves.orders import (
    RANKED,
    REVERSE,
    Going,
    Head,
    Method,
    by_value,
    greedy,
    heads_left,
    importance_values,
    loader,
    measured_values,
    random_values,
    recomputed,
    scale_with_only,
)
from mtl.errors import InputError
from mtl.heads.gates import open_heads
from mtl.heads.wanted import heads_wanted
from mtl.models.evaluate import evaluate_model
from mtl.models.inputs import InputCache
from mtl.models.opened import Accelerator
from mtl.probes.curves import curve_table
from mtl.probes.curves.curve_table import NEVER, SCHEMAS
from mtl.probes.measures.groups import made_with
from mtl.probes.sites import Site
from mtl.runs.folder.run_tables import read_measures
from mtl.tasks.in_words import counted


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
    start: CurveStart,
    methods: Sequence[Method],
    *,
    steps: int | Sequence[int | float] = 10,
    progress: Progress = silent,
) -> list[CurvePoint]:
    """Close heads in the order of each method, and score at `steps` + 1 evenly spaced numbers of heads.

    Several `steps` are the shares or numbers of heads kept at the points; the first point has all heads.
    Where more heads must stay (`CurveStart.at_least`), these are the last point. Raises `InputError` for a
    step that is no share or number of the heads.

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
        self,
        start: CurveStart,
        method: Method,
        steps: int | Sequence[int | float],
        scored: dict[tuple[str, frozenset[Head]], float],
    ) -> None:
        self.start, self.method, self.scored = start, method, scored
        self.files = CurveFiles(start.scoring.run.folder)
        self.pools = start.pools
        numbers = check_points(start, steps)
        self.grid = [
            dict(zip(numbers, of_point, strict=True)) for of_point in zip(*numbers.values(), strict=True)
        ]
        points = steps if isinstance(steps, int) else list(steps)
        self.keys = {
            name: start.key(name, method.by, method.draw, points, method.made_of[name]) for name in self.pools
        }
        for name, key in self.keys.items():
            self.files.begin_order(method.by, method.draw, name, key)
        self.gone = {name: self._read_order(name) for name in self.pools}
        self.scores = {name: self._read_scores(name) for name in self.pools}

    def run(self, advance: Callable[[int], None]) -> list[CurvePoint]:
        """Compute what is missing; returns all points."""
        points: dict[tuple[str, int], CurvePoint] = {}
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
                name: heads_left(pool, self.gone[name][: len(pool) - wanted[name]])
                for name, pool in self.pools.items()
            }
            self._score(kept)
            for name, heads in kept.items():
                share = len(heads) / max(len(self.pools[name]), 1)
                score = self.scores[name][len(heads)]
                point = CurvePoint(self.method.by, self.method.draw, name, tuple(heads), share, score)
                points[name, len(heads)] = point
        for name, gone in self.gone.items():
            if len(gone) < len(self.pools[name]):
                self._write_order(name, with_others=True)
        return [*points.values()]

    def _behind(self, wanted: Mapping[str, int]) -> dict[str, list[Head]]:
        """The heads that are left, for tasks that have more than are wanted."""
        kept = {name: heads_left(pool, self.gone[name]) for name, pool in self.pools.items()}
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
        rows = rows.filter(pl.col("rank") >= 0)
        return [
            (place[Site(attention, layer)], head)
            for attention, layer, head in rows.select("attention", "layer", "head").iter_rows()
        ]

    def _write_order(self, name: str, with_others: bool = False) -> None:
        sites = self.start.scoring.model.encoder.tap.sites
        ranked = [*zip(self.gone[name], count(len(self.pools[name]) - 1, -1), strict=False)]
        if with_others:
            ranked += [(place, NEVER) for place in heads_left(self.pools[name], self.gone[name])]
        self.files.orders.put(self._part(name), self.keys[name], order_rows(self._part(name), sites, ranked))

    def _read_scores(self, name: str) -> dict[int, float]:
        rows = self.files.scores.read({**self._part(name), "trained_epochs": 0}, self.keys[name])
        return dict(rows.select("kept", "score").iter_rows())

    def _write_score(self, name: str, kept: int, score: float) -> None:
        self.scores[name][kept] = score
        by, draw, pool = self.method.by, self.method.draw, len(self.pools[name])
        rows = curve_score_rows(self.start.scoring, by, draw, name, pool, self.scores[name])
        self.files.scores.put({**self._part(name), "trained_epochs": 0}, self.keys[name], rows)

    def _part(self, name: str) -> dict[str, str | int]:
        return part(self.method.by, self.method.draw, name)


def check_points(start: CurveStart, steps: int | Sequence[int | float]) -> dict[str, list[int]]:
    """By task, the numbers of heads kept at the points of its curves; `steps` as in `measure_curve`.

    Raises `InputError` for steps that are no shares or numbers of the heads, and if no head may be closed.
    """
    fewest = {name: Going(at_least=start.at_least).fewest(pool) for name, pool in start.pools.items()}
    if start.at_least and all(len(pool) == fewest[name] for name, pool in start.pools.items()):
        most = max(
            (max(Counter(site for site, _ in pool).values()) for pool in start.pools.values() if pool),
            default=0,
        )
        raise InputError(
            f"--at_least={start.at_least} leaves no head to close, since no layer has more than "
            f"{counted(most, 'open head')}: use a smaller number"
        )
    return {name: kept_at_points(steps, len(pool), fewest[name]) for name, pool in start.pools.items()}


def kept_at_points(steps: int | Sequence[int | float], heads: int, fewest: int = 0) -> list[int]:
    """The numbers of heads kept at points, from all `heads` downwards, but nowhere fewer than `fewest`."""
    if isinstance(steps, int):
        numbers = [round(heads * (steps - step) / steps) for step in range(steps + 1)]
    else:
        numbers = [heads]
        for share in steps:
            try:
                numbers.append(heads_wanted(share, heads) if share and heads else 0)
            except InputError as error:
                raise InputError(f"--keep={share:g}: {error}") from error
    return sorted((max(number, fewest) for number in numbers), reverse=True)


def order_rows(
    part: Mapping[str, str | int], sites: Sequence[Site], ranked: Iterable[tuple[Head, int]]
) -> pl.DataFrame:
    """Rows of curve_heads.parquet from heads and their ranks."""
    rows = [
        {**part, "attention": sites[site].attention, "layer": sites[site].layer, "head": head, "rank": rank}
        for (site, head), rank in ranked
    ]
    return pl.DataFrame(rows, schema=curve_table.ORDERS)


def curve_score_rows(
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
    figures = evaluate_model(model, loader(trained, tuple(scales), model.evaluation_tokens()), scale)
    return {name: figures[name][model.tasks[name].score] for name in scales}


def measure_curves(settings: Mapping[str, Any], inputs: InputCache) -> None:
    """Measure pruning curves, by settings alone (`MeasureGroup.by_settings`)."""
    start = CurveStart.of(opened_by(settings, inputs, settings["split"]))
    ranking = ranking_of(start, CHOOSING, settings.get("sentences"))
    measure_curve(start, methods_of(start, settings["orders"], ranking, draws=settings["draws"]))


def ranking_of(
    start: CurveStart, split: str, sentences: int | None = None, accelerator: Accelerator = "auto"
) -> TrainedRun:
    """The start's model with the sentences that heads are ranked on.

    Raises `InputError` as `open_trained` does.
    """
    scoring = start.scoring
    ranking = open_trained(
        scoring.run.folder,
        scoring.source,
        split,
        tasks=tuple(scoring.tasks),
        sentences=sentences,
        accelerator=accelerator,
    )
    return dataclasses.replace(ranking, model=scoring.model)


def methods_of(
    start: CurveStart,
    names: Sequence[str],
    ranking: TrainedRun | None,
    *,
    normalise: bool = False,
    draws: int = 5,
    seed: int = 0,
) -> list[Method]:
    """The orders of these names, with everything that each depends on.

    Those in `RANKED` need `ranking`; `normalise` divides a layer's importances by their norm. There are
    `draws` random orders; each follows from `seed`, the run's own seed and the number of the draw. Raises
    `InputError` for a measure that heads.parquet lacks, `ValueError` for a missing `ranking`.
    """
    tap, pools = start.scoring.model.encoder.tap, start.pools
    methods = []
    for given in names:
        name = given.removeprefix(REVERSE)
        going = Going(given != name, start.at_least)
        if name in RANKED:
            if ranking is None:
                raise ValueError(f"{name} needs sentences to rank on")
            made_of = {task: [sentences_key(ranking, task), normalise] for task in pools}
            importance = partial(importance_values, ranking, start.base, normalise)
            next_heads = {
                "importance": by_value(importance, going),
                "recomputed": recomputed(ranking, start.base, normalise, going),
                "greedy": greedy(ranking, start.base, importance, going),
            }[name]
            methods.append(Method(given, 0, next_heads, made_of))
        elif name == "random":
            # The run's own seed is used too, so that orders differ between the runs of a setup.
            seeds = (seed, int(start.scoring.run.config()["seed"]))
            for draw in range(draws):
                values = partial(random_values, tuple(pools), len(tap.sites), tap.heads, (*seeds, draw))
                made_of = {task: [*seeds] for task in pools}
                methods.append(Method(name, draw, by_value(values, going), made_of))
        else:
            methods.append(_by_measure(start, name, going))
    return methods


def _by_measure(start: CurveStart, measure: str, going: Going) -> Method:
    path, tap, pools = start.scoring.table, start.scoring.model.encoder.tap, start.pools
    if not path.exists():
        raise InputError(f"{path} is not there: '{made_with(measure)}' makes it, with {measure}")
    table, _ = read_measures(path)
    values = measured_values(table, measure, pools, tap.sites, tap.heads)
    made_of = {task: [float(values[task][place]) for place in pool] for task, pool in pools.items()}
    name = f"{REVERSE}{measure}" if going.reverse else measure
    return Method(name, 0, by_value(lambda: values, going), made_of)


@dataclass
class CurveStart:
    """What all curves of a run start from."""

    scoring: TrainedRun
    base: dict[str, Float[Tensor, "site head"]]
    """By task, the head scale before any head is closed."""
    model_key: str
    """The fingerprint of the model's files."""
    at_least: int = 0
    """The number of heads that no order closes in every layer."""

    @classmethod
    def of(cls, scoring: TrainedRun, masks: bool = True, at_least: int = 0) -> CurveStart:
        """The start of a run's curves; `masks`: whether the run's masks are applied."""
        base = {name: scoring.model.scales.of_task(name, gated=masks) for name in scoring.tasks}
        return cls(scoring, base, model_fingerprint(scoring.run), at_least)

    @property
    def pools(self) -> dict[str, list[Head]]:
        """By task, the heads that are open at the start."""
        return {name: open_heads(scale) for name, scale in self.base.items()}

    def key(self, task: str, *made_of: object) -> str:
        """A hash of the model, the task's mask, its scored sentences and `made_of`, followed by settings.

        The settings are those by which curves of several runs are compared (`curve_table.curve_settings`).
        """
        scored = sentences_key(self.scoring, task)
        everything = [self.model_key, self.base[task].tolist(), scored, *made_of]
        stay = f", at_least={self.at_least}" if self.at_least else ""
        made = hashlib.sha256(json.dumps(everything + [stay] * bool(stay)).encode()).hexdigest()
        corpus, _, sentences = scored
        masked = bool((self.base[task] < 1).any())
        return f"{made} sentences={sentences} of corpus {str(corpus)[:8]}, masks={str(masked).lower()}{stay}"

    def masked(self, task: str, kept: Sequence[Head]) -> Float[Tensor, "site head"]:
        """The task's head scale with all heads closed except those in `kept`."""
        return scale_with_only(self.base[task], kept)


def sentences_key(trained: TrainedRun, task: str) -> list[object]:
    """Values that identify the sentences that a task is measured on."""
    files = corpus_fingerprint(trained.source, {task: trained.tasks[task]}, (trained.split,))
    return [files, trained.split, len(trained.corpus)]


@dataclass(frozen=True)
class CurveFiles:
    """The three tables of a run's curves."""

    folder: Path

    @property
    def scores(self) -> KeyedTable:
        """curve.parquet, in parts of a method, draw, task and number of epochs."""
        return self._table("curve.parquet")

    @property
    def orders(self) -> KeyedTable:
        """curve_heads.parquet, in parts of a method, draw and task."""
        return self._table("curve_heads.parquet")

    @property
    def times(self) -> KeyedTable:
        """curve_time.parquet, in parts of a method, draw and task."""
        return self._table("curve_time.parquet")

    def _table(self, name: str) -> KeyedTable:
        return KeyedTable(self.folder / name, SCHEMAS[name], "mtl curve")

    def begin(self, by: str, draws: int, task: str) -> None:
        """Remove draws of the method from number `draws` on, which an earlier call with more draws left."""
        for table in (self.scores, self.orders, self.times):
            for draw in table.values("draw", {"by": by, "task": task}):
                if draw >= draws:
                    table.forget(part(by, draw, task))

    def begin_order(self, by: str, draw: int, task: str, key: str) -> None:
        """Remove the draw's parts unless its order of heads has this key."""
        of_draw = part(by, draw, task)
        if not self.orders.holds(of_draw, key):
            for table in (self.scores, self.orders, self.times):
                table.forget(of_draw)


def part(by: str, draw: int, task: str, trained_epochs: int | None = None) -> dict[str, str | int]:
    """The part of a method's draw for a task; parts of curve.parquet also have the number of epochs."""
    values: dict[str, str | int] = {"by": by, "draw": draw, "task": task}
    return values if trained_epochs is None else {**values, "trained_epochs": trained_epochs}

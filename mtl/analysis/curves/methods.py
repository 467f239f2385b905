"""The orders in which heads go, by the names that `mtl curve --by` takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial

from mtl.analysis.curves.curve import Method
from mtl.analysis.curves.head_order import (
    by_value,
    greedy,
    importance_values,
    measured_values,
    random_values,
    recomputed,
)
from mtl.analysis.curves.start import Start, sentences_key
from mtl.analysis.trained import TrainedRun, open_trained
from mtl.errors import InputError, did_you_mean
from mtl.models.device import Accelerator
from mtl.probes.measures.groups import made_with
from mtl.probes.measures.table import BY_NAME
from mtl.runs.folder.heads_file import read_measures

ORDERS = ("importance", "recomputed", "random", "greedy")
"""Orders that are computed; every other order is a measure in heads.parquet."""
RANKED = ("importance", "recomputed", "greedy")
"""Orders that need sentences to rank on."""


def check_orders(names: Sequence[str]) -> None:
    """Raise `InputError` for names that are neither orders nor measures, and for names given twice."""
    if len(set(names)) < len(names):
        raise InputError(f"--by={','.join(names)} names an order twice: name each once")
    for name in names:
        if name == "gates":
            raise InputError("--by=gates: use runs with --gates=[RUN,...], or --targets to train them")
        if name not in ORDERS and name not in BY_NAME:
            choices = list(dict.fromkeys([*ORDERS, *BY_NAME]))
            raise InputError(f"--by={name}: no such order or measure{did_you_mean(name, choices)}")


def ranking_of(
    start: Start, split: str, sentences: int | None = None, accelerator: Accelerator = "auto"
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
    start: Start,
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
    for name in names:
        if name in RANKED:
            if ranking is None:
                raise ValueError(f"{name} needs sentences to rank on")
            made_of = {task: [sentences_key(ranking, task), normalise] for task in pools}
            importance = partial(importance_values, ranking, start.base, normalise)
            next_heads = {
                "importance": by_value(importance),
                "recomputed": recomputed(ranking, start.base, normalise),
                "greedy": greedy(ranking, start.base, importance),
            }[name]
            methods.append(Method(name, 0, next_heads, made_of))
        elif name == "random":
            # The run's own seed is used too, so that orders differ between the runs of a setup.
            seeds = (seed, int(start.scoring.run.config()["seed"]))
            for draw in range(draws):
                values = partial(random_values, tuple(pools), len(tap.sites), tap.heads, (*seeds, draw))
                methods.append(Method(name, draw, by_value(values), {task: [*seeds] for task in pools}))
        else:
            methods.append(_by_measure(start, name))
    return methods


def _by_measure(start: Start, measure: str) -> Method:
    path, tap, pools = start.scoring.table, start.scoring.model.encoder.tap, start.pools
    if not path.exists():
        raise InputError(f"{path} is not there: '{made_with(measure)}' makes it, with {measure}")
    table, _ = read_measures(path)
    values = measured_values(table, measure, pools, tap.sites, tap.heads)
    made_of = {task: [float(values[task][place]) for place in pool] for task, pool in pools.items()}
    return Method(measure, 0, by_value(lambda: values), made_of)

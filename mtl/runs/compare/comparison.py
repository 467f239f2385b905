"""The table of `mtl compare`: the scores of two sets of runs on the same sentences, task by task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float

from mtl.config.instances import kind_of, setting_values
from mtl.errors import InputError
from mtl.probes.statistics.compared_runs import Units, compare_setups, units_of
from mtl.probes.statistics.significance import holm
from mtl.probes.tables.table_files import ColumnUnit, types_of
from mtl.runs.compare.settings import settings_of_run, sizes_told_apart
from mtl.runs.compare.setups import setups_of, without_repeats
from mtl.runs.folder import run_tables
from mtl.runs.folder.run import Run
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Task

_INTERVALS = ("sentences", "seeds", "both")
UNITS = (
    ColumnUnit.TEXT.of("task", "score")
    | ColumnUnit.COUNT.of("sentences", "documents", "runs", "runs_against")
    | ColumnUnit.PERCENT.of("mean", "mean_against")
    | ColumnUnit.POINTS.of("difference", *(f"{name}_{end}" for name in _INTERVALS for end in ("low", "high")))
    | ColumnUnit.P.of("p_sentences", "p", "holm")
)
SCHEMA = pl.Schema(types_of(UNITS))
"""A row per task: scores and differences in points, with the intervals and p of `compared_runs`.

`sentences` is their number; `documents` is that of their documents, if these are resampled whole; null:
sentences are resampled. `sentences_low` and the like are ends of intervals. `holm` corrects p for the number
of tasks. If a side has a single run, only the interval and p over sentences are known; then, and if
neither runs nor sentences have any spread, `holm` corrects the p over sentences.
"""


def columns_of_paper(table: pl.DataFrame) -> tuple[str, ...]:
    """The columns of the table in LaTeX (`table_files.in_print`); of intervals the widest that is known."""
    ends = "both" if table["both_low"].is_not_null().any() else "sentences"
    return "task", "runs", "mean", "mean_against", "difference", f"{ends}_low {ends}_high", "holm"


@dataclass(frozen=True)
class RunComparison:
    """The table, and what a reader should know about it."""

    table: pl.DataFrame
    notes: tuple[str, ...]


def compare_runs(
    first: Sequence[Run],
    second: Sequence[Run],
    split: str,
    tasks: Sequence[str] = (),
    *,
    level: float = 0.95,
    draws: int,
    seed: int,
    corpus: Sequence[Sentence] | None = None,
) -> RunComparison:
    """Compare the runs of two sides in every task that both have (`tasks`: only these).

    Whole documents are resampled where the runs' counts know them. For runs that were scored before, `corpus`
    has all sentences of the split with their documents.
    Among runs of one side that repeat each other, seed and all, only the first counts: a copy says nothing
    about how far runs differ. Raises `InputError` for a run that is on both sides or twice on one, for sides
    without a common task, for runs that have other sentences or no counts per sentence, and for a corpus with
    other sentences.
    """
    _check_places([*first, *second])
    sides = [{str(run.folder): run.config() for run in side} for side in (first, second)]
    common = [name for name in _tasks(sides[0]) if name in _tasks(sides[1])]
    unknown = [name for name in tasks if name not in common]
    if unknown or not common:
        raise InputError(
            f"{', '.join(unknown) or 'no task'}: not among the tasks of both sides; the first has "
            f"{', '.join(_tasks(sides[0]))}, the second {', '.join(_tasks(sides[1]))}"
        )
    (first, repeated), (second, repeated_against) = without_repeats(first), without_repeats(second)
    rows: list[dict[str, Any]] = []
    notes = [*repeated, *repeated_against]
    resampled: dict[str, list[str]] = {}
    for name in (task for task in common if not tasks or task in tasks):
        chosen = [
            [run for run in side if name in configs[str(run.folder)]["tasks"]]
            for side, configs in zip((first, second), sides, strict=True)
        ]
        used = [configs[str(run.folder)] for runs, configs in zip(chosen, sides, strict=True) for run in runs]
        task = _kind_of_all(name, used)
        _check_scored_alike(name, task, used)
        found = _counts(chosen, split, name, corpus)
        if found is None:
            notes.append(f"{name}: no sentence of {split} is annotated: left out")
            continue
        units, counts = found
        resampled.setdefault(units.described(), []).append(name)
        notes += [
            f"{name}: the runs {where} --against are of several setups: {', '.join(names)}"
            for where, side in zip(("before", "after"), chosen, strict=True)
            if len(names := _setups(side)) > 1
        ]
        summed = [units.sums(side) for side in counts]
        result = compare_setups(
            summed[0], summed[1], task().metric().score,
            effective=units.effective, level=level, draws=draws, seed=seed,
        )  # fmt: skip
        rows.append(
            {
                "task": name, "score": task.score, "sentences": counts[0].shape[1],
                "documents": units.count if units.name == "documents" else None,
                "runs": len(counts[0]), "runs_against": len(counts[1]),
                "mean": result.first, "mean_against": result.second, "difference": result.difference,
                **{
                    f"{key}_{end}": value
                    for key in _INTERVALS
                    for end, value in zip(("low", "high"), getattr(result, key), strict=True)
                },
                "p_sentences": result.p_sentences, "p": result.p,
            }
        )  # fmt: skip
    if not rows:
        raise InputError("; ".join(notes))
    for described, names in resampled.items():
        of = "" if len(resampled) == 1 else f" for {', '.join(names)}"
        notes.append(f"resampled{of}: {described}")
    notes += _between(first, second)
    table = pl.DataFrame(rows, schema={key: kind for key, kind in SCHEMA.items() if key != "holm"}).fill_nan(
        None
    )
    tested = table.select(pl.col("p").fill_null(pl.col("p_sentences"))).to_series().to_numpy()
    several = pl.min_horizontal("runs", "runs_against") > 1
    if table.filter(~several).height:
        notes.append("a side has a single run in some task: nothing is known there of runs with other seeds")
    if alike := table.filter(several & pl.col("seeds_low").is_null())["task"].to_list():
        notes.append(f"{', '.join(alike)}: the runs of each side score the same: no interval over other runs")
    return RunComparison(
        table.with_columns(holm=pl.Series(holm(tested))).select(SCHEMA.names()), tuple(notes)
    )


def _kind_of_all(name: str, configs: Sequence[Mapping[str, Any]]) -> type[Task]:
    """The class of a task in these runs; raises `InputError` if they have different tasks of this name."""
    kinds = [kind_of(name, config.get("instances")) for config in configs]
    for key in ("kind", "layers", "score"):
        values = {str(getattr(kind, key)) for kind in kinds}
        if len(values) > 1:
            raise InputError(
                f"{name}: the runs have different tasks of this name ({key} {' or '.join(sorted(values))}): "
                "compare runs of the same, or choose other tasks with --tasks"
            )
    return kinds[0]


def _check_scored_alike(name: str, task: type[Task], configs: Iterable[Mapping[str, Any]]) -> None:
    settings = [setting_values(name, config) for config in configs]
    for key in task.scored_by:
        values = {str(given.get(key, getattr(task(), key))).lower() for given in settings}
        if len(values) > 1:
            raise InputError(
                f"{name}: the runs are scored by different {name}.{key} ({', '.join(sorted(values))}): "
                "compare runs with the same, or choose other tasks with --tasks"
            )


def _units(tables: Sequence[pl.DataFrame], corpus: Sequence[Sentence] | None, task: str, split: str) -> Units:
    """The units of sentences, by the corpus or the first run that knows their documents."""
    if corpus is None:
        each = (table["document"].to_list() for table in tables)
        return units_of(next((documents for documents in each if any(documents)), [""] * tables[0].height))
    numbers, keys = tables[0]["sentence"].to_list(), tables[0]["key"].to_list()
    if max(numbers, default=0) >= len(corpus) or keys != [
        run_tables.key_of(corpus[number]) for number in numbers
    ]:
        raise InputError(
            f"{task}: --corpus has other sentences in {split} than the runs are scored on: use their corpus"
        )
    return units_of([corpus[number].document for number in numbers])


def _counts(
    sides: Sequence[Sequence[Run]], split: str, task: str, corpus: Sequence[Sentence] | None
) -> tuple[Units, list[Float[np.ndarray, "run sentence count"]]] | None:
    """The units, and each side's counts on the same sentences; `None` if none is annotated for the task."""
    tables = [
        [run_tables.read_counts(run, split).filter(pl.col("task") == task).sort("sentence") for run in side]
        for side in sides
    ]
    model = tables[0][0]
    for table, run in zip(chain(*tables), chain(*sides), strict=True):
        if table["key"].to_list() != model["key"].to_list():
            raise InputError(
                f"{task}: {run.folder} and {sides[0][0].folder} are scored on different sentences "
                f"({counted(table.height, 'sentence')} and {model.height:,} of {split}): compare runs on one "
                "corpus"
            )
    if model.is_empty():
        return None
    width = model["counts"][0].len()
    for table, run in zip(chain(*tables), chain(*sides), strict=True):
        if (table["counts"].list.len() != width).any():
            raise InputError(
                f"{task}: {run.folder} has other counts per sentence than {sides[0][0].folder}, as if by "
                f"another version of mtl; write them again with 'mtl evaluate {run.folder} --split {split}'"
            )
    units = _units([*chain(*tables)], corpus, task, split)
    return units, [np.array([table["counts"].to_list() for table in side]) for side in tables]


def _between(first: Sequence[Run], second: Sequence[Run]) -> list[str]:
    """A note that names every key in which the two sides differ: each may cause a difference of scores."""
    made = sizes_told_apart([settings_of_run(run) for run in (*first, *second)])
    ours, theirs = (
        {one.identity: one for one in side}.values() for side in (made[: len(first)], made[len(first) :])
    )
    keys = dict.fromkeys(key for one in ours for other in theirs for key in one.differing(other))
    return [f"the two sides differ in {', '.join(keys)}"] if keys else []


def _check_places(runs: Sequence[Run]) -> None:
    places = [run.folder.resolve() for run in runs]
    for run in runs:
        if places.count(run.folder.resolve()) > 1:
            raise InputError(f"{run.folder} appears twice: name every run once, on one side")


def _tasks(configs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(task for config in configs.values() for task in config["tasks"]))


def _setups(side: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(setup.name for setup in setups_of([settings_of_run(run) for run in side])))

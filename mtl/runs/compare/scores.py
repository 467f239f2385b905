"""The scores of several runs: in one table, against open heads, and two sets of runs on the same sentences.

`history_of` is the learning curve of one run, and `compare_runs` the table of `mtl compare`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float

from mtl.config.effective import settings_in, unused_keys
from mtl.config.instances import kind_of, setting_values
from mtl.errors import InputError
from mtl.probes.report.data import HeadsKept
from mtl.probes.statistics.compared_runs import Units, compare_setups, units_of
from mtl.probes.statistics.significance import holm
from mtl.probes.tables import table_files
from mtl.probes.tables.heads_table import last_gates
from mtl.probes.tables.table_files import ColumnUnit, by_catalogue, types_of
from mtl.runs.compare.comparable import gates_of
from mtl.runs.compare.run_set import RunSet, RunWithSetup
from mtl.runs.compare.settings import settings_of
from mtl.runs.compare.setups import setups_of, words_of
from mtl.runs.folder import run_tables
from mtl.runs.folder.run import Run, mapping_in_file
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Task


def scores_of(runs: RunSet, split: str, score: Mapping[str, str]) -> pl.DataFrame:
    """Per run and task, the score on a split from metrics.json (`score` names it for each task).

    A score that is no number, such as a correlation with a constant, is left out with a note, and so is a run
    without scores. Raises `InputError` for a damaged file.
    """
    rows: list[dict[str, Any]] = []
    for run in runs:
        if not run.has("metrics.json"):
            runs.notes.append(f"{run.name} is not finished (no metrics.json): left out")
            continue
        try:
            metrics = mapping_in_file(run.folder / "metrics.json")
        except InputError as error:
            reason = "it is not JSON" if error.__cause__ else "it holds no scores by split and task"
            raise InputError(_unreadable(run, reason)) from error
        if not _has_scores(metrics):
            raise InputError(_unreadable(run, "it holds no scores by split and task"))
        if split not in metrics:
            runs.notes.append(
                f"{run.name} has no scores on {split}: left out; there are {', '.join(metrics)}"
            )
            continue
        for task, of_task in metrics[split].items():
            if score.get(task) not in of_task:
                continue
            value = of_task[score[task]]
            if not isinstance(value, int | float):
                raise InputError(_unreadable(run, f"the {score[task]} of {task} is not a number"))
            if not math.isfinite(value):
                runs.notes.append(
                    f"{run.name}: the {score[task]} of {task} on {split} is not a number: left out"
                )
                continue
            rows.append({"run": run.name, "task": task, "score": float(value)})
    return pl.DataFrame(rows, schema={"run": pl.String, "task": pl.String, "score": pl.Float64})


def learned_nothing(
    metrics: Mapping[str, Mapping[str, Mapping[str, float]]], score: Mapping[str, str]
) -> dict[str, str]:
    """The tasks of which a run has learned nothing, each with a line that says why.

    `metrics` are its scores by split and task, `score` names the main one of each task. On no split is it
    above that of giving all items one label (`same_answer_scores`), or above 0 in tasks without such an
    answer.
    """
    found = {}
    for task, name in score.items():
        splits = {split: of[task] for split, of in metrics.items() if name in of.get(task, {})}
        same = {split: max(of.get("majority", 0.0), 0.0) for split, of in splits.items()}
        if splits and all(of[name] <= same[split] + 1e-9 for split, of in splits.items()):
            values = ", ".join(f"{of[name]:.2f} on {split}" for split, of in splits.items())
            best = (
                f"one label for all items scores {', '.join(f'{value:.2f}' for value in same.values())}"
                if any("majority" in of for of in splits.values())
                else "0 is the least possible"
            )
            found[task] = f"{task}: nothing was learned: {name} {values}, where {best}"
    return found


def _unreadable(run: RunWithSetup, reason: str) -> str:
    return f"{run.name}/metrics.json cannot be read ({reason}): leave the run out, or train it again"


def _has_scores(metrics: Mapping[str, Any]) -> bool:
    """Whether these are scores by split and task."""
    return all(
        isinstance(by_task, Mapping) and all(isinstance(of_task, Mapping) for of_task in by_task.values())
        for by_task in metrics.values()
    )


def history_of(run: Run, score: Mapping[str, str]) -> pl.DataFrame:
    """Per evaluation and task, the score on dev: task, update, score.

    Raises `InputError` if history.csv cannot be read.
    """
    path = run.folder / "history.csv"
    try:
        table = table_files.read_csv(path)
        columns = {task: f"dev/{task}/{name}" for task, name in score.items()}
        scores = [
            pl.col(column).cast(pl.Float64).alias(task)
            for task, column in columns.items()
            if column in table.columns
        ]
        by_task = table.select(pl.col("update").cast(pl.Int64).alias(""), *scores)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{path} cannot be read: no learning curve of this run") from error
    rows = by_task.unpivot(index="", variable_name="task", value_name="score")
    score_of = pl.col("score").cast(pl.Float64)
    return rows.filter(score_of.is_finite()).select("task", update=pl.col(""), score=score_of)


KEEPING = ("penalty", "target_open")
"""Keys of `gates` that set how many heads are kept."""
MOST_SETUPS = 16
"""The largest number of setups that a figure can distinguish."""


def heads_kept_of(runs: RunSet, split: str, score: Mapping[str, str], tasks: Sequence[str] = ()) -> HeadsKept:
    """The scores and open heads of runs.

    Runs without masks have all heads open. Cut runs (`mtl prune`), and runs that started from one, have the
    heads that are left. Runs that repeat another one are left out.

    Raises `InputError` if no run has masks, none has scores, or the encoders differ.
    """
    left = {run.name: run.settings.heads_kept for run in runs if run.settings.heads_kept is not None}
    runs = runs.without_repeats()
    runs.check_encoders()
    masked = runs.where(lambda run: run.has("gates.parquet"))
    last = last_gates(gates_of(masked or runs, tasks, shared_once=False))
    if whole := [run.name for run in runs if run not in masked and run.name not in left]:
        without = counted(len(whole), "run")
        runs.notes.append(f"{without} without masks (the first, {whole[0]}) stand at all heads")
    heads = last.group_by("run", "task").len()["len"][0]
    open_heads = last.group_by("run", "task").agg(kept=pl.col("open").sum().cast(pl.Int64))
    start = len(runs.notes)
    scores = scores_of(runs, split, score)
    if tasks:
        scores = scores.filter(pl.col("task").is_in(tasks))
    if scores.is_empty():
        raise InputError("; ".join([*runs.notes[start:], f"no scores on {split}"]))
    cut = pl.DataFrame([*left.items()], {"run": pl.String, "left": pl.Int64}, orient="row")
    table = (
        scores.join(open_heads, on=["run", "task"], how="left")
        .join(_settings(runs), on="run")
        .join(cut, on="run", how="left")
        .with_columns(pl.coalesce("kept", "left", pl.lit(heads)).alias("kept"))
        .select("task", "setup", "setting", "seed", "run", "kept", "score")
        .sort("setup", "kept", "seed", "score", "run")
    )
    return HeadsKept(by_catalogue(table), heads)


def _settings(runs: RunSet) -> pl.DataFrame:
    """The setup and seed of each run and, in `setting`, its values of the keys in `KEEPING`.

    Runs are of one setup if they differ only in these keys, the number of heads left and their seeds.
    """
    gates = [dict(run.config.get("gates", {})) for run in runs]
    settings: list[str | None] = [
        ", ".join(_kept_by(run.config, keys)) for run, keys in zip(runs, gates, strict=True)
    ]
    alike = [
        dataclasses.replace(
            settings_of({**run.config, "gates": keys}, run.run.status(), run.folder), heads_kept=None
        )
        for run, keys in zip(runs, gates, strict=True)
    ]
    setups = [setup.name for setup in setups_of(alike)]
    if len(set(setups)) > MOST_SETUPS:
        runs.notes.append(
            f"{counted(len(set(setups)), 'setup is', 'setups are')} too many to be told apart: only "
            "their points are drawn, no lines"
        )
        setups, settings = ["runs of many setups"] * len(runs), [None] * len(runs)
    return pl.DataFrame(
        {
            "run": [run.name for run in runs],
            "setup": setups,
            "setting": pl.Series(settings, dtype=pl.String),
            "seed": [run.settings.seed for run in runs],
        }
    )


def _kept_by(config: Mapping[str, Any], gates: dict[str, Any]) -> list[str]:
    """The settings in `KEEPING` that have an effect, in words; removes all in `KEEPING` from `gates`.

    A penalty has no effect beside a target, unless both are for kinds of attention.
    """
    values = {key: gates.pop(key, None) for key in KEEPING}
    if config.get("pruning", "none") == "none":
        return []
    unused = unused_keys(settings_in(config))
    return [
        word
        for key, value in values.items()
        if value is not None and f"gates.{key}" not in unused
        for word in words_of(
            f"gates.{key}", dict(sorted(value.items())) if isinstance(value, Mapping) else value
        )
    ]


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


def known_of_runs(table: pl.DataFrame) -> bool:
    """Whether anything is known of runs with other seeds, in any task."""
    return bool(table["both_low"].is_not_null().any())


def columns_of_paper(table: pl.DataFrame) -> tuple[str, ...]:
    """The columns of the table in LaTeX (`table_files.in_print`); of intervals the widest that is known."""
    ends = "both" if known_of_runs(table) else "sentences"
    return "task", "runs", "mean", "mean_against", "difference", f"{ends}_low {ends}_high", "holm"


@dataclass(frozen=True)
class RunComparison:
    """The table, and what a reader should know about it."""

    table: pl.DataFrame
    notes: tuple[str, ...]
    names: tuple[str, str]
    """The setups of the two sides; `first` and `second` if one has several, or both have the same."""


def compare_runs(
    first: Iterable[Run],
    second: Iterable[Run],
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
    notes: list[str] = []
    sides = [RunSet.of(side, notes) for side in (first, second)]
    _check_places([*chain(*sides)])
    known = [list(dict.fromkeys(task for run in side for task in run.config["tasks"])) for side in sides]
    common = [name for name in known[0] if name in known[1]]
    unknown = [name for name in tasks if name not in common]
    if unknown or not common:
        raise InputError(
            f"{', '.join(unknown) or 'no task'}: not among the tasks of both sides; the first has "
            f"{', '.join(known[0])}, the second {', '.join(known[1])}"
        )
    sides = [side.without_repeats() for side in sides]
    rows: list[dict[str, Any]] = []
    resampled: dict[str, list[str]] = {}
    compared: tuple[list[RunWithSetup], list[RunWithSetup]] = [], []
    for name in (task for task in common if not tasks or task in tasks):
        chosen = [[run for run in side if name in run.settings.tasks] for side in sides]
        used = [run.config for run in chain(*chosen)]
        task = _kind_of_all(name, used)
        _check_scored_alike(name, task, used)
        found = _counts(chosen, split, name, corpus)
        if found is None:
            notes.append(f"{name}: no sentence of {split} is annotated: left out")
            continue
        units, counts = found
        for every, side in zip(compared, chosen, strict=True):
            every += side
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
    if keys := sides[0].differing(sides[1]):
        notes.append(f"the two sides differ in {', '.join(keys)}")
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
        table.with_columns(holm=pl.Series(holm(tested))).select(SCHEMA.names()),
        tuple(notes),
        _names(*compared),
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
    sides: Sequence[Sequence[RunWithSetup]], split: str, task: str, corpus: Sequence[Sentence] | None
) -> tuple[Units, list[Float[np.ndarray, "run sentence count"]]] | None:
    """The units, and each side's counts on the same sentences; `None` if none is annotated for the task."""
    tables = [
        [
            run_tables.read_counts(run.run, split).filter(pl.col("task") == task).sort("sentence")
            for run in side
        ]
        for side in sides
    ]
    model = tables[0][0]
    for table, run in zip(chain(*tables), chain(*sides), strict=True):
        if table["key"].sort().to_list() != model["key"].sort().to_list():
            raise InputError(
                f"{task}: {run.folder} and {sides[0][0].folder} are scored on different sentences "
                f"({counted(table.height, 'sentence')} and {model.height:,} of {split}): compare runs on one "
                "corpus"
            )
    tables = [[_in_order_of(model, table) for table in side] for side in tables]
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


def _in_order_of(model: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    """The same sentences in the order of `model`: files that are joined with others have another one.

    Sentences of the same words are told apart by their documents, if both tables know the same.
    """
    by = ["key", "document"]
    if not model.select(by).sort(by).equals(table.select(by).sort(by)):
        by = ["key"]
    places, rows = (
        one.select(by).with_row_index().sort(by, maintain_order=True)["index"].to_numpy()
        for one in (model, table)
    )
    return table[rows[np.argsort(places)]]


def _check_places(runs: Sequence[RunWithSetup]) -> None:
    places = [run.folder.resolve() for run in runs]
    for run in runs:
        if places.count(run.folder.resolve()) > 1:
            raise InputError(f"{run.folder} appears twice: name every run once, on one side")


def _names(first: Sequence[RunWithSetup], second: Sequence[RunWithSetup]) -> tuple[str, str]:
    setups = setups_of([run.settings for run in (*first, *second)])
    sides = [{setup.name for setup in side} for side in (setups[: len(first)], setups[len(first) :])]
    if [len(side) for side in sides] == [1, 1] and sides[0] != sides[1]:
        return sides[0].pop(), sides[1].pop()
    return "first", "second"


def _setups(side: Sequence[RunWithSetup]) -> list[str]:
    return list(dict.fromkeys(setup.name for setup in setups_of([run.settings for run in side])))

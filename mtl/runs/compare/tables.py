"""Tables over several runs, read from their folders: gates, measures on heads, scores."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from mtl.config.random_labels import DRAWN
from mtl.errors import InputError, as_input_error, counted
from mtl.heads.gate_file import LEARNED, read_gates
from mtl.probes.measures.table import MADE_BY_PROBING
from mtl.probes.tables import heads_table, table_files
from mtl.probes.tables.gates_table import last_gates, name_draws
from mtl.runs.compare.settings import MASKS, comparable, settings_of_run
from mtl.runs.folder.content import Content
from mtl.runs.folder.run import Run
from mtl.tasks.variants import task_of

MAY_DIFFER = MASKS
"""In what runs of one regime may differ: masks, of which a note tells."""
SAME = ("split", "corpus", "centroids", "final_special", "precision")
"""Settings of probing in which compared runs must agree."""
MOST_NOTES = 4
"""Notes that an error names before it counts the others."""


class NoMasks(InputError):
    """None of the runs has a mask."""


def gates_of(
    runs: Sequence[Run], tasks: Sequence[str] = (), *, shared_once: bool = True
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """All rows of the runs' gates.parquet with `learned`, `run`, `seed`, `draw`; notes on runs without masks.

    `learned` is `open` before the target's final choice forced heads (`LEARNED`), `draw` that of the random
    labels of its task (`DRAWN`); several have a task each (`name_draws`).

    `tasks` chooses among the tasks (empty: all); with `shared_once` a mask that tasks share is taken once,
    named after them all. Raises `InputError` if no run has masks of these tasks, a table is damaged, or the
    encoders differ.
    """
    check_encoders({str(run.folder): encoder_of(run) for run in runs})
    parts, notes = [], []
    for run in runs:
        path = run.folder / "gates.parquet"
        if not path.is_file():
            notes.append(f"{run.folder} has no masks (no gates.parquet): left out")
            continue
        part = _chosen(_read(path), tasks, str(run.folder), notes)
        if part is not None:
            parts.append(
                (_shared_once(part, run) if shared_once else part).with_columns(
                    learned=LEARNED, run=pl.lit(str(run.folder)), seed=pl.lit(int(run.config()["seed"])),
                    draw=_draw(run),
                )
            )  # fmt: skip
    if not parts:
        raise NoMasks(str(nothing_left(notes, "nothing to draw: give runs trained with --pruning=dynamic")))
    return name_draws(pl.concat(parts)), tuple(notes)


def _draw(run: Run) -> pl.Expr:
    """The draw of random labels of each mask that is of a task with such labels, alone or with others."""
    tasks = pl.col("task").str.split("+").list.eval(pl.element().map_elements(task_of, pl.String))
    random = tasks.list.eval(pl.element().is_in(DRAWN)).list.any()
    return pl.when(random).then(pl.lit(settings_of_run(run).draw, pl.Int64))


def heads_of(folders: Sequence[Path], tasks: Sequence[str] = ()) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """All measures on the folders' heads, with `regime`, `run` and `seed`, and notes.

    A folder that is no run holds the probes of an encoder before training (`static`, seed 0). Of a run only
    the tasks that it was trained on are taken, and rows that belong to no task. Runs of two tasks are of the
    regime `pair` if another run has more tasks, else `joint`. Left out are runs of variants or with random
    labels, and those that were trained otherwise than most, but for their masks. Raises `InputError`
    if no table is left, one is damaged, or encoders or settings of probing differ.
    """
    parts, notes = [], []
    compared = [path for path in folders if _is_run(path) and _is_comparison(Run.open(path))]
    if compared:
        names = ", ".join(path.name for path in compared[:4]) + (", …" if len(compared) > 4 else "")
        runs = counted(len(compared), "run")
        notes.append(
            f"{runs} with variants of a task or random labels left out of the measures on heads by regime: "
            f"{names}"
        )
    folders = [path for path in folders if path not in compared]
    probed = {str(path): Run.open(path) for path in folders if _is_probed_run(path)}
    check_encoders({name: encoder_of(run) for name, run in probed.items()})
    made = {name: settings_of_run(run) for name, run in probed.items()}
    alike, otherwise = comparable(made, MAY_DIFFER)
    notes += [f"measures on heads by regime: {note}" for note in otherwise]
    folders = [path for path in folders if str(path) not in made or str(path) in alike]
    encoders: dict[str, Content] = {}
    settings = {}
    most = max((len(Run.open(path).config()["tasks"]) for path in folders if _is_run(path)), default=0)
    for folder in folders:
        path = folder / "heads.parquet"
        if not path.is_file():
            notes.append(f"{folder} was not probed (no heads.parquet): left out; 'mtl probe' makes it")
            continue
        with as_input_error():
            table, provenance = heads_table.read(path)
        if not table.filter(pl.col("measure").is_in(MADE_BY_PROBING)).is_empty():
            settings[str(folder)] = {key: provenance.get(key, "") for key in SAME}
        table = _finite(table, path, notes)
        regime, seed = "static", 0
        trained = [name for name in table["task"].unique(maintain_order=True) if name]
        if _is_run(folder):
            run = Run.open(folder)
            config = run.config()
            trained, seed = list(config["tasks"]), int(config["seed"])
            regime = "stl" if len(trained) == 1 else "pair" if len(trained) == 2 and most > 2 else "joint"
            encoders[str(folder)] = encoder_of(run)
        else:
            encoders[str(folder)] = Content(provenance.get("target", ""))
        part = _chosen(table.filter(pl.col("task").is_in(trained)), tasks, str(folder), notes)
        if part is not None:
            part = pl.concat([part, table.filter(pl.col("task") == "")])
            parts.append(part.with_columns(regime=pl.lit(regime), run=pl.lit(str(folder)), seed=pl.lit(seed)))
    if not parts:
        raise nothing_left(notes, "nothing to draw: give probed runs")
    check_encoders(encoders)
    _check_settings(settings)
    return pl.concat(parts), (*notes, *_missing_runs(parts))


def _finite(table: pl.DataFrame, path: Path, notes: list[str]) -> pl.DataFrame:
    """The rows whose value is finite; others are noted."""
    finite = table.filter(pl.col("value").is_finite().fill_null(False))
    if finite.height < table.height:
        lost = counted(table.height - finite.height, "value")
        notes.append(f"{path}: {lost} not finite: left out")
    return finite


def nothing_left(notes: Sequence[str], fix: str) -> InputError:
    """The error where every run was left out: the first notes, the number of further ones, and the fix."""
    more = [f"{len(notes) - MOST_NOTES} more like these"] if len(notes) > MOST_NOTES else []
    return InputError("; ".join([*notes[:MOST_NOTES], *more, fix]))


def _is_comparison(run: Run) -> bool:
    """Whether a run has a task that others are only compared with: a variant, or one with random labels."""
    tasks = run.config()["tasks"]
    return any(task_of(name) != name or name in DRAWN for name in tasks)


def _is_probed_run(folder: Path) -> bool:
    return _is_run(folder) and (folder / "heads.parquet").is_file()


def _is_run(folder: Path) -> bool:
    return (folder / "config.yaml").exists()


def scores_of(
    runs: Sequence[Run], split: str, score: Mapping[str, str]
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Per run and task the score (`score` names it for each task) on a split, from metrics.json; and notes.

    A score that is no number, such as a correlation with a constant, is left out with a note. Raises
    `InputError` for a damaged file.
    """
    rows: list[dict[str, Any]] = []
    notes = []
    for run in runs:
        try:
            metrics: Any = json.loads((run.folder / "metrics.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            notes.append(f"{run.folder} is not finished (no metrics.json): left out")
            continue
        except (OSError, ValueError) as error:
            raise InputError(_unreadable(run, "it is not JSON")) from error
        if not _has_scores(metrics):
            raise InputError(_unreadable(run, "it holds no scores by split and task"))
        if split not in metrics:
            notes.append(f"{run.folder} has no scores on {split}: left out; there are {', '.join(metrics)}")
            continue
        for task, of_task in metrics[split].items():
            if score.get(task) not in of_task:
                continue
            value = of_task[score[task]]
            if not isinstance(value, int | float):
                raise InputError(_unreadable(run, f"the {score[task]} of {task} is not a number"))
            if not math.isfinite(value):
                notes.append(
                    f"{run.folder}: the {score[task]} of {task} on {split} is not a number: left out"
                )
                continue
            rows.append({"run": str(run.folder), "task": task, "score": float(value)})
    return pl.DataFrame(rows, schema={"run": pl.String, "task": pl.String, "score": pl.Float64}), tuple(notes)


def _unreadable(run: Run, reason: str) -> str:
    return f"{run.folder}/metrics.json cannot be read ({reason}): leave the run out, or train it again"


def _has_scores(metrics: object) -> bool:
    """Whether this is split -> task -> scores."""
    return isinstance(metrics, Mapping) and all(
        isinstance(by_task, Mapping) and all(isinstance(of_task, Mapping) for of_task in by_task.values())
        for by_task in metrics.values()
    )


def history_of(run: Run, score: Mapping[str, str]) -> pl.DataFrame:
    """Per evaluation and task the score on dev: task, update, score.

    Raises `InputError` if history.csv cannot be read.
    """
    path = run.folder / "history.csv"
    try:
        table = table_files.read_csv(path)
        columns = {task: f"dev/{task}/{name}" for task, name in score.items()}
        parts = [
            table.select(
                task=pl.lit(task),
                update=pl.col("update").cast(pl.Int64),
                score=pl.col(column).cast(pl.Float64),
            ).filter(pl.col("score").is_finite())
            for task, column in columns.items()
            if column in table.columns
        ]
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{path} cannot be read: no learning curve of this run") from error
    return (
        pl.concat(parts)
        if parts
        else pl.DataFrame(schema={"task": pl.String, "update": pl.Int64, "score": pl.Float64})
    )


def encoder_of(run: Run) -> Content:
    """The encoder from which a run started, directly or through other runs."""
    config = run.config()
    source = config.get("init_from")
    if source and (Path(source) / "config.yaml").exists():
        return encoder_of(Run.open(source))
    return Content(encoder_in(config), run.status().get("encoder_fingerprint"))


def encoder_in(config: Mapping[str, Any]) -> str:
    """The encoder that a run's configuration names; of a model from scratch, its architecture."""
    architecture = config.get("seq2seq", {}).get("architecture")
    return f"{architecture} from scratch" if architecture else str(config["encoder"]["name"])


def check_encoders(encoders: Mapping[str, Content]) -> None:
    """Raise `InputError` if the runs (the keys) have more than one encoder (the values)."""
    first = next(iter(encoders.items()), None)
    for run, encoder in encoders.items():
        if first is not None and encoder.another_encoder(first[1]):
            places = [f"{name} of {of.place}" for name, of in (first, (run, encoder))]
            files = ", whose files differ" if encoder.place == first[1].place else ""
            raise InputError(f"runs of different encoders: {', '.join(places)}{files}; give runs of one")


def _read(path: Path) -> pl.DataFrame:
    """The table of a gates.parquet; raises `InputError` if it is damaged or a last gate is no number."""
    try:
        table = read_gates(path)
        last = last_gates(table)
        unknown = last.filter(~pl.col("gate").is_finite().fill_null(False) | pl.col("open").is_null()).height
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: cannot be read ({reason}); train the run again") from error
    if unknown:
        raise InputError(f"{path}: cannot be used ({unknown} gates are not numbers); train the run again")
    return table


def _chosen(table: pl.DataFrame, tasks: Sequence[str], run: str, notes: list[str]) -> pl.DataFrame | None:
    """The rows of the chosen tasks; `None`, and a note, if there are none of them."""
    known = list(table["task"].unique(maintain_order=True))
    absent = [task for task in tasks if task not in known]
    if absent:
        notes.append(f"{run} has nothing on {', '.join(absent)}, only on {', '.join(known)}")
    part = table.filter(pl.col("task").is_in(tasks)) if tasks else table
    return None if part.is_empty() else part


def _shared_once(gates: pl.DataFrame, run: Run) -> pl.DataFrame:
    """Rows of one task, named after all, if the run's tasks share a mask."""
    tasks = list(gates["task"].unique(maintain_order=True))
    if len(tasks) == 1 or run.config().get("gates", {}).get("scope") != "shared":
        return gates
    return gates.filter(pl.col("task") == tasks[0]).with_columns(task=pl.lit("+".join(tasks)))


def _check_settings(settings: dict[str, dict[str, str]]) -> None:
    first = next(iter(settings), "")
    for run, values in settings.items():
        for key in SAME:
            if values[key] != settings[first][key]:
                raise InputError(
                    f"probes that cannot be compared: {first} has {key}={settings[first][key]}, {run} "
                    f"{key}={values[key]}; probe both alike"
                )


def missing_seeds(table: pl.DataFrame, *by: str) -> list[tuple[tuple[str, ...], str]]:
    """The groups, by the values of the columns `by`, that lack seeds of other groups, with those seeds.

    Only groups that share a seed, directly or through further groups, are compared: runs with seeds of their
    own, for claims, lack none of the others.
    """
    groups = table.group_by(by, maintain_order=True).agg(pl.col("seed").unique())
    linked: list[set[int]] = []
    for present in groups["seed"]:
        joined = set(present).union(*(seeds for seeds in linked if seeds & set(present)))
        linked = [seeds for seeds in linked if not seeds & joined] + [joined]
    missing = []
    for *names, present in groups.iter_rows():
        lacking = next(seeds for seeds in linked if seeds >= set(present)).difference(present)
        if lacking:
            missing.append((tuple(names), ", ".join(map(str, sorted(lacking)))))
    return missing


def _missing_runs(heads: Sequence[pl.DataFrame]) -> list[str]:
    """Notes on seeds that some trained regime of a task lacks, from the measures of all runs."""
    runs = pl.concat([table.select("task", "regime", "seed").unique(maintain_order=True) for table in heads])
    trained = runs.filter((pl.col("regime") != "static") & (pl.col("task") != ""))
    return [
        f"no {regime} run of {task} with seed {seeds}"
        for (task, regime), seeds in missing_seeds(trained, "task", "regime")
    ]

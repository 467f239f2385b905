"""What is measured on the heads of several runs in one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from mtl.config.instances import kinds_in, only_compared
from mtl.errors import InputError, as_input_error
from mtl.probes.measures.table import MADE_BY_PROBING, SKILLS
from mtl.probes.tables import heads_table
from mtl.runs.compare.alike import comparable
from mtl.runs.compare.encoders import check_encoders, encoder_of
from mtl.runs.compare.keys import MASKS, listed
from mtl.runs.compare.left_out import chosen_of, missing_seeds, nothing_left, without_repeats
from mtl.runs.compare.settings import settings_of_run
from mtl.runs.folder.content import Content
from mtl.runs.folder.run import Run
from mtl.tasks.in_words import counted

MAY_DIFFER = MASKS
"""The keys in which runs of one regime may differ: those of masks."""
SAME = ("split", "corpus", "centroids", "final_special", "precision")
"""The settings of probing in which compared runs must agree."""
OF_MASKS = "masks"
"""The setting whether masks were applied, in which compared runs with masks must agree."""


@dataclass(frozen=True)
class MeasuredHeads:
    """What a folder's heads.parquet holds on its own tasks."""

    rows: pl.DataFrame
    """The rows with finite values, of the tasks that the run was trained on and of no task."""
    tasks: tuple[str, ...]
    """The tasks that have rows, in the table's order."""
    provenance: Mapping[str, str]
    probed: bool
    """Whether it has measures of probing."""
    lost: int
    """The number of values that are not finite."""
    lost_shares: int
    """The number of those that are skills or their chance levels."""


def read_heads(folder: Path) -> MeasuredHeads:
    """The heads.parquet of a run, or of an encoder before training; raises `InputError` if it is damaged."""
    with as_input_error():
        return heads_in(folder, *heads_table.read(folder / "heads.parquet"))


def heads_in(folder: Path, whole: pl.DataFrame, provenance: Mapping[str, str]) -> MeasuredHeads:
    """What a folder's heads.parquet, with this table and provenance, holds on its own tasks."""
    table = heads_table.in_categories(whole.drop("choice"))
    finite = table["value"].is_finite().fill_null(False)
    lost = table["measure"].filter(~finite)
    measures = table["measure"].unique()
    tasks = [name for name in table["task"].unique(maintain_order=True) if name]
    if _is_run(folder):
        trained = Run(folder).config()["tasks"]
        tasks = [name for name in tasks if name in trained]
    return MeasuredHeads(
        table.filter(finite & table["task"].is_in([*tasks, ""])),
        tuple(tasks),
        provenance,
        measures.is_in(MADE_BY_PROBING).any(),
        len(lost),
        int(lost.is_in([*SKILLS, *SKILLS.values()]).sum()),
    )


def probed_with(provenance: Mapping[str, str], masked: bool) -> dict[str, str]:
    """The settings of probing by which runs are compared; `masked`: whether the run has masks."""
    return {key: provenance.get(key, "") for key in (*SAME, *(OF_MASKS,) * masked)}


def has_masks(run: Run) -> bool:
    """Whether a run was trained with masks."""
    return str(run.config().get("pruning", "none")) != "none" and not run.derivation()


def heads_of(
    folders: Sequence[Path],
    tasks: Sequence[str] = (),
    *,
    read: Callable[[Path], MeasuredHeads] = read_heads,
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """All measures on the folders' heads, with `regime`, `run` and `seed` but without `choice`; and notes.

    A folder that is no run holds the probes of an encoder before training (`static`, seed 0). Of a run, only
    rows of the tasks that it was trained on, and rows of no task, are taken. Runs of two tasks are of the
    regime `pair` if another run has more tasks, otherwise `joint`. Left out are runs with a task that others
    are only compared with (half of a task, or one with random labels), runs that repeat another one, and runs
    that were trained otherwise than most in more than their masks. `read` reads a folder's table. Raises
    `InputError` if no table is left, a table is damaged, or encoders or settings of probing differ.
    """
    parts, notes = [], []
    runs = {path: Run.open(path) for path in folders if _is_run(path)}
    trained = {path: run.config()["tasks"] for path, run in runs.items()}
    compared = [path for path, run in runs.items() if only_compared(kinds_in(run.config()).values())]
    if compared:
        notes.append(
            f"{counted(len(compared), 'run')} with half of a task or random labels left out of the "
            f"measures on heads by regime: {listed([path.name for path in compared])}"
        )
    folders = [path for path in folders if path not in compared]
    probed = {
        str(path): runs[path] for path in folders if path in runs and (path / "heads.parquet").is_file()
    }
    check_encoders({name: encoder_of(run) for name, run in probed.items()})
    observed, copies = without_repeats(list(probed.values()))
    notes += copies
    folders = [path for path in folders if str(path) not in probed or runs[path] in observed]
    made = {str(run.folder): settings_of_run(run) for run in observed}
    alike, otherwise = comparable(made, MAY_DIFFER)
    notes += [f"measures on heads by regime: {note}" for note in otherwise]
    folders = [path for path in folders if str(path) not in made or str(path) in alike]
    encoders: dict[str, Content] = {}
    settings = {}
    most = max((len(trained[path]) for path in folders if path in trained), default=0)
    for folder in folders:
        path = folder / "heads.parquet"
        if not path.is_file():
            notes.append(f"{folder} was not probed (no heads.parquet): left out; 'mtl probe' makes it")
            continue
        table = read(folder)
        if table.probed:
            masked = folder in runs and has_masks(runs[folder])
            settings[str(folder)] = probed_with(table.provenance, masked)
        if table.lost:
            notes.append(f"{path}: {counted(table.lost, 'value')} not finite: left out")
        regime, seed = "static", 0
        if folder in runs:
            size, seed = len(trained[folder]), int(runs[folder].config()["seed"])
            regime = "stl" if size == 1 else "pair" if size == 2 and most > 2 else "joint"
            encoders[str(folder)] = encoder_of(runs[folder])
        else:
            encoders[str(folder)] = Content(table.provenance.get("target", ""))
        chosen = chosen_of(table.tasks, tasks, str(folder), notes)
        if chosen:
            of_run = {
                column: pl.lit(name, pl.Categorical)
                for column, name in {"regime": regime, "run": str(folder)}.items()
            }
            rows = table.rows.filter(pl.col("task").is_in([*chosen, ""]))
            parts.append(rows.with_columns(**of_run, seed=pl.lit(seed)))
    if not parts:
        raise nothing_left(notes, "nothing to draw: give probed runs")
    check_encoders(encoders)
    check_settings(settings)
    heads = pl.concat(parts, rechunk=True)
    return heads, (*notes, *_missing_runs(heads))


def _is_run(folder: Path) -> bool:
    return (folder / "config.yaml").exists()


def check_settings(settings: Mapping[str, Mapping[str, str]]) -> None:
    """Raise `InputError` if the runs (the keys) were not probed alike (`probed_with`)."""
    known: dict[str, str] = {}
    for run, values in settings.items():
        for key, value in values.items():
            first = known.setdefault(key, run)
            if value != settings[first][key]:
                raise InputError(
                    f"probes that cannot be compared: {first} has {key}={settings[first][key]}, {run} "
                    f"{key}={value}; probe both alike"
                )


def _missing_runs(heads: pl.DataFrame) -> list[str]:
    """Notes on seeds that some trained regime of a task lacks."""
    runs = heads_table.runs_of(heads)
    trained = runs.filter((pl.col("regime") != "static") & (pl.col("task") != ""))
    return [
        f"no {regime} run of {task} with seed {seeds}"
        for (task, regime), seeds in missing_seeds(trained, "task", "regime")
    ]

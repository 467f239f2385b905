"""Which runs of a folder a report is about; the others are left out and noted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mtl.probes.report.sweep import SweepEvidence
from mtl.runs.compare.comparable import RunWithSetup, line, with_setups
from mtl.runs.compare.encoders import encoder_of
from mtl.runs.compare.left_out import repeats
from mtl.runs.compare.origins import UNREADABLE
from mtl.runs.compare.settings import settings_of_run
from mtl.runs.folder.run import Run
from mtl.tasks.in_words import counted
from mtl.tasks.order import place_of

MOST_SETTINGS = 12
"""The largest number of a sweep's settings whose runs the report shows below the sweep's table."""
UNFINISHED = ("running", "interrupted", "failed")
"""The states of runs whose scores and masks are not final yet."""


def runs_in(
    folder: Path, tasks: Sequence[str], sweep: SweepEvidence | None, notes: list[str]
) -> list[RunWithSetup]:
    """The finished runs in a folder or up to two folders below, without repeats, in the report's order.

    `tasks` is the order of tasks. Of a sweep, trials that were stopped early and all but the best
    `MOST_SETTINGS` settings are left out. `notes` gets a line on whatever is left out.
    """
    runs = _of_sweep(sweep, _finished(folder, tasks, notes), notes)
    repeated, left_out = repeats([(run.run.folder, run.setup, run.settings) for run in runs])
    notes += left_out
    return [run for run in runs if run.run.folder not in repeated]


def folders_with(folder: Path, name: str, outside: Sequence[Path] = ()) -> list[Path]:
    """The folders, at most two below this one, that hold a file of this name.

    Hidden folders are left out, and so are those in `outside` and all below them.
    """
    paths = [path.parent for depth in ("", "*/", "*/*/") for path in sorted(folder.glob(f"{depth}{name}"))]
    return [
        path
        for path in paths
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and not any(path.is_relative_to(other) for other in outside)
    ]


def in_order(paths: Sequence[Path]) -> list[Path]:
    """Folders of runs by number of tasks, tasks, settings and seeds, then all other paths as given.

    So what is computed from runs depends neither on their names nor on the order in which they are given.
    """
    keys: dict[Path, tuple[object, ...]] = {}
    for path in paths:
        if not (path / "config.yaml").is_file():
            continue
        try:
            made = settings_of_run(Run(path))
        except UNREADABLE:
            continue  # its reader says what is wrong
        places = [place_of(task) for task in made.tasks]
        keys[path] = len(places), places, made.identity, made.observation, made.heads_kept or 0
    runs = sorted((path for path in paths if path in keys), key=keys.__getitem__)
    return [*runs, *(path for path in paths if path not in keys)]


def _finished(folder: Path, tasks: Sequence[str], notes: list[str]) -> list[RunWithSetup]:
    """The finished runs with readable configurations."""
    configs: dict[Path, dict[str, Any]] = {}
    for path in folders_with(folder, "config.yaml"):
        try:
            state = Run(path).status().get("state")
        except UNREADABLE as error:
            notes.append(_unusable(path / "status.json", error))
            continue
        try:
            config = _configuration(Run.open(path))
        except UNREADABLE as error:
            notes.append(_unusable(path / "config.yaml", error))
            continue
        if state in UNFINISHED:
            notes.append(f"{path} is not finished ({state}): left out")
            continue
        configs[path] = config
    runs = with_setups([Run(path) for path in configs])
    number = {task: place for place, task in enumerate(tasks)}

    def order(run: RunWithSetup) -> tuple[object, ...]:
        trained = [number.get(task, len(number)) for task in run.config["tasks"]]
        of_setup = (0, []) if run.setup.single else (len(trained), trained)
        return of_setup, run.setup.name, trained, run.config["seed"], run.run.folder

    return sorted(runs, key=order)


def _unusable(file: Path, error: Exception) -> str:
    """The note on a damaged file, which names it once."""
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
    whole = " ".join(str(cause).split())
    if whole.startswith(f"{file.parent}/") and not whole.startswith(str(file)):  # another file of the run
        return f"{whole}: left out"
    return f"{file} cannot be used ({line(cause, file)}): left out"


def _configuration(run: Run) -> dict[str, Any]:
    """A run's configuration; raises one of `UNREADABLE` if it lacks what a report needs."""
    config = run.config()
    if not isinstance(config, Mapping):
        raise ValueError("it holds no keys")
    if not config["tasks"] or not config["encoder"]["name"]:
        raise ValueError("no tasks or no encoder")
    settings_of_run(run)  # reads every group of keys
    encoder_of(run)
    return config


def _of_sweep(sweep: SweepEvidence | None, runs: list[RunWithSetup], notes: list[str]) -> list[RunWithSetup]:
    """Of a sweep's runs, those that were not stopped early, of the best settings; without a sweep, all."""
    if sweep is None:
        return runs
    states = {trial.name: trial.state for trial in sweep.trials}
    ended = [run for run in runs if states.get(run.run.folder.name) != "stopped"]
    if len(ended) < len(runs):
        notes.append(f"{counted(len(runs) - len(ended), 'trial')} stopped early: in the sweep's table only")
    ranks = {name: place for place, name in enumerate(sweep.table()["trial"])}
    by_rank = sorted(ended, key=lambda run: ranks.get(run.run.folder.name, len(ranks)))
    settings = list(dict.fromkeys(run.setup.name for run in by_rank))
    if len(settings) > MOST_SETTINGS:
        notes.append(
            f"of {counted(len(settings), 'setting')} only the {MOST_SETTINGS} with the best trials "
            "are shown below the sweep"
        )
    return [run for run in ended if run.setup.name in settings[:MOST_SETTINGS]]

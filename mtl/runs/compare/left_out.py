"""What tables over several runs leave out, notes on it, and the error if nothing is left."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path

import polars as pl

from mtl.errors import InputError
from mtl.probes.report.data import Setup
from mtl.runs.compare.settings import Settings, settings_of_run
from mtl.runs.compare.setups import setups_of
from mtl.runs.folder.run import Run

MOST_NOTES = 4
"""The largest number of notes that an error repeats; it counts the others."""


def nothing_left(notes: Sequence[str], fix: str) -> InputError:
    """The error if every run was left out: the first notes, the number of further ones, and the fix."""
    more = [f"{len(notes) - MOST_NOTES} more like these"] if len(notes) > MOST_NOTES else []
    return InputError("; ".join([*notes[:MOST_NOTES], *more, fix]))


def chosen_of(known: Sequence[str], tasks: Sequence[str], run: str, notes: list[str]) -> list[str]:
    """The chosen ones (`tasks`; empty: all) among the tasks that a run's table has; notes those it lacks."""
    absent = [task for task in tasks if task not in known]
    if absent:
        notes.append(f"{run} has nothing on {', '.join(absent)}, only on {', '.join(known)}")
    return [task for task in known if task in tasks or not tasks]


def without_repeats(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """The runs without those that repeat an earlier one (`repeats`), and notes on the latter."""
    settings = [settings_of_run(run) for run in runs]
    made = zip((run.folder for run in runs), setups_of(settings), settings, strict=True)
    repeated, notes = repeats(list(made))
    return [run for run in runs if run.folder not in repeated], notes


def repeats(runs: Sequence[tuple[Path, Setup, Settings]]) -> tuple[set[Path], list[str]]:
    """The runs of an earlier one's setup that are no further observations, and notes on them.

    They have its tasks, seed, draws and masks, and start from the same run, if they start from one.
    """
    first: dict[tuple[Hashable, ...], Path] = {}
    repeated: dict[Path, str] = {}
    for folder, setup, made in runs:
        known = first.setdefault((setup.name, *made.observation), folder)
        if known != folder:
            repeated[folder] = f"{folder} repeats {known}, seed and all: left out"
    return set(repeated), list(repeated.values())


def missing_seeds(table: pl.DataFrame, *by: str) -> list[tuple[tuple[str, ...], str]]:
    """The groups, by the values of the columns `by`, that lack seeds of other groups, with those seeds.

    Only groups that share a seed, directly or through further groups, are compared: a group with seeds of its
    own, such as the runs for claims, lacks none of the others.
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

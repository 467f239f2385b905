"""From the name of a setup to its sets of tasks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from mtl.config.schema import DEFAULT_TASKS, NAMES, TASK_NAMES, TaskName
from mtl.errors import InputError, did_you_mean, plain_name
from mtl.registries import entry, names
from mtl.study.config import ProbesConfig, StudyConfig
from mtl.tasks.catalogue import TASKS
from mtl.tasks.variants import task_of

STATIC = "static"
NAMED = ("single", "pairs", *names("setups"))
"""The setups of several sets of tasks; those of packages are functions from tasks to sets."""
SETUPS = (STATIC, *NAMED, "all")
"""The setups that every study knows."""


def on_words(tasks: Sequence[str]) -> bool:
    """Whether some of the tasks label words, which is what heads are probed for."""
    return any(task_of(name) in DEFAULT_TASKS for name in tasks)


def measurable(tasks: Sequence[str], probes: ProbesConfig) -> tuple[str, ...]:
    """The measures that a run of these tasks has; probing needs labels of words, of a task or a `corpus`."""
    labelled = on_words(tasks) or probes.corpus is not None
    return tuple(name for name in probes.measures if name != "probes" or labelled)


def check_sets(study: StudyConfig) -> None:
    """Raise `InputError` for a name in `sets` that is taken, and for sets of no tasks or of unknown ones."""
    for name, tasks in study.sets.items():
        plain_name(name, "a name in sets")
        if name in SETUPS or name in NAMES:
            kind = "setup" if name in SETUPS else "task"
            raise InputError(
                f"sets: '{name}' is the name of a {kind} already: choose another name for the set"
            )
        if not tasks:
            raise InputError(f"sets: {name} is empty: list its tasks, for instance {name}: [pos, dep]")
        task_sets(name, study)


def task_sets(setup: str, study: StudyConfig) -> list[tuple[TaskName, ...]]:
    """The sets of tasks of a setup, in the catalogue's order; `static`, which trains nothing, has none.

    Raises `InputError` for unknown setups and tasks, and for setups that `train.tasks` does not allow.
    """
    tasks = tuple(study.train.chosen())
    if setup == STATIC:
        return []
    if setup == "single":
        return [(task,) for task in _known(tasks)]
    if setup == "pairs":
        if len(tasks) < 2:
            raise InputError(f"setup 'pairs' needs two tasks, but train.tasks is {', '.join(tasks)}")
        return list(itertools.combinations(_known(tasks), 2))
    if setup in names("setups"):
        sets: list[tuple[TaskName, ...]] = entry("setups", setup)(_known(tasks))
        return sets
    if setup == "all":
        return [_known(tasks)]
    given = study.sets.get(setup, setup.split("+"))
    beside = [name for name in NAMES if name not in TASK_NAMES and task_of(name) in tasks]
    beside += [name for name in TASK_NAMES if not TASKS[name].layers]
    for name in given:
        if name not in tasks and name not in beside:
            is_setup = name == setup
            of_study = [*study.sets, *SETUPS] if is_setup else []
            choices = [*tasks, *beside, *of_study]
            kind = "setup" if is_setup else f"task in setup '{setup}'"
            outside = f"; train.tasks leaves it out ({', '.join(tasks)})" if name in NAMES else ""
            raise InputError(f"unknown {kind}: '{name}'{outside or did_you_mean(name, choices)}")
    return [_known(given)]


def _known(names: Iterable[str]) -> tuple[TaskName, ...]:
    """The names as the configuration types them, in the catalogue's order."""
    chosen = set(names)
    return tuple(name for name in NAMES if name in chosen)

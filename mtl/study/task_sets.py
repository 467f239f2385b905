"""From the name of a setup to its sets of tasks."""

from __future__ import annotations

import dataclasses
import itertools
from pkgutil import resolve_name

from mtl.config.instances import PRESETS, halves_of, on_words, stands_for_task, whole_of
from mtl.config.schema import DEFAULT_TASKS, TASK_NAMES, TrainConfig
from mtl.corpora.load import corpus_read
from mtl.errors import InputError, did_you_mean, plain_name
from mtl.features import added
from mtl.probes.measures.groups import PROBED_KINDS
from mtl.study.config import ProbesConfig, StudyConfig
from mtl.tasks.catalogue import in_order_of_catalogue

PRETRAINED = "pretrained"
_ADDED = added(lambda feature: feature.setups)
NAMED = ("STL", "pairs", *_ADDED)
"""The setups with several sets of tasks; features add functions from tasks to sets."""
SETUPS = (PRETRAINED, *NAMED, "MTL")
"""The setups that every study knows."""


def measurable(config: TrainConfig, probes: ProbesConfig) -> tuple[str, ...]:
    """The measures of a run; probing needs labels of words, from one of its tasks or from `probes.corpus`."""
    labelled = on_words(map(type, config.chosen().values())) or probes.corpus is not None
    return tuple(name for name in probes.measures if name != "probes" or labelled)


def tasks_to_probe(config: TrainConfig) -> tuple[str, ...]:
    """The tasks for whose labels heads can be probed: the default ones, and named ones of suitable kinds."""
    return tuple(
        name
        for name, task in config.chosen().items()
        if (name in DEFAULT_TASKS or name in config.instances)
        and task.kind in PROBED_KINDS
        and 1 in task.sentences
        and not task.drawn
    )


def probed_for(config: TrainConfig) -> TrainConfig | None:
    """The tasks of a study for which heads are probed, and their corpora, without settings of training.

    `None`: every run finds the labels in its own corpus, and knows these tasks by name.
    """
    tasks = tasks_to_probe(config)
    if not any(name in config.instances or config.corpus.files_of(name) for name in tasks):
        return None
    found = dataclasses.replace(config, tasks=tasks)
    return TrainConfig(tasks=tasks, corpus=corpus_read(found), instances=found.instances)


def check_sets(study: StudyConfig) -> None:
    """Raise `InputError` for a name in `sets` that is taken, and for empty sets or unknown tasks."""
    for name, tasks in study.sets.items():
        plain_name(name, "a name in sets")
        if name in SETUPS or name in (*TASK_NAMES, *PRESETS, *study.train.instances):
            kind = "setup" if name in SETUPS else "task"
            raise InputError(
                f"sets: '{name}' is already the name of a {kind}: choose another name for the set"
            )
        if not tasks:
            raise InputError(f"sets: {name} is empty: list its tasks, for instance {name}: [pos, dep]")
        task_sets(name, study)


def task_sets(setup: str, study: StudyConfig) -> list[tuple[str, ...]]:
    """The sets of tasks of a setup, in the catalogue's order; none for `pretrained`, which trains nothing.

    Raises `InputError` for unknown setups and tasks, and for setups that `train.tasks` does not allow.
    """
    tasks = tuple(study.train.chosen())
    if setup == PRETRAINED:
        return []
    if setup == "STL":
        return [(task,) for task in tasks]
    if setup == "pairs":
        if len(tasks) < 2:
            raise InputError(f"setup 'pairs' needs two tasks, but train.tasks is {', '.join(tasks)}")
        return list(itertools.combinations(tasks, 2))
    if setup in _ADDED:
        sets: list[tuple[str, ...]] = resolve_name(_ADDED[setup])(tasks)
        for name in sorted({name for made in sets for name in made}.difference(tasks)):
            if not stands_for_task(name, study.train.instances):
                raise InputError(f"setup '{setup}': no task {name} can be trained: name the setups instead")
        return sets
    if setup == "MTL":
        return [tasks]
    given = study.sets.get(setup, setup.split("+"))
    instances = study.train.instances
    halves = (half for task in tasks for half in halves_of(task) if stands_for_task(half, instances))
    beside = [*halves, *PRESETS, *(name for name in instances if name not in tasks)]
    for name in given:
        if name not in tasks and name not in beside:
            is_setup = name == setup
            of_study = [*study.sets, *SETUPS] if is_setup else []
            choices = [*tasks, *beside, *of_study]
            kind = "setup" if is_setup else f"task in setup '{setup}'"
            outside = (
                f"; train.tasks leaves it out ({', '.join(tasks)})" if whole_of(name) in TASK_NAMES else ""
            )
            raise InputError(f"unknown {kind}: '{name}'{outside or did_you_mean(name, choices)}")
    return [in_order_of_catalogue(given)]

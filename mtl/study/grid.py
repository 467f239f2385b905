"""From a study's file to its runs: setups times masks times seeds."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import attrgetter, getitem
from pathlib import Path

from mtl.config.effective import different_keys, only_used, plain
from mtl.config.keys import known_keys_of
from mtl.config.parse import configuration_from
from mtl.config.schema import DEFAULT_TASKS, NAMES, TASK_NAMES, PruningRegime, TaskName, TrainConfig
from mtl.errors import InputError, did_you_mean, plain_name
from mtl.study.config import Block, Masks, StudyConfig
from mtl.study.planned import Planned
from mtl.study.study_claims import with_claims
from tasks.catalogue import TASKS
from tasks.twins import task_of, twins_of

STATIC, TWINS = "static", "twins"
REGIMES: dict[str, PruningRegime] = {"dynamic": "dynamic", "static": "static", "fixed": "fixed"}
_OF_THE_GRID = {
    "name": "the study names its runs",
    "runs": "runs are in the study's folder",
    "overwrite": "a study repeats what has changed",
    "seed": "give seeds: [...]",
    "tasks": "give train.tasks for the study's tasks, and setups",
    "pruning": "give masks: [...] in the grid",
    "init_from": "static masks start from the study's own run without masks",
    "gates.scope": "write dynamic_per_task or static_per_task",
    "wandb.group": "the study groups its runs",
    "wandb.job_type": "the study sets it",
    "wandb.tags": "the study tags its runs",
}
"""Keys of a run's configuration that the grid decides on, and what to write instead."""


def planned(study: StudyConfig, folder: Path) -> list[Planned]:
    """Every run of the grid, each after those that it needs; raises `InputError` for a bad grid.

    Runs without masks come first, then smaller sets of tasks before larger ones, so that runs that finish
    early can be compared.
    """
    check_train(study.train)
    for block in study.grid:
        if block.label is not None:
            plain_name(block.label, "a block's label")
    for name in study.sets:
        plain_name(name, "a name in sets")
    if probes_the_encoder(study) and not on_words(study.train.tasks):
        raise InputError(
            f"setup '{STATIC}' probes heads for labels of words, and train.tasks has no task on words "
            f"({', '.join(DEFAULT_TASKS)}): leave the setup out"
        )
    if not study.seeds:
        raise InputError("seeds is empty: give at least one, for instance seeds: [1, 2, 3]")
    runs: dict[str, Planned] = {}
    for block in study.grid:
        train = settings(study.train, block)
        seeds = study.seeds if block.seeds is None else block.seeds
        if not seeds:
            raise InputError("a block's seeds are empty: give at least one, or leave the key out")
        for setup, masks, seed in itertools.product(block.setups, block.masks, seeds):
            for tasks in task_sets(setup, study):
                cell = _Cell(study, folder, setup, tasks, seed)
                needs = None
                if masks.startswith("static"):
                    setup_of_source, other = _source(study, block, setup, tasks)
                    unpruned = dataclasses.replace(cell, setup=setup_of_source)
                    source = unpruned.run("none", settings(study.train, other), other.label, None)
                    _add(runs, source)
                    needs = source.name
                _add(runs, cell.run(masks, train, block.label, needs))
    return sorted(
        with_claims(list(runs.values()), folder),
        key=lambda run: (
            bool(run.claims_from),
            run.needs is not None,
            run.masks != "none",
            len(run.config.tasks),
            run.config.seed,
        ),
    )


def probes_the_encoder(study: StudyConfig) -> bool:
    """Whether the encoder before training is to be probed."""
    return any(STATIC in block.setups for block in study.grid)


def on_words(tasks: Sequence[str]) -> bool:
    """Whether some of the tasks label words, which is what heads are probed for."""
    return any(task_of(name) in DEFAULT_TASKS for name in tasks)


def check_train(train: TrainConfig) -> None:
    """Raise `InputError` if a key is given that the grid decides on."""
    for key in _OF_THE_GRID:
        given, default = attrgetter(key)(train), attrgetter(key)(TrainConfig())
        if key != "tasks" and given != default:
            raise InputError(f"train.{key} cannot be set for a study: {_OF_THE_GRID[key]}")
    for name in train.balancer.weights:
        if name not in train.tasks:
            raise InputError(
                f"unknown task in train.balancer.weights: '{name}'{did_you_mean(name, train.tasks)}"
            )
    if train.trainer.devices * train.trainer.num_nodes > 1:
        raise InputError(
            "train.trainer.devices and num_nodes cannot be more than 1 in a study, whose runs are one "
            "process each: give --jobs to have several at once"
        )
    if not train.tasks:
        raise InputError(f"train.tasks is empty: choose at least one of {', '.join(TASK_NAMES)}")


def task_sets(setup: str, study: StudyConfig) -> list[tuple[TaskName, ...]]:
    """The sets of tasks of a setup, in the catalogue's order."""
    tasks = tuple(study.train.chosen())
    if setup == STATIC:
        return []
    if setup == "single":
        return [(task,) for task in _known(tasks)]
    if setup == "pairs":
        if len(tasks) < 2:
            raise InputError(f"setup 'pairs' needs two tasks, but train.tasks is {', '.join(tasks)}")
        return list(itertools.combinations(_known(tasks), 2))
    if setup == TWINS:
        return [_twins(task) for task in _known(tasks)]
    if setup == "all":
        return [_known(tasks)]
    names = study.sets.get(setup, setup.split("+"))
    controls = [name for name in NAMES if name not in TASK_NAMES and task_of(name) in tasks]
    controls += [name for name in TASK_NAMES if not TASKS[name].layers]
    for name in names:
        if name not in tasks and name not in controls:
            is_setup = name == setup
            of_study = [STATIC, "single", "pairs", TWINS, "all"] if is_setup else []
            choices = [*tasks, *controls, *study.sets, *of_study]
            kind = "setup" if is_setup else f"task in setup '{setup}'"
            outside = f"; train.tasks leaves it out ({', '.join(tasks)})" if name in NAMES else ""
            raise InputError(f"unknown {kind}: '{name}'{outside or did_you_mean(name, choices)}")
    return [_known(names)]


def _known(names: Iterable[str]) -> tuple[TaskName, ...]:
    """The names as the configuration types them, in the catalogue's order."""
    chosen = set(names)
    return tuple(name for name in NAMES if name in chosen)


def _twins(task: TaskName) -> tuple[TaskName, ...]:
    names = twins_of(task)
    if not set(names) <= set(NAMES):
        raise InputError(
            f"setup '{TWINS}' is for tasks on words, and {task} is none: name the setups instead"
        )
    return names


def settings(train: TrainConfig, block: Block) -> TrainConfig:
    """The settings that the runs of a block share."""
    if not block.set:
        return train
    values = plain(dataclasses.asdict(train))
    for key, value in block.set.items():
        keys = known_keys_of(TrainConfig)
        if key not in keys:
            raise InputError(f"unknown key '{key}' in a block's set{did_you_mean(key, keys)}")
        if key in _OF_THE_GRID:
            raise InputError(f"{key} cannot be in a block's set: {_OF_THE_GRID[key]}")
        *path, last = key.split(".")
        reduce(getitem, path, values)[last] = value
    return configuration_from(TrainConfig, values, "a block's set")


def _source(study: StudyConfig, block: Block, setup: str, tasks: tuple[TaskName, ...]) -> tuple[str, Block]:
    """The setup and block of the run without masks that static masks start from.

    It is the run of the grid with this block's label, else the one without a label, else the only one. If the
    grid has none, the run is added with this block's settings.
    """
    sources = {
        other.label: (other_setup, other)
        for other in study.grid
        if "none" in other.masks
        for other_setup in other.setups
        if tasks in task_sets(other_setup, study)
    }
    for label in (block.label, None):
        if label in sources:
            return sources[label]
    if len(sources) > 1:
        raise InputError(
            f"static masks of {'+'.join(tasks)} could start from the runs labelled "
            f"{' or '.join(map(str, sources))}: give their block one of these labels"
        )
    return next(iter(sources.values()), (setup, dataclasses.replace(block, label=None)))


@dataclass(frozen=True)
class _Cell:
    """A setup and a seed of the grid; masks are added by `run`."""

    study: StudyConfig
    folder: Path
    setup: str
    tasks: tuple[TaskName, ...]
    seed: int

    def run(self, masks: Masks, train: TrainConfig, label: str | None, needs: str | None) -> Planned:
        everything = self.tasks == tuple(self.study.train.chosen()) and len(self.tasks) > 1
        base = self.setup if self.setup in self.study.sets else "all" if everything else "+".join(self.tasks)
        kind = [self.setup if self.setup in ("single", "pairs", TWINS) else base]
        kind += [part for part in (masks, label) if part not in ("none", None)]
        name = "-".join([base, *kind[1:], f"seed{self.seed}"])
        regime: PruningRegime = "none"
        if masks != "none":
            regime = REGIMES[masks.removesuffix("_per_task")]
        config = dataclasses.replace(
            train,
            name=name,
            runs=str(self.folder / "runs"),
            seed=self.seed,
            tasks=self.tasks,
            pruning=regime,
            init_from=None if needs is None else str(self.folder / "runs" / needs),
            gates=dataclasses.replace(
                train.gates, scope="per_task" if masks.endswith("_per_task") else "shared"
            ),
            wandb=dataclasses.replace(
                train.wandb,
                group=f"{self.folder.name} {' '.join(kind)}",
                job_type="train",
                tags=(self.folder.name, f"setup:{kind[0]}", f"masks:{masks}", *self.tasks),
            ),
        )
        probed = masks in self.study.probes.masks and on_words(self.tasks)
        return Planned(name, " ".join(kind), masks, only_used(config), needs, probed, label)


def _add(runs: dict[str, Planned], run: Planned) -> None:
    first = runs.setdefault(run.name, run)
    differing = different_keys(plain(dataclasses.asdict(first.config)), plain(dataclasses.asdict(run.config)))
    if differing:
        raise InputError(
            f"two blocks of the grid make the run {run.name} in different ways ({', '.join(differing[:3])}): "
            "give one of them a label"
        )

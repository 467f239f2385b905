"""From a study's file to its runs: setups times masks times seeds."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from mtl.config.effective import different_keys, only_used, plain
from mtl.config.parse import changed, placed
from mtl.config.schema import DEFAULT_TASKS, TASK_NAMES, TrainConfig
from mtl.errors import InputError, did_you_mean, plain_name
from mtl.study.config import KINDS, Block, Masks, ProbesConfig, StudyConfig
from mtl.study.extensions import MaskSource, MasksToMake, mask_sources, preparations
from mtl.study.grid.task_sets import (
    NAMED,
    STATIC,
    check_sets,
    measurable,
    on_words,
    probed_for,
    task_sets,
)
from mtl.study.jobs.job import Job
from mtl.study.measures.check_measures import check_measures
from mtl.tasks.in_words import counted

_OF_THE_GRID = {
    "name": "the study names its runs",
    "runs": "runs are in the study's folder",
    "overwrite": "a study repeats what has changed",
    "seed": "set seeds: [...]",
    "tasks": "set train.tasks to all tasks of the study, and setups to the sets trained",
    "pruning": "set masks: [...] in a block of the grid",
    "init_from": "static masks start from the study's own run without masks",
    "gates.scope": "write dynamic_per_task or static_per_task",
    "wandb.group": "the study groups its runs",
    "wandb.job_type": "the study sets it",
    "wandb.tags": "the study tags its runs",
}
"""Keys of a run's configuration that the grid sets, and what to write instead."""


def planned(study: StudyConfig, folder: Path) -> list[Job]:
    """Every run of the grid, each after those that it needs; raises `InputError` for a bad grid.

    Blocks come in the order of the file; in each, runs without masks first, then smaller sets of tasks before
    larger ones, so that runs that finish early can be compared. Runs that need others come last.
    """
    check_train(study.train)
    for block in study.grid:
        if block.label is not None:
            plain_name(block.label, "a block's label")
    check_sets(study)
    if probes_the_encoder(study) and not on_words(map(type, study.train.chosen().values())):
        raise InputError(
            f"setup '{STATIC}' probes heads for labels of words, and train.tasks has no task on words "
            f"({', '.join(DEFAULT_TASKS)}): leave the setup out"
        )
    if not study.seeds:
        raise InputError("seeds is empty: name at least one, for instance seeds: [1, 2, 3]")
    _check_once(study.seeds, "seeds")
    _check_claims(study)
    runs: dict[str, Job] = {}
    block_of: dict[str, int] = {}
    for number, block in enumerate(study.grid):
        train, probes = settings(study.train, block), probes_of(study, block)
        source = _made_by(block)
        if source is not None:
            source.check(block)
        if block.masks_of is not None:
            _check_masks_of(block)
        seeds = study.seeds if block.seeds is None else block.seeds
        if not seeds:
            raise InputError("a block's seeds are empty: name at least one, or leave the key out")
        _check_once(seeds, "a block's seeds")
        _check_draws(study, block)
        for setup, masks, seed in itertools.product(block.setups, block.masks, seeds):
            for tasks, draws in _drawn(task_sets(setup, study), block):
                cell = _Cell(study, folder, setup, tasks, seed, probes, draws)
                if source is not None:
                    for kind, wanted in source.kinds(block, setup, tasks):
                        label = kind if block.label is None else f"{block.label}-{kind}"
                        _add(runs, cell.made(masks, train, label, MasksToMake(source.key, wanted)))
                    continue
                for run in _with_sources(cell, block, masks, train):
                    _add(runs, run)
        block_of = dict.fromkeys(runs, number) | block_of

    in_order = list(runs.values())
    for preparation in preparations():
        in_order = preparation.with_sources(in_order, folder)
    planned = {run.name: run for run in in_order}

    def place(run: Job) -> tuple[object, ...]:
        sizes = len(run.config.tasks), run.config.seed
        waits = _is_prepared(run, planned), _sources_before(run, planned)
        return *waits, block_of[run.name], run.masks != "none", *sizes

    return sorted(planned.values(), key=place)


def _check_draws(study: StudyConfig, block: Block) -> None:
    """Raise `InputError` for draws of random labels that no run of the block has, or that are given twice."""
    for task, draws in block.draws.items():
        sets = [tasks for setup in block.setups for tasks in task_sets(setup, study)]
        if not any(task in tasks for tasks in sets):
            raise InputError(
                f"draws.{task}: no setup of the block ({', '.join(block.setups)}) trains the task {task}: "
                f"add setup {task}"
            )
        if not dataclasses.replace(study.train, tasks=(task,)).task(task).drawn:
            raise InputError(f"draws.{task}: the labels of {task} are no random draw: leave it out")
        if not draws:
            raise InputError(f"draws.{task} is empty: add at least one, or leave the key out")
        _check_once(draws, f"draws.{task}")
        if f"instances.{task}.draw" in (placed(TrainConfig, key) for key in block.set):
            raise InputError(f"draws.{task} sets the draws: leave {task}.draw out of the block's set")


def _drawn(sets: Sequence[tuple[str, ...]], block: Block) -> Iterator[tuple[tuple[str, ...], dict[str, int]]]:
    """The sets of tasks, each once for every draw of its tasks' labels, with the draws by task."""
    for tasks in sets:
        given = {task: draws for task, draws in block.draws.items() if task in tasks}
        for draws in itertools.product(*given.values()):
            yield tasks, dict(zip(given, draws, strict=True))


def _made_by(block: Block) -> MaskSource | None:
    """What makes the masks of a block's runs; `None`: they are learned, or read from files."""
    found = [source for source in mask_sources() if getattr(block, source.key) is not None]
    if len(found) > 1:
        raise InputError(
            f"{' and '.join(source.key for source in found)} each make a block's masks: set only one"
        )
    return found[0] if found else None


def _is_prepared(run: Job, runs: Mapping[str, Job]) -> bool:
    """Whether a run, or one that it needs, is prepared from other runs."""
    return bool(run.prepared_from) or (run.needs is not None and _is_prepared(runs[run.needs], runs))


def _sources_before(run: Job, runs: Mapping[str, Job]) -> int:
    """The number of runs that have to be finished one after another before this one starts."""
    return 0 if run.needs is None else 1 + _sources_before(runs[run.needs], runs)


def _with_sources(cell: _Cell, block: Block, masks: Masks, train: TrainConfig) -> list[Job]:
    """A run of a block, after those that it needs: the one it starts from, or the one whose masks it has.

    `train` are the block's settings.
    """
    study = cell.study
    if KINDS[masks].regime == "static":
        setup, other = _source(study, block, cell.setup, cell.tasks)
        unpruned = dataclasses.replace(cell, setup=setup, probes=probes_of(study, other))
        source = unpruned.run("none", settings(study.train, other), other.label, None)
        return [source, cell.run(masks, train, block.label, source.name)]
    if block.masks_of is not None:
        setup, other, learned = _mask_source(study, block, masks, cell.tasks)
        of_other = settings(study.train, other)
        of_mask = dataclasses.replace(cell, setup=setup, probes=probes_of(study, other))
        before = _with_sources(of_mask, other, learned, of_other)
        path = cell.folder / "runs" / before[-1].name / "gates.parquet"
        train = dataclasses.replace(train, gates=dataclasses.replace(train.gates, masks=str(path)))
        return [*before, cell.run(masks, train, block.label, before[-1].name)]
    return [cell.run(masks, train, block.label, None)]


def _check_masks_of(block: Block) -> None:
    """Raise `InputError` for a block that cannot have the masks of another one."""
    if not all(KINDS[masks].regime == "fixed" for masks in block.masks):
        raise InputError(f"masks_of={block.masks_of}: set masks: [fixed] or [fixed_per_task] beside it")
    if "gates.masks" in block.set or _made_by(block) is not None:
        others = " and ".join(["gates.masks", *(source.key for source in mask_sources())])
        raise InputError(f"masks_of={block.masks_of} names the masks: leave {others} out")


def _mask_source(
    study: StudyConfig, block: Block, masks: Masks, tasks: tuple[str, ...]
) -> tuple[str, Block, Masks]:
    """The setup, block and kind of masks of the runs that learn a block's fixed masks (`masks_of`)."""
    per_task = KINDS[masks].per_task
    sources = [
        (setup, other, learned)
        for other in study.grid
        if other.label == block.masks_of
        for setup in other.setups
        if tasks in task_sets(setup, study)
        for learned in other.masks
        if KINDS[learned].learned and KINDS[learned].per_task == per_task
    ]
    if len(sources) != 1:
        wanted = "with a mask per task" if per_task else "with one mask"
        raise InputError(
            f"masks_of={block.masks_of}: {counted(len(sources), 'block')} of this label learn masks of "
            f"{'+'.join(tasks)} ({wanted}): name the label of one block that does"
        )
    return sources[0]


def _check_once(seeds: Sequence[int], what: str) -> None:
    """Raise `InputError` for a seed that is given twice: its runs would be the same."""
    twice = next((seed for seed in seeds if seeds.count(seed) > 1), None)
    if twice is not None:
        raise InputError(f"{what} name {twice} twice: name each once")


def _check_claims(study: StudyConfig) -> None:
    """Raise `InputError` if `claims.seeds` is empty, or has a seed with which no run learns masks."""
    seeds = {
        seed
        for block in study.grid
        for masks in block.masks
        if KINDS[masks].learned
        for seed in (study.seeds if block.seeds is None else block.seeds)
    }
    absent = [str(seed) for seed in study.claims.seeds or () if seed not in seeds]
    if absent or study.claims.seeds == ():
        raise InputError(
            f"claims.seeds: no run of the grid learns masks with seed {', '.join(absent) or '(none given)'}"
        )


def probes_the_encoder(study: StudyConfig) -> bool:
    """Whether the study probes the encoder before training."""
    return any(STATIC in block.setups for block in study.grid)


def check_train(train: TrainConfig) -> None:
    """Raise `InputError` for settings that a study's runs cannot have, such as keys that the grid sets."""
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
            "process each: --jobs=N runs several at once"
        )
    if not train.tasks:
        raise InputError(f"train.tasks is empty: choose at least one of {', '.join(TASK_NAMES)}")


def settings(train: TrainConfig, block: Block) -> TrainConfig:
    """The settings that the runs of a block share; raises `InputError` for keys that it cannot set."""
    for key in block.set:
        if key in _OF_THE_GRID:
            raise InputError(f"{key} cannot be in a block's set: {_OF_THE_GRID[key]}")
    if not block.set:
        return train
    return changed(TrainConfig, plain(dataclasses.asdict(train)), block.set, "a block's set")


def probes_of(study: StudyConfig, block: Block) -> ProbesConfig:
    """The measurements on the heads of a block's runs; raises `InputError` for those that cannot be made."""
    probes = study.probes
    if block.probes:
        values = plain(dataclasses.asdict(probes))
        probes = changed(ProbesConfig, values, block.probes, "a block's probes")
    check_measures(probes)
    return probes


def _source(study: StudyConfig, block: Block, setup: str, tasks: tuple[str, ...]) -> tuple[str, Block]:
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
            f"{' or '.join(map(str, sources))}: label their block with one of these"
        )
    return next(iter(sources.values()), (setup, dataclasses.replace(block, label=None)))


@dataclass(frozen=True)
class _Cell:
    """A setup and a seed of the grid; masks are added by `run`."""

    study: StudyConfig
    folder: Path
    setup: str
    tasks: tuple[str, ...]
    seed: int
    probes: ProbesConfig
    draws: Mapping[str, int]
    """The draws of random labels by task, where the block gives them."""

    def made(self, masks: Masks, train: TrainConfig, label: str, makes: MasksToMake) -> Job:
        """The run under masks that the study makes; draws of one kind (`label`) differ in their seeds."""
        path = self.folder / "masks" / f"{'+'.join(self.tasks)}-{label}-draw{self.seed}.parquet"
        gates = dataclasses.replace(train.gates, masks=str(path))
        run = self.run(masks, dataclasses.replace(train, gates=gates), label, None)
        return dataclasses.replace(run, makes=makes)

    def run(self, masks: Masks, train: TrainConfig, label: str | None, needs: str | None) -> Job:
        """The run with these masks; `needs` names the run that it starts from, or whose masks it has."""
        everything = self.tasks == tuple(self.study.train.chosen()) and len(self.tasks) > 1
        base = self.setup if self.setup in self.study.sets else "all" if everything else "+".join(self.tasks)
        kind = [self.setup if self.setup in NAMED else base]
        kind += [part for part in (masks, label) if part not in ("none", None)]
        # The study's own draws have no number in their runs' names: more draws repeat none of its runs.
        train = dataclasses.replace(train, tasks=self.tasks)
        own = all(draw == vars(train.task(task))["draw"] for task, draw in self.draws.items())
        draws = [] if own else ["draw" + "_".join(map(str, self.draws.values()))]
        own_draws = {} if own else {f"instances.{task}.draw": draw for task, draw in self.draws.items()}
        train = settings(train, Block(set=own_draws))
        name = "-".join([base, *kind[1:], *draws, f"seed{self.seed}"])
        regime = KINDS[masks].regime
        config = dataclasses.replace(
            train,
            name=name,
            runs=str(self.folder / "runs"),
            seed=self.seed,
            pruning=regime,
            init_from=str(self.folder / "runs" / str(needs)) if regime == "static" else None,
            gates=dataclasses.replace(train.gates, scope=KINDS[masks].scope),
            wandb=dataclasses.replace(
                train.wandb,
                group=f"{self.folder.name} {' '.join(kind)}",
                job_type="train",
                tags=(self.folder.name, f"setup:{kind[0]}", f"masks:{masks}", *self.tasks),
            ),
        )
        others = probed_for(dataclasses.replace(train, tasks=tuple(self.study.train.chosen())))
        measures = measurable(others or config, self.probes) if masks in self.probes.masks else ()
        probes = dataclasses.replace(self.probes, masks=(), measures=measures) if measures else None
        others = others if "probes" in measures else None
        return Job(name, " ".join(kind), only_used(config), needs, probes, label, probed_for=others)


def _add(runs: dict[str, Job], run: Job) -> None:
    """Add a run; raises `InputError` if another block makes a different run of the same name."""
    first = runs.setdefault(run.name, run)
    if first is run:
        return
    differing = different_keys(first.settings, run.settings)
    if first.probes != run.probes:
        differing.append("probes")
    if differing:
        raise InputError(
            f"two blocks of the grid make the run {run.name} in different ways ({', '.join(differing[:3])}): "
            "label one of them"
        )

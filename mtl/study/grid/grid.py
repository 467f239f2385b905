"""From a study's file to its runs: setups times masks times seeds."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from mtl.config.effective import different_keys
from mtl.config.marks import refuse
from mtl.config.parse import placed
from mtl.config.schema import DEFAULT_TASKS, TrainConfig
from mtl.errors import InputError, plain_name
from mtl.study.config import KINDS, Block, Masks, StudyConfig, sources_of
from mtl.study.extensions import MasksToMake, preparations
from mtl.study.grid.cell import Cell, probes_of, settings
from mtl.study.grid.task_sets import STATIC, check_sets, on_words, task_sets
from mtl.study.jobs.job import Job
from mtl.tasks.in_words import counted


def planned(study: StudyConfig, folder: Path) -> list[Job]:
    """Every run of the grid, each after those that it needs; raises `InputError` for a bad grid.

    Blocks are in the order of the file. Within a block, runs without masks come first, and small sets of
    tasks before large ones, so that runs that finish early can be compared. Runs that need others come last.
    """
    refuse(study.FORBIDDEN, study)
    for block in study.grid:
        if block.label is not None:
            plain_name(block.label, "a block's label")
    check_sets(study)
    if probes_the_encoder(study) and not on_words(map(type, study.train.chosen().values())):
        raise InputError(
            f"setup '{STATIC}' probes heads for labels of words, and train.tasks has no task on words "
            f"({', '.join(DEFAULT_TASKS)}): leave the setup out"
        )
    _check_once(study.seeds, "seeds")
    _check_claims(study)
    runs: dict[str, Job] = {}
    block_of: dict[str, int] = {}
    for number, block in enumerate(study.grid):
        train, probes = settings(study.train, block), probes_of(study, block)
        refuse(block.FORBIDDEN, block)
        source = next(iter(sources_of(block)), None)
        if source is not None:
            refuse(source.forbidden, block)
        seeds = study.seeds if block.seeds is None else block.seeds
        _check_once(seeds, "a block's seeds")
        _check_draws(study, block)
        for setup, masks, seed in itertools.product(block.setups, block.masks, seeds):
            for tasks, draws in _drawn(task_sets(setup, study), block):
                cell = Cell(study, folder, setup, tasks, seed, probes, draws)
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
    by_name = {run.name: run for run in in_order}

    def chain(run: Job) -> list[Job]:
        """The run and those that have to finish, one after another, before it starts."""
        return [run] if run.needs is None else [run, *chain(by_name[run.needs])]

    def place(run: Job) -> tuple[object, ...]:
        waits = any(each.prepared_from for each in chain(run)), len(chain(run))
        sizes = len(run.config.tasks), run.config.seed
        return *waits, block_of[run.name], run.masks != "none", *sizes

    return sorted(by_name.values(), key=place)


def _drawn(sets: Sequence[tuple[str, ...]], block: Block) -> Iterator[tuple[tuple[str, ...], dict[str, int]]]:
    """Each set of tasks with every combination of the draws of its tasks' labels, by task."""
    for tasks in sets:
        given = {task: draws for task, draws in block.draws.items() if task in tasks}
        for draws in itertools.product(*given.values()):
            yield tasks, dict(zip(given, draws, strict=True))


def _with_sources(cell: Cell, block: Block, masks: Masks, train: TrainConfig) -> list[Job]:
    """A run of a block with the settings `train`, after the run that it starts from or whose masks it has."""
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
            f"masks_of={block.masks_of}: {counted(len(sources), 'block')} with this label learn masks of "
            f"{'+'.join(tasks)} ({wanted}): use the label of exactly one such block"
        )
    return sources[0]


def probes_the_encoder(study: StudyConfig) -> bool:
    """Whether the study probes the encoder before training."""
    return any(STATIC in block.setups for block in study.grid)


def _source(study: StudyConfig, block: Block, setup: str, tasks: tuple[str, ...]) -> tuple[str, Block]:
    """The setup and block of the run without masks that a run with static masks starts from.

    It is the run of the grid with this block's label, else the one without a label, else the only one. If the
    grid has none, it is a run with this block's settings, which is added.
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


def _add(runs: dict[str, Job], run: Job) -> None:
    """Add a run; raises `InputError` if another block makes a different run with the same name."""
    first = runs.setdefault(run.name, run)
    if first is run:
        return
    differing = different_keys(first.settings, run.settings)
    if first.probes != run.probes:
        differing.append("probes")
    if differing:
        raise InputError(
            f"two blocks of the grid make the run {run.name} with different settings "
            f"({', '.join(differing[:3])}): give one of the blocks a label"
        )


def _check_once(seeds: Sequence[int], what: str) -> None:
    """Raise `InputError` for a seed or draw that is given twice: the runs would be the same."""
    twice = next((seed for seed in seeds if seeds.count(seed) > 1), None)
    if twice is not None:
        raise InputError(f"{what} name {twice} twice: name each once")


def _check_draws(study: StudyConfig, block: Block) -> None:
    """Raise `InputError` for draws of random labels that no run of the block uses, or given twice."""
    for task, draws in block.draws.items():
        sets = [tasks for setup in block.setups for tasks in task_sets(setup, study)]
        if not any(task in tasks for tasks in sets):
            raise InputError(
                f"draws.{task}: no setup of the block ({', '.join(block.setups)}) trains the task {task}: "
                f"add setup {task}"
            )
        if not dataclasses.replace(study.train, tasks=(task,)).task(task).drawn:
            raise InputError(f"draws.{task}: the labels of {task} are not drawn at random: leave it out")
        if not draws:
            raise InputError(f"draws.{task} is empty: add at least one, or leave the key out")
        _check_once(draws, f"draws.{task}")
        if f"instances.{task}.draw" in (placed(TrainConfig, key) for key in block.set):
            raise InputError(f"draws.{task} sets the draws: leave {task}.draw out of the block's set")


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

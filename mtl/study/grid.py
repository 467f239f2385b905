"""From a study's file to its runs: setups times masks times seeds."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from pkgutil import resolve_name

from mtl.analysis.measuring import check_options
from mtl.config.effective import different_keys, only_used, plain
from mtl.config.keys import refuse_forbidden, shown_key
from mtl.config.parse import changed, full_key, out_of_range
from mtl.config.schema import DEFAULT_TASKS, TrainConfig
from mtl.errors import InputError, plain_name
from mtl.probes.measures.groups import GROUPS, MADE_BY
from mtl.study.config import (
    KINDS,
    NAMED,
    OF_THE_GRID,
    PRETRAINED,
    GridBlock,
    Masks,
    ProbesConfig,
    StudyConfig,
    check_sets,
    measurable,
    on_words,
    probed_for,
    task_sets,
)
from mtl.study.jobs import Job
from mtl.tasks.in_words import counted


def planned(study: StudyConfig, folder: Path) -> list[Job]:
    """Every run of the grid, each after those that it needs; raises `InputError` for a bad grid.

    Blocks are in the order of the file. Within a block, runs without masks come first, and small sets of
    tasks before large ones, so that runs that finish early can be compared. Runs that need others come last.
    """
    refuse_forbidden(study.FORBIDDEN, study)
    for block in study.grid:
        if block.label is not None:
            plain_name(block.label, "a block's label")
    check_sets(study)
    if probes_the_encoder(study) and not on_words(map(type, study.train.chosen().values())):
        raise InputError(
            f"setup '{PRETRAINED}' probes heads for labels of words, and train.tasks has no task on words "
            f"({', '.join(DEFAULT_TASKS)}): leave the setup out"
        )
    if probes_the_encoder(study) and study.train.encoder.weights == "random":
        raise InputError(
            f"setup '{PRETRAINED}' probes the pretrained encoder, and train.encoder.weights=random: set "
            "encoder.weights in the blocks that train with it"
        )
    _check_once(study.seeds, "seeds")
    _check_claims(study)
    runs: dict[str, Job] = {}
    block_of: dict[str, int] = {}
    for number, block in enumerate(study.grid):
        train, probes = settings(study.train, block), measurements_of(study, block)
        refuse_forbidden(block.FORBIDDEN, block)
        seeds = study.seeds if block.seeds is None else block.seeds
        _check_once(seeds, "a block's seeds")
        _check_draws(study, block)
        for setup, masks, seed in itertools.product(block.setups, block.masks, seeds):
            for tasks, draws in _drawn(task_sets(setup, study), block):
                cell = GridCell(study, folder, setup, tasks, seed, probes, draws)
                for run in _with_sources(cell, block, masks, train):
                    _add(runs, run)
        block_of = dict.fromkeys(runs, number) | block_of

    def chain(run: Job) -> list[Job]:
        """The run and those that have to finish, one after another, before it starts."""
        return [run] if run.needs is None else [run, *chain(runs[run.needs])]

    def place(run: Job) -> tuple[object, ...]:
        sizes = len(run.config.tasks), run.config.seed
        return len(chain(run)), block_of[run.name], run.masks != "none", *sizes

    return sorted(runs.values(), key=place)


def _drawn(
    sets: Sequence[tuple[str, ...]], block: GridBlock
) -> Iterator[tuple[tuple[str, ...], dict[str, int]]]:
    """Each set of tasks with every combination of the draws of its tasks' labels, by task."""
    for tasks in sets:
        given = {task: draws for task, draws in block.draws.items() if task in tasks}
        for draws in itertools.product(*given.values()):
            yield tasks, dict(zip(given, draws, strict=True))


def _with_sources(cell: GridCell, block: GridBlock, masks: Masks, train: TrainConfig) -> list[Job]:
    """A run of a block with the settings `train`, after the run that it starts from or whose masks it has."""
    study = cell.study
    if KINDS[masks].regime == "static":
        setup, other = _source(study, block, cell.setup, cell.tasks)
        unpruned = dataclasses.replace(cell, setup=setup, probes=measurements_of(study, other))
        source = unpruned.run("none", settings(study.train, other), other.label, None)
        return [source, cell.run(masks, train, block.label, source.name)]
    if block.masks_of is not None:
        setup, other, learned = _mask_source(study, block, masks, cell.tasks)
        of_other = settings(study.train, other)
        of_mask = dataclasses.replace(cell, setup=setup, probes=measurements_of(study, other))
        before = _with_sources(of_mask, other, learned, of_other)
        path = cell.folder / "runs" / before[-1].name / "gates.parquet"
        train = dataclasses.replace(train, gates=dataclasses.replace(train.gates, masks=str(path)))
        return [*before, cell.run(masks, train, block.label, before[-1].name)]
    return [cell.run(masks, train, block.label, None)]


def _mask_source(
    study: StudyConfig, block: GridBlock, masks: Masks, tasks: tuple[str, ...]
) -> tuple[str, GridBlock, Masks]:
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
    return any(PRETRAINED in block.setups for block in study.grid)


def _source(
    study: StudyConfig, block: GridBlock, setup: str, tasks: tuple[str, ...]
) -> tuple[str, GridBlock]:
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
            f"({', '.join(map(shown_key, differing[:3]))}): give one of the blocks a label"
        )


def _check_once(seeds: Sequence[int], what: str) -> None:
    """Raise `InputError` for a seed or draw that is given twice: the runs would be the same."""
    twice = next((seed for seed in seeds if seeds.count(seed) > 1), None)
    if twice is not None:
        raise InputError(f"{what} name {twice} twice: name each once")


def _check_draws(study: StudyConfig, block: GridBlock) -> None:
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
        if f"instances.{task}.draw" in (full_key(TrainConfig, key) for key in block.set):
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


def settings(train: TrainConfig, block: GridBlock) -> TrainConfig:
    """The settings that the runs of a block share; raises `InputError` for keys that a block cannot set."""
    if not block.set:
        return train
    made = changed(TrainConfig, plain(dataclasses.asdict(train)), block.set, "a block's set")
    for key, instead in OF_THE_GRID.items():
        value_of = attrgetter(key)  # a group such as `gates` may contain the key
        if key in block.set or value_of(made) != value_of(train):
            raise InputError(f"{key} cannot be in a block's set: {instead}")
    return made


def measurements_of(study: StudyConfig, block: GridBlock) -> ProbesConfig:
    """The measurements on the heads of a block's runs; raises `InputError` for impossible ones."""
    probes = study.probes
    if block.probes:
        values = plain(dataclasses.asdict(probes))
        probes = changed(ProbesConfig, values, block.probes, "a block's probes")
    check_measures(probes)
    return probes


@dataclass(frozen=True)
class GridCell:
    """The runs of a setup with one set of tasks and one seed, which differ in their masks."""

    study: StudyConfig
    folder: Path
    setup: str
    tasks: tuple[str, ...]
    seed: int
    probes: ProbesConfig
    draws: Mapping[str, int]
    """The draws of random labels by task, if the block names them."""

    def run(self, masks: Masks, train: TrainConfig, label: str | None, needs: str | None) -> Job:
        """The run with these masks; it starts from the run `needs`, or has its masks."""
        everything = self.tasks == tuple(self.study.train.chosen()) and len(self.tasks) > 1
        base = self.setup if self.setup in self.study.sets else "MTL" if everything else "+".join(self.tasks)
        kind = [self.setup if self.setup in NAMED else base]
        kind += [part for part in (masks, label) if part not in ("none", None)]
        # Names do not contain the study's own draws, so that adding draws repeats no run.
        train = dataclasses.replace(train, tasks=self.tasks)
        own = all(draw == vars(train.task(task))["draw"] for task, draw in self.draws.items())
        draws = [] if own else ["draw" + "_".join(map(str, self.draws.values()))]
        own_draws = {} if own else {f"instances.{task}.draw": draw for task, draw in self.draws.items()}
        train = settings(train, GridBlock(set=own_draws))
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
                group=f"{self.folder.name} {', '.join(kind)}",
                job_type="train",
                tags=(self.folder.name, f"setup:{kind[0]}", f"masks:{masks}", *self.tasks),
            ),
        )
        others = probed_for(dataclasses.replace(train, tasks=tuple(self.study.train.chosen())))
        measures = measurable(others or config, self.probes) if masks in self.probes.masks else ()
        probes = dataclasses.replace(self.probes, masks=(), measures=measures) if measures else None
        others = others if "probes" in measures else None
        return Job(name, ", ".join(kind), only_used(config), needs, probes, label, probed_for=others)


def check_measures(probes: ProbesConfig) -> None:
    """Raise `InputError` for settings with which a wanted measure would fail or be empty."""
    for fault in out_of_range(probes, "probes."):
        raise InputError(fault)
    check_options(probes.options)
    refuse_forbidden(probes.FORBIDDEN, probes)
    made = {name for maker, names in MADE_BY.items() if maker in probes.measures for name in names}
    for measure in probes.measures:
        if GROUPS[measure].check:
            resolve_name(GROUPS[measure].check)(probes, made)

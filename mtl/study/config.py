"""A study's file as typed values: its runs with their sets of tasks, their training, and what is measured on
their heads."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass, field
from operator import attrgetter
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from mtl.config.instances import PRESETS, halves_of, on_words, stands_for_task, whole_of, with_slots
from mtl.config.keys import Forbidden, OutputFolder
from mtl.config.schema import DEFAULT_TASKS, KIND_NAMES, TASK_NAMES, PruningRegime, Split, TrainConfig
from mtl.corpora.load import corpus_read
from mtl.errors import InputError, did_you_mean, plain_name
from mtl.features import added
from mtl.probes.appearance import Appearance
from mtl.probes.measures.groups import GROUPS, PROBED_KINDS, measured_groups
from mtl.tasks.catalogue import in_order_of_catalogue
from mtl.tasks.task import Count

Masks = Literal["none", "dynamic", "static", "dynamic_per_task", "static_per_task", "fixed", "fixed_per_task"]


@dataclass(frozen=True)
class MaskKind:
    """What a kind of masks in a study's file means for a run's configuration."""

    regime: PruningRegime
    per_task: bool
    """Whether each task has its own mask."""

    @property
    def scope(self) -> Literal["shared", "per_task"]:
        """The value of `gates.scope`."""
        return "per_task" if self.per_task else "shared"

    @property
    def learned(self) -> bool:
        """Whether the run learns its masks, so that they show which heads tasks want."""
        return self.regime in ("dynamic", "static")


KINDS: dict[Masks, MaskKind] = {
    "none": MaskKind("none", False),
    "dynamic": MaskKind("dynamic", False),
    "static": MaskKind("static", False),
    "dynamic_per_task": MaskKind("dynamic", True),
    "static_per_task": MaskKind("static", True),
    "fixed": MaskKind("fixed", False),
    "fixed_per_task": MaskKind("fixed", True),
}
"""Every kind of masks."""


@dataclass(frozen=True)
class GridBlock:
    """A run of every setup with every kind of masks and every seed."""

    setups: tuple[str, ...] = ("STL", "MTL")
    """`pretrained` (the encoder before training, only probed), `STL` (each task alone), `pairs`, `MTL`
    (all), a name from `sets`, tasks joined by a plus (`pos+dep`), or a setup that a package adds."""
    masks: tuple[Masks, ...] = ("none",)
    """When head masks are learned, and whether each task has its own. `static` starts from the run without
    masks, which is added if the grid lacks it. `fixed` masks are read from `gates.masks`, or come from other
    runs (`masks_of`)."""
    set: dict[str, Any] = field(default_factory=dict)
    """Dotted keys of a run's configuration, with their values in these runs."""
    label: str | None = None
    """The last part of these runs' names; needed if two blocks have runs of one setup, masks and seed."""
    seeds: tuple[int, ...] | None = None
    """Seeds of these runs; `null`: those of the study."""
    draws: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Draws of random labels by task: runs with a task of kind drawn are trained once with each draw (its
    setting `draw`). They form one setup in the report."""
    masks_of: str | None = None
    """For `fixed` masks: the label of the block that learns them. Each run has the masks of that block's run
    with the same tasks and seed, and waits for it."""
    probes: dict[str, Any] = field(default_factory=dict)
    """Keys of the study's `probes`, with their values for these runs."""
    FORBIDDEN: ClassVar[tuple[Forbidden, ...]] = (
        Forbidden(
            lambda block: block.masks_of is not None and {KINDS[m].regime for m in block.masks} - {"fixed"},
            "masks_of={run.masks_of}: also set masks: [fixed] or [fixed_per_task]",
        ),
        Forbidden(
            lambda block: block.masks_of is not None and "gates.masks" in block.set,
            "masks_of={run.masks_of} names the masks: leave gates.masks out",
        ),
        Forbidden(
            lambda block: next(
                (key for key in ("setups", "masks", "seeds") if getattr(block, key) == ()), None
            ),
            "a block's {found} are empty: name at least one, or leave the key out",
        ),
    )


if TYPE_CHECKING:
    MeasureGroup = str
else:
    MeasureGroup = Literal[measured_groups()]


@dataclass(frozen=True)
@with_slots({name: resolve_name(slot) for group in GROUPS.values() for name, slot in group.keys.items()})
class ProbesConfig:
    """Measurements on the heads of finished runs; features add keys (`MeasureGroup.keys`)."""

    masks: tuple[Masks, ...] = ("none",)
    """Kinds of masks whose runs are measured; empty: no run. The setup `pretrained` is always probed."""
    measures: tuple[MeasureGroup, ...] = ("probes",)
    """What is measured: what heads attend to and encode (`mtl probe`), what they are worth (`mtl importance`,
    `mtl ablate`, `mtl relevance`), how scores fall with the number of heads (`mtl curve`), and whether
    importance is the same on another text (`carry_over`). Runs whose tasks label no words are probed only if
    a `corpus` is given."""
    corpus: str | None = None
    """Folder with the .jsonl files on which heads are probed; `null`: each run's own corpus. For translation
    runs: annotated sources."""
    split: Split = "test"
    """Split for probes, ablation, scores of curves and carry-over; measures that choose heads use dev."""
    sentences: Count | None = None
    """Number of sentences for all measures but probes, spread over the split; `null`: all."""
    close: tuple[Literal["head", "all_but_one", "layer"], ...] = ("head",)
    """What ablation closes: each single head, `all_but_one` head of a layer, or a whole `layer`."""
    other: str | None = None
    """The other corpus of `carry_over`, SOURCE:TARGET for translations: importance is measured on `split` of
    the run's corpus and of this one, and written to importance-own.parquet and importance-other.parquet."""
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Further settings of measures by name, as in their commands: `{importance: {steps: 20}}`."""
    centroids: Literal["self", "train"] = "self"
    """Where the centroids of clusters come from; see `mtl probe`."""
    constituents: Literal["lowest", "all", "ends"] = "lowest"
    """Which constituents are probed, and how; see `mtl probe`."""
    final_special: bool = False
    """Whether the final special token can be the most attended word."""
    FORBIDDEN: ClassVar[tuple[Forbidden, ...]] = (
        Forbidden(
            lambda probes: "ablation" in probes.measures and not probes.close,
            "probes.close is empty: name what ablation closes, or leave ablation out of probes.measures",
        ),
        Forbidden(
            lambda probes: "carry_over" in probes.measures and probes.other is None,
            "probes.measures has carry_over: set probes.other, the other corpus",
        ),
    )


@dataclass(frozen=True)
class ClaimsConfig:
    """The masks that determine which heads a task claims."""

    seeds: tuple[int, ...] | None = None
    """Seeds of the runs whose masks are claims, so that claims and measurements can come from other seeds;
    `null`: all."""


OF_THE_GRID = {
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
    "wandb.id": "every run has its own",
}
"""Keys of a run's configuration that the grid sets, and what to write instead."""
PRETRAINED = "pretrained"
_ADDED = added(lambda feature: feature.setups)
NAMED = ("STL", "pairs", *_ADDED)
"""The setups with several sets of tasks; features add functions from tasks to sets."""
SETUPS = (PRETRAINED, *NAMED, "MTL")
"""The setups that every study knows."""


def _set_by_the_grid(study: StudyConfig) -> str | None:
    values = {key: (attrgetter(key)(study.train), attrgetter(key)(TrainConfig())) for key in OF_THE_GRID}
    keys = (key for key, (given, default) in values.items() if key != "tasks" and given != default)
    return next((f"train.{key} cannot be set for a study: {OF_THE_GRID[key]}" for key in keys), None)


def _outside(study: StudyConfig) -> tuple[str, str] | None:
    """A key with a number for a task that the study does not train, and this task."""
    numbers = ((key, name) for key, values in study.train.numbers_by_task() for name in values)
    known = (*study.train.tasks, *KIND_NAMES)
    return next(((key, name) for key, name in numbers if name not in known), None)


@dataclass(frozen=True)
class StudyConfig:
    """An experiment: a grid of runs and the measurements on their heads."""

    name: str | None = None
    """The study's folder below `studies`; default: the name of its file."""
    studies: OutputFolder = "studies"
    """Folder that holds studies."""
    grid: tuple[GridBlock, ...] = (GridBlock(),)
    """The runs."""
    sets: dict[str, list[str]] = field(default_factory=dict)
    """Names for sets of tasks, to be used as setups."""
    seeds: tuple[int, ...] = (1, 2, 3)
    """Every run is trained once with each seed, unless its block has seeds of its own."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """The settings that all runs share; `train.tasks` are the tasks of the study. Names, seeds, masks and
    the run to start from are set by the grid."""
    probes: ProbesConfig = field(default_factory=ProbesConfig)
    """Measurements on the heads of finished runs."""
    claims: ClaimsConfig = field(default_factory=ClaimsConfig)
    """Which masks determine the heads that a task claims, in the report."""
    split: Literal["dev", "test"] = "test"
    """Split of the scores in the report."""
    appearance: Appearance = field(default_factory=Appearance)
    """Colours and order of names in the report and its figures."""
    FORBIDDEN: ClassVar[tuple[Forbidden, ...]] = (
        Forbidden(_set_by_the_grid, "{found}"),
        Forbidden(
            lambda study: _outside(study),
            "unknown task in train.{found[0]}: '{found[1]}', which is not in train.tasks",
        ),
        Forbidden(
            lambda study: study.train.trainer.devices * study.train.trainer.num_nodes > 1,
            "train.trainer.devices and num_nodes cannot be more than 1 in a study, whose runs are one "
            "process each: --jobs=N runs several at once",
        ),
        Forbidden(
            lambda study: not study.train.tasks,
            f"train.tasks is empty: choose at least one of {', '.join(TASK_NAMES)}",
        ),
        Forbidden(
            lambda study: not study.seeds, "seeds is empty: name at least one, for instance seeds: [1, 2, 3]"
        ),
    )


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
    """The sets of tasks of a setup; none for `pretrained`, which trains nothing.

    Each is in the catalogue's order, and they follow each other in the order in which the study's file lists
    the tasks. Raises `InputError` for unknown setups and tasks, and for setups that `train.tasks` does not
    allow.
    """
    tasks = tuple(dict.fromkeys(study.train.tasks))
    if setup == PRETRAINED:
        return []
    if setup == "STL":
        return [(task,) for task in tasks]
    if setup == "pairs":
        if len(tasks) < 2:
            raise InputError(f"setup 'pairs' needs two tasks, but train.tasks is {', '.join(tasks)}")
        return [in_order_of_catalogue(pair) for pair in itertools.combinations(tasks, 2)]
    if setup in _ADDED:
        sets: list[tuple[str, ...]] = resolve_name(_ADDED[setup])(tasks)
        for name in sorted({name for made in sets for name in made}.difference(tasks)):
            if not stands_for_task(name, study.train.instances):
                raise InputError(f"setup '{setup}': no task {name} can be trained: name the setups instead")
        return sets
    if setup == "MTL":
        return [in_order_of_catalogue(tasks)]
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

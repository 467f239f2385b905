"""Features: what a folder beside the core's rooms adds to the program.

A feature is a package of `mtl` with a module `feature`, whose object `FEATURE` says what it adds: rows of the
tables of commands, measures, figures and evidence, keys of configurations, setups and presets. Delete the
folder, and the rest works without it. Objects are named `MODULE:OBJECT` and imported when they are used, so a
module `feature` imports nothing heavy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar


class HasPlace(Protocol):
    """A row of a table whose rows have an order."""

    @property
    def after(self) -> str:
        """Of a feature's row: the row after which it stands; empty: it stands at the end."""


Row = TypeVar("Row")
Placed = TypeVar("Placed", bound=HasPlace)

Unit = Literal["share", "points", "nats", "number"]
"""What values are: a share of 1 (printed in per cent), points of a score in per cent, nats, or a number."""


@dataclass(frozen=True)
class Command:
    """A command of the program."""

    function: str
    """What declares its arguments (`mtl.config.arguments`): a function by its signature and docstring, or
    `Arguments`. It is imported only when the command or its help is called."""
    summary: str
    file: str = ""
    """How files of dotted keys are written in the usage, if there are any."""
    first: tuple[str, ...] = ()
    """The options and dotted keys that users set first, of which there are many: `--help` shows no others."""
    listing: str | None = None
    """A table of names and summaries for the help to show below the options, if there is one."""
    resumes: bool = False
    """Whether running the command again resumes an interrupted one."""
    answers: bool = False
    """Whether the result is what is printed; the result of other commands is a file or folder."""
    several_processes: bool = False
    """Whether a launcher may start several processes of the command for one piece of work."""
    after: str = ""
    """Of a feature: the command, of the core or its own, after which the overview lists it (`in_order`)."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One measure on heads, as rows of heads.parquet."""

    name: str
    """The value of the column `measure`."""
    title: str
    """What the measure is, as reports print it."""
    skill: bool = False
    """Whether it measures how good a head is at labels of a task; best heads and losses are about these."""
    chance: str | None = None
    """The measure that holds its chance level."""
    chance_title: str = ""
    """What the chance level is, as reports print it."""
    majority: str | None = None
    """The measure that holds what the most frequent label alone would give."""
    projection: str | None = None
    """The measure that holds, per layer, what random projections of the layer's input would give."""
    length: str | None = None
    """The measure that holds, per label, how many words its items are from their anchors."""
    unit: Unit = "share"
    companions: tuple[str, ...] = ()
    """Further values of the column `measure`, with a row for each row of this measure: `NAME_low` and
    `NAME_high` (the ends of an interval) and others in the same unit, `NAME_p` and `NAME_q`
    (probabilities)."""
    probes: str | None = None
    """The function that returns its probes, which measures may share; `None`: not made from records."""
    predictor: str = ""
    """The name of the measure in figures as a predictor of ablation; empty: it is not used as one."""
    signed: bool = False
    """Whether maps draw it in two colours, above and below zero."""

    @property
    def names(self) -> tuple[str, ...]:
        """All values of the column `measure` that belong to it: itself, its baselines, its companions."""
        names = (self.name, self.chance, self.majority, self.projection, self.length, *self.companions)
        return tuple(name for name in names if name is not None)


@dataclass(frozen=True, slots=True)
class MeasureGroup:
    """Measures that are made together, and replaced together when they are made again."""

    code: str
    """The function that makes them (`mtl.analysis.measuring`); empty: training makes them."""
    measures: tuple[Measure, ...] = ()
    """The measures that heads.parquet gets, the main one first."""
    summary: str = ""
    """The text in the overview of commands."""
    made_by: str = ""
    """The command that makes them, in messages; empty: `mtl NAME RUN`, which follows from this row."""
    settings: tuple[str, ...] = ("sentences",)
    """The keys of a study's `probes` that change the result. With `split`, the group judges what others
    chose, and is measured on the test split unless another one is given; without it, on the dev split."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Those of these settings that are keys of its own: each a `Slot` (`mtl.config.instances`)."""
    corpus: str = ""
    """The key of a study's `probes` that names a corpus for this group; empty: it reads the run's corpus."""
    file: str = "heads.parquet"
    """The file in the run's folder that is there once the group is measured."""
    by_settings: str = ""
    """The function that measures it by settings alone, as in a study: it takes the settings, among which
    `target` is the run's folder, and an `InputCache`. Empty: `code`, with the settings that it takes."""
    check: str = ""
    """The function that raises `InputError` for settings by which it cannot be measured: it takes an object
    with the settings, and the measures that are made."""
    shown: str = ""
    """The function that prints its rows; empty: the heads with the highest values are printed."""
    after: str = ""
    """Of a feature: the group, of the core or its own, after which reports list it (`in_order`)."""

    @property
    def names(self) -> tuple[str, ...]:
        """All values of the column `measure` that belong to the group."""
        return tuple(name for measure in self.measures for name in measure.names)


@dataclass(frozen=True)
class FigureRow:
    """A figure from runs or tables."""

    summary: str
    draw: str | None = None
    """The function from a `FigureRequest` to a `FigureWithTables`; `None`: it can only be animated."""
    animate: str | None = None
    """The function that writes pictures for a `FigureRequest` to a file of a kind in `MOVING` and returns
    their number and notes; `None`: the figure cannot be animated."""
    tables: tuple[str, ...] = ("",)
    """Its tables, by what is added to the stem of the figure's file name."""
    uses: tuple[str, ...] = ("tasks",)
    """On which of the choices `tasks`, `split` and `measure` it depends."""
    after: str = ""
    """Of a feature: the figure, of the core or its own, after which the help lists it (`in_order`)."""


@dataclass(frozen=True)
class Evidence:
    """A piece of evidence: from many runs a table, figures, an answer and a section of the report."""

    title: str
    """Its name in notes."""
    table: str | None = None
    """From the runs (`RunsRead` of `mtl.runs.report.gather`) to a table or `None`, and notes. If it raises an
    `InputError`, the report has a note instead."""
    figures: Mapping[str, FigureRow] = field(default_factory=dict)
    """Its figures by name."""
    of_report: str | None = None
    """From `ReportData` and the setup that gives claims to the figures that the report draws: by name, the
    runs."""
    answer: str | None = None
    """Its answer on the report's first screen; see `PagePart` of `mtl.probes.report.page_part`."""
    shown: str | None = None
    """What else the report's page shows about it; see `PagePart`."""
    tables: tuple[str, ...] = ()
    """Patterns for the names of its tables in the report."""


@dataclass(frozen=True)
class Keys:
    """A key, or group of keys, of a run's configuration."""

    slot: str
    """Its type, default and help (`Slot` of `mtl.config.instances`)."""
    unused: str | None = None
    """Whether its value makes no difference to a run of several tasks, by the run's `TrainConfig`; `None`:
    the fields of a group say it (`Used`)."""
    check: str | None = None
    """Raises `InputError` for values that do not fit other settings of the `TrainConfig`."""
    meter: str | None = None
    """From the `TrainConfig`, the encoder and the names of the tasks to a `StepMeter` that watches the steps
    of the training, or to `None`."""
    start: str | None = None
    """Does to the encoder that a training starts from what the key asks for, or refuses it; it is given the
    `TrainConfig`, the encoder (pretrained, or that of `init_from`) and the console. A resumed run does it
    again."""
    joint: bool = True
    """Whether it makes no difference to a run of one task."""


@dataclass(frozen=True)
class FormatRow:
    """A format of corpora that is read from several files, whose paths are written as one."""

    read: str
    """From the paths of the files to sentences."""
    paths: str
    """From the paths as users write them to the paths of the files, which must be there."""
    layers: tuple[str, ...]
    """The layers that it provides."""


@dataclass(frozen=True)
class ModelKind:
    """A kind of model that takes the place of the encoder, for tasks that name it (`Task.own_model`).

    A group of keys with its name (`Keys`) has the key `architecture`: that of a model from scratch, or `null`
    for the checkpoint `encoder.name`.
    """

    encoder: str
    """A `SharedEncoder` with the class methods `from_checkpoint`, from a `TrainConfig` and its tasks, and
    `from_scratch`, which is given the training sentences, too."""
    attentions: tuple[str, ...]
    """Its kinds of attention, in the order of its sites."""
    heads: str
    """From a `TrainConfig` to a model from scratch's numbers of layers and of heads in each, by kind of
    attention."""
    copies: str
    """The `AblatedCopies` that decode under ablations, made from a joint model."""


@dataclass(frozen=True)
class HeadRecord:
    """What is done to the heads of a model, other than cutting, and recorded by site in its configuration."""

    read: str
    """From a `PretrainedConfig` and its `Family` (`None`: the table's) to the checked record by site."""
    put: str
    """Does to an uncut model (the model, its `Family`, the record) what is recorded; weights are loaded
    later."""
    start: str
    """Does it to a new model from scratch, by the model and its settings, if these ask for it."""


@dataclass(frozen=True)
class Feature:
    """What a feature adds, by name."""

    commands: Mapping[str, Command] = field(default_factory=dict)
    measures: Mapping[str, MeasureGroup] = field(default_factory=dict)
    """Groups by their names in a study's `probes.measures`."""
    figures: Mapping[str, FigureRow] = field(default_factory=dict)
    evidence: Mapping[str, Evidence] = field(default_factory=dict)
    """Pieces in the order of their answers on the report's first screen."""
    keys: Mapping[str, Keys] = field(default_factory=dict)
    setups: Mapping[str, str] = field(default_factory=dict)
    """Setups of a study: functions from its tasks to sets of tasks."""
    head_records: Mapping[str, HeadRecord] = field(default_factory=dict)
    """By the key of a model's config.json (`mtl.heads.attentions`)."""
    models: Mapping[str, str] = field(default_factory=dict)
    """What else opens as a joint model: by the file that its folder is known by, a function from the folder,
    an accelerator and a precision to an `Annotator` (`mtl.models.opened.annotator_at`)."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """By the name of a file that its folders have: the function from such a folder to what the report of its
    runs takes from there (`ReportSource` of `mtl.runs.report.gather`)."""
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Tasks: the kind and settings of a task of this name, as `tasks: {NAME: …}` would give them."""
    tasks: Mapping[str, str] = field(default_factory=dict)
    """Classes of tasks, each of a kind of its own, by the names of the tasks."""
    own_models: Mapping[str, ModelKind] = field(default_factory=dict)
    formats: Mapping[str, FormatRow] = field(default_factory=dict)
    splitters: Mapping[str, str] = field(default_factory=dict)
    """Functions from the code of a language other than English to the `Splitter` of its running text
    (`mtl.corpora.running_text`)."""


@cache
def features() -> Mapping[str, Feature]:
    """Every feature by the name of its folder."""
    folders = map(Path, sys.modules[__package__].__path__)
    names = sorted(path.parent.name for folder in folders for path in folder.glob("*/feature.py"))
    return {name: import_module(f"{__package__}.{name}.feature").FEATURE for name in names}


def added(rows: Callable[[Feature], Mapping[str, Row]]) -> dict[str, Row]:
    """The rows of all features: `added(lambda feature: feature.keys)`."""
    return dict(chain.from_iterable(rows(feature).items() for feature in features().values()))


def in_order(own: Mapping[str, Placed], of_features: Mapping[str, Placed]) -> dict[str, Placed]:
    """The core's rows and those of features, each of these after the row that it names."""
    rows = {**own, **of_features}
    followers: dict[str, list[str]] = {}
    for name, row in of_features.items():
        followers.setdefault(row.after if row.after in rows else "", []).append(name)
    order = [*own, *followers.get("", ())]
    for place, name in enumerate(order):  # grows while it is read
        order[place + 1 : place + 1] = followers.get(name, ())
    return {name: rows[name] for name in order}

"""Runs beside each other: their setups, which of them are comparable, and notes on the others."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import polars as pl

from mtl.config.keys import within
from mtl.errors import InputError, as_input_error
from mtl.probes.measures.groups import MADE_BY_PROBING
from mtl.probes.report.data import Setup
from mtl.probes.tables import heads_table
from mtl.runs.compare.settings import (
    Settings,
    check_encoders,
    encoder_of,
    keys_in_words,
    listed,
    settings_of_run,
    sizes_told_apart,
)
from mtl.runs.compare.setups import setups_of
from mtl.runs.folder.run import Content, Run, is_probed_encoder
from mtl.tasks.in_words import counted


@dataclass(frozen=True, eq=False)
class MeasuredHeads:
    """A table of heads: of a run, or of an encoder before training."""

    file: Path
    trained: Collection[str] | None = None
    """The tasks that count; `None`: all."""

    @property
    def folder(self) -> Path:
        """The folder of the file."""
        return self.file.parent

    @cached_property
    def read(self) -> tuple[pl.DataFrame, dict[str, str]]:
        """All rows, with texts as categories, and the provenance; raises `InputError` if it is damaged."""
        with as_input_error():
            table, provenance = heads_table.read_heads_table(self.file)
        return heads_table.in_categories(table), provenance

    @cached_property
    def provenance(self) -> Mapping[str, str]:
        """The provenance; empty if it cannot be read."""
        try:
            return self.read[1]
        except InputError:
            return {}

    @property
    def rows(self) -> pl.DataFrame:
        """The rows with finite values, of the tasks that count and of no task, without `choice`."""
        table = self.read[0].drop("choice")
        return table.filter(self._finite & table["task"].is_in([*self.tasks, ""]))

    @cached_property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that have rows and count, in the table's order."""
        names = filter(None, self.read[0]["task"].unique(maintain_order=True))
        return tuple(name for name in names if self.trained is None or name in self.trained)

    @cached_property
    def probed(self) -> bool:
        """Whether it has measures of probing."""
        return self.read[0]["measure"].unique().is_in(MADE_BY_PROBING).any()

    @cached_property
    def lost(self) -> pl.Series:
        """The measures of the values that are not finite."""
        return self.read[0]["measure"].filter(~self._finite)

    @property
    def _finite(self) -> pl.Series:
        return self.read[0]["value"].is_finite().fill_null(False)


@dataclass(frozen=True)
class RunWithSetup:
    """A run, its setup among the runs beside it, and what was read from its folder."""

    run: Run
    setup: Setup
    settings: Settings

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.run.folder

    @property
    def name(self) -> str:
        """The folder, as tables name the run."""
        return str(self.run.folder)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The whole configuration; raises `InputError` if the file is damaged."""
        return self.run.config()

    @cached_property
    def encoder(self) -> Content:
        """The encoder from which the run started."""
        return encoder_of(self.run)

    @cached_property
    def metrics(self) -> dict[str, dict[str, dict[str, float]]]:
        """The scores by split and task; none if there is no file or it is damaged, which others report."""
        try:
            return self.run.metrics()
        except InputError:
            return {}

    @cached_property
    def heads(self) -> MeasuredHeads:
        """What was measured on its heads."""
        return MeasuredHeads(self.folder / "heads.parquet", self.config["tasks"])

    def has(self, file: str) -> bool:
        """Whether the run's folder has a file of this name."""
        return (self.folder / file).is_file()


class RunSet:
    """Runs with the setups that they have among themselves, in a given order.

    A set of some of the runs has the same `notes`, to which everything that is left out is added. `bare` are
    measures on encoders before training.
    """

    def __init__(
        self,
        runs: Iterable[RunWithSetup],
        notes: list[str] | None = None,
        bare: Iterable[MeasuredHeads] = (),
    ) -> None:
        self._runs = tuple(runs)
        self._names = frozenset(run.name for run in self._runs)
        self.notes = [] if notes is None else notes
        self.bare = tuple(bare)

    @classmethod
    def of(
        cls, runs: Iterable[Run], notes: list[str] | None = None, bare: Iterable[MeasuredHeads] = ()
    ) -> RunSet:
        """These runs; raises as reading their configurations does."""
        runs = list(runs)
        settings = [settings_of_run(run) for run in runs]
        return cls(map(RunWithSetup, runs, setups_of(settings), settings), notes, bare)

    @classmethod
    def open(cls, paths: Iterable[Path]) -> RunSet:
        """The runs in these folders, and a note on folders of encoders that were probed before training.

        Raises `InputError` for other folders, and if there is no run.
        """
        paths = list(paths)
        probed = [path for path in paths if is_probed_encoder(path)]
        runs = [Run.open(path) for path in paths if path not in probed]
        if not runs:
            raise InputError("no run among these, only probes of encoders: give runs")
        verb = "holds probes of an encoder" if len(probed) == 1 else "hold probes of encoders"
        note = f"{', '.join(map(str, probed))} {verb}, and no run: left out"
        return cls.of(runs, [note] if probed else [])

    def __iter__(self) -> Iterator[RunWithSetup]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, run: RunWithSetup) -> bool:
        return run.name in self._names

    def __sub__(self, other: RunSet) -> RunSet:
        """The runs that are not among the others."""
        return self.where(lambda run: run not in other)

    def where(self, kept: Callable[[RunWithSetup], object]) -> RunSet:
        """The runs for which the function is true, with the setups that they have here."""
        return RunSet(filter(kept, self), self.notes, self.bare)

    def check_encoders(self) -> None:
        """Raise `InputError` if the runs are of several encoders."""
        check_encoders({run.name: run.encoder for run in self})

    def without_repeats(self) -> RunSet:
        """The runs without those of an earlier one's setup that are no further observations.

        They have its tasks, seed, draws and masks, and start from the same run, if they start from one.
        """
        first: dict[object, RunWithSetup] = {}
        repeated = {}
        for run in self:
            known = first.setdefault((run.setup.name, *run.settings.observation), run)
            if known.name != run.name:
                repeated[run.name] = f"{run.name} repeats {known.name}, seed and all: left out"
        self.notes += repeated.values()
        return self.where(lambda run: run.name not in repeated)

    def like_most(
        self, free: Collection[str] = (), like: Collection[str] | None = None, about: str = ""
    ) -> RunSet:
        """The runs that were made like most of them, except for keys in `free`; `about` begins the notes.

        With `like`, only the runs of these names decide what is usual, and the others are compared with them.
        Which runs are kept depends on their settings only, not on names or order.
        """
        if not self:
            return self
        runs = self._settings()
        by_identity: dict[str, list[str]] = {}
        for name, settings in runs.items():
            by_identity.setdefault(settings.identity, []).append(name)
        count = Counter({
            identity: len([name for name in names if like is None or name in like])
            for identity, names in by_identity.items()
        })  # fmt: skip
        of = {identity: runs[names[0]] for identity, names in by_identity.items()}

        def support(identity: str) -> tuple[int, str]:
            alike = sum(n for other, n in count.items() if not of[identity].differing(of[other], free))
            return -alike, identity

        order = sorted(of, key=lambda identity: (not count[identity], *support(identity)))
        usual = of[order[0]]
        unlike: dict[str, list[str]] = {}
        for identity in order:
            unlike[identity] = usual.differing(of[identity], free)
            if not unlike[identity]:
                # Runs of other tasks use other keys, in which runs after them must not differ either.
                known = {key: value for key, value in usual.values.items() if not _unknown(value)}
                usual = dataclasses.replace(usual, values={**usual.values, **of[identity].values, **known})
        kept = [name for name, settings in runs.items() if not unlike[settings.identity]]
        others: dict[tuple[str, ...], list[str]] = {}
        for name, settings in runs.items():
            if unlike[settings.identity]:
                others.setdefault(tuple(unlike[settings.identity]), []).append(name)
        shown = next(name for name in kept if like is None or name in like)
        for keys, names in others.items():
            what = names[0] if len(names) == 1 else f"{counted(len(names), 'run')} ({listed(names)})"
            verb = "was" if len(names) == 1 else "were"
            self.notes.append(
                f"{about}{what} {verb} trained with another {keys_in_words(keys)} than {shown}: left out"
            )
        self.notes += [f"{about}{note}" for note in _by_place([runs[name] for name in kept], free)]
        return self.where(lambda run: run.name in kept)

    def differing(self, other: RunSet) -> list[str]:
        """Every key in which a run of this set differs from one of the other."""
        runs = RunSet((*self, *other))._settings()
        ours, theirs = ({runs[run.name].identity: runs[run.name] for run in side} for side in (self, other))
        pairs = ((one, against) for one in ours.values() for against in theirs.values())
        return list(dict.fromkeys(key for one, against in pairs for key in one.differing(against)))

    def note_differences(self) -> None:
        """Note every key in which these runs differ, for figures that show any runs."""
        keys = self.differing(self)
        self.notes += [f"the {counted(len(self), 'run')} differ in {', '.join(keys)}"] if keys else []
        self.notes += _by_place(self._settings().values(), ())

    def _settings(self) -> Mapping[str, Settings]:
        """The settings by name, with numbers of heads where they tell these runs apart."""
        settings = sizes_told_apart([run.settings for run in self])
        return {run.name: made for run, made in zip(self, settings, strict=True)}


def _unknown(value: Any) -> bool:
    return isinstance(value, Content) and value.digest is None


def _by_place(runs: Collection[Settings], free: Collection[str]) -> list[str]:
    """A note on runs that did not record what was in files that they were given; none on a single run."""
    unknown = [
        # An encoder without recorded content is on the hub, and its name says what it is.
        [key for key, value in made.values.items() if _unknown(value) and key != "encoder.name"]
        for made in runs
    ]
    found = [named for keys in unknown if (named := [key for key in keys if not within(key, free)])]
    if len(runs) < 2 or not found:
        return []
    keys = list(dict.fromkeys(chain(*found)))
    return [
        f"{counted(len(found), 'run')} did not record what was in {keys_in_words(keys)}: compared by path"
    ]

"""The report of a sweep: its trials as a table and as parallel coordinates, and the runs of the best ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import polars as pl
from markupsafe import Markup
from matplotlib.figure import Figure
from optuna.trial import FrozenTrial

from mtl.config.parse import configuration_from
from mtl.config.schema import ScoredSplit, TrainConfig
from mtl.probes.report.data import ClaimingSetup, ReportData, embedded
from mtl.probes.report.page_part import PageData, PagePart, Section, ShownEvidence, environment
from mtl.probes.tables.table_files import About, ColumnUnit, Units
from mtl.runs.compare.comparable import RunWithSetup
from mtl.runs.figures.drawn import FigureWithTables
from mtl.runs.report.gather import Draw, ReportSource
from mtl.sweep.file import Parameter
from mtl.sweep.folder import SweepFolder, trials_of
from mtl.sweep.parallel_coordinates import Axis, parallel_coordinates
from mtl.sweep.status import best_of, setting_text, trial_open_heads, trial_values
from mtl.sweep.trial_config import trial_name
from mtl.tasks.in_words import counted

MOST_SETTINGS = 12
"""The largest number of a sweep's settings whose runs the report shows below the table of trials."""


@dataclass(frozen=True)
class TrialRow:
    """The result of a trial."""

    name: str
    state: str
    score: float | None
    seconds: float


@dataclass(frozen=True)
class SweepEvidence:
    """A sweep, as its report shows it."""

    method: str
    metric: str
    goal: Literal["minimize", "maximize"]
    trials: tuple[TrialRow, ...]
    axes: tuple[Axis, ...]
    best: str | None
    """The name of the best finished trial."""

    def table(self) -> pl.DataFrame:
        """The trials, with a column for each axis; finished trials come first, then better scores."""
        rows = pl.DataFrame(
            {
                "trial": [trial.name for trial in self.trials],
                "state": [trial.state for trial in self.trials],
                self.metric: pl.Series([trial.score for trial in self.trials], dtype=pl.Float64),
                **{axis.name: pl.Series(list(axis.values), strict=False) for axis in self.axes},
                "seconds": [round(trial.seconds, 1) for trial in self.trials],
            }
        )
        descending = [False, self.goal == "maximize"]
        by = (pl.col("state") != "finished", self.metric)
        return rows.sort(by, descending=descending, nulls_last=True, maintain_order=True)

    def units(self) -> Units:
        """The units of that table's columns."""
        settings = ColumnUnit.NAMED.of(self.metric, *(axis.name for axis in self.axes))
        return settings | ColumnUnit.SECONDS.of("seconds")

    def picture(self) -> Figure | None:
        """Parallel coordinates; `None` if no trial has a score."""
        scores = [trial.score for trial in self.trials]
        if all(score is None for score in scores):
            return None
        best = next((place for place, trial in enumerate(self.trials) if trial.name == self.best), None)
        return parallel_coordinates(self.axes, scores, self.metric, best, self.goal == "maximize")


@dataclass(frozen=True)
class SweepSection:
    """The section of the page."""

    evidence: SweepEvidence
    table: pl.DataFrame
    best: dict[str, object] | None
    """The row of the best trial."""
    picture: Markup | None


def sweep_section(evidence: SweepEvidence) -> SweepSection:
    """What the page shows of a sweep."""
    table = evidence.table()
    best = table.filter(pl.col("trial") == evidence.best).to_dicts() if evidence.best else []
    figure = evidence.picture()
    picture = None
    if figure is not None:
        picture = embedded(figure, f"parallel coordinates of the trials, coloured by {evidence.metric}")
    return SweepSection(evidence, table, best[0] if best else None, picture)


@dataclass(frozen=True)
class SweepSource(ReportSource):
    """A sweep: trials are chosen, and therefore shown, by their scores on dev."""

    sweep: SweepEvidence | None = None
    """`None`: no trial was started."""

    def choose(self, runs: list[RunWithSetup], notes: list[str]) -> list[RunWithSetup]:
        """The runs that were not stopped early, of the best settings."""
        if self.sweep is None:
            return runs
        states = {trial.name: trial.state for trial in self.sweep.trials}
        ended = [run for run in runs if states.get(run.folder.name) != "stopped"]
        if len(ended) < len(runs):
            notes.append(
                f"{counted(len(runs) - len(ended), 'trial')} stopped early: in the sweep's table only"
            )
        ranks = {name: place for place, name in enumerate(self.sweep.table()["trial"])}
        by_rank = sorted(ended, key=lambda run: ranks.get(run.folder.name, len(ranks)))
        settings = list(dict.fromkeys(run.setup.name for run in by_rank))
        if len(settings) > MOST_SETTINGS:
            notes.append(
                f"of {counted(len(settings), 'setting')} only the {MOST_SETTINGS} with the best trials "
                "are shown below the sweep"
            )
        return [run for run in ended if run.setup.name in settings[:MOST_SETTINGS]]

    def parts(self, pieces: Sequence[PagePart]) -> Sequence[PagePart]:
        """The section of the trials instead of answers, since settings are compared, and not tasks."""
        evidence = self.sweep
        if evidence is None:
            return pieces
        trials = PagePart(shown=partial(_shown_on, evidence))
        return [trials, *(replace(piece, answer=None) for piece in pieces)]

    def figures(
        self, data: ReportData, split: ScoredSplit, claiming: ClaimingSetup | None
    ) -> Mapping[str, Draw]:
        """Parallel coordinates, and scores against open heads if the trials have masks."""
        if self.sweep is None:
            return super().figures(data, split, claiming)
        picture, figures = self.sweep.picture(), dict[str, Draw]()
        if picture is not None:
            figures["parallel-coordinates"] = partial(FigureWithTables, picture)
        if data.gates is not None:
            figures["heads-kept"] = self.heads_kept(data, split)
        return figures


def _shown_on(evidence: SweepEvidence, page: PageData) -> ShownEvidence:
    """The section of the page on the trials, and their table."""
    template = environment(__package__).get_template("sweep.html.j2")
    texts: Any = template.make_module({"sweep": sweep_section(evidence)})
    return ShownEvidence(
        first=[Section("sweep", "Sweep", Markup(texts.section()))],
        tables={"trials": evidence.table()},
        about={"trials": About(evidence.units())},
    )


def sweep_source(path: Path) -> SweepSource:
    """The sweep in a folder."""
    evidence, folder = sweep_evidence(path), SweepFolder(path)
    if not folder.sweep_file.is_file():
        return SweepSource(path, split="dev")
    sweep, base, _ = folder.read_sweep()
    finished = [trial for trial in trials_of(folder.study(sweep)) if folder.state(trial) == "finished"]
    runs = [folder.run(trial_name(trial.number)) for trial in finished]
    gone = [run for run in runs if not (run / "config.yaml").exists()]
    return SweepSource(
        path, configuration_from(TrainConfig, base, str(folder.sweep_file)), "dev",
        finished=len(gone) < len(runs),
        notes=[f"{run} is gone: figures are drawn without it" for run in gone],
        files=("tables/trials.*", "figures/parallel-coordinates.*"),
        sweep=evidence,
    )  # fmt: skip


def sweep_evidence(path: Path) -> SweepEvidence | None:
    """The trials of a folder's sweep; `None` if there is no sweep, or no trial was started."""
    folder = SweepFolder(path)
    if not folder.sweep_file.is_file():
        folder.check_no_trials()
        return None
    sweep, _, _ = folder.read_sweep()
    trials = [trial for trial in trials_of(folder.study(sweep)) if trial_values(trial)]
    if not trials:
        return None
    best, heads_by_trial = best_of(sweep, trials), [trial_open_heads(trial) for trial in trials]
    heads = (
        Axis(name, "linear", tuple(heads.get(name) for heads in heads_by_trial))
        for name in dict.fromkeys(name for heads in heads_by_trial for name in heads)
    )
    return SweepEvidence(
        method=sweep.file.method,
        metric=sweep.metric.name,
        goal=sweep.metric.goal,
        trials=tuple(_row(folder, trial) for trial in trials),
        axes=(*(_axis(parameter, trials) for parameter in sweep.parameters if parameter.varies), *heads),
        best=None if best is None else trial_name(best.number),
    )


def _row(folder: SweepFolder, trial: FrozenTrial) -> TrialRow:
    progress = folder.progress(trial)
    scored = next((value for value in trial.values or () if math.isfinite(value)), None)
    return TrialRow(trial_name(trial.number), progress.state, scored, progress.seconds)


def _axis(parameter: Parameter, trials: Sequence[FrozenTrial]) -> Axis:
    values = [trial_values(trial)[parameter.key] for trial in trials]
    if parameter.scale != "categories":
        return Axis(parameter.key, parameter.scale, tuple(float(value) for value in values))
    listed = parameter.examples or tuple(values)
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in listed):
        listed = tuple(sorted(listed))
    order = tuple(dict.fromkeys(map(setting_text, listed)))
    return Axis(parameter.key, "categories", tuple(map(setting_text, values)), order)

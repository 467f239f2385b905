"""The report of a sweep: its trials as a table and as parallel coordinates, and the runs of the best ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from jaxtyping import Float
from markupsafe import Markup
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from optuna.trial import FrozenTrial

from mtl.config.parse import configuration_from
from mtl.config.schema import ScoredSplit, TrainConfig
from mtl.probes.figures.style import FAINT, INK, colour_bar, new_figure, styled
from mtl.probes.report.data import ClaimingSetup, ReportData, embedded
from mtl.probes.report.page_part import PageData, PagePart, Section, ShownEvidence, environment
from mtl.probes.tables.table_files import About, ColumnUnit, Units
from mtl.runs.compare.run_set import RunSet
from mtl.runs.figures.drawn import FigureWithTables
from mtl.runs.report.gather import Draw, ReportSource
from mtl.sweep.file import Parameter
from mtl.sweep.folder import SweepFolder, best_of, setting_text, trial_open_heads, trial_values, trials_of
from mtl.sweep.trial_config import trial_name
from mtl.tasks.in_words import counted

MOST_SETTINGS = 12
"""The largest number of a sweep's settings whose runs the report shows below the table of trials."""
NEAR = 0.09
"""Smallest distance between marks of an axis, as a share of its length."""
SPREAD = 0.05
"""How far lines through one category are spread at most, upwards and downwards."""


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

    def choose(self, runs: RunSet) -> RunSet:
        """The runs that were not stopped early, of the best settings."""
        if self.sweep is None:
            return runs
        states = {trial.name: trial.state for trial in self.sweep.trials}
        ended = runs.where(lambda run: states.get(run.folder.name) != "stopped")
        if len(ended) < len(runs):
            runs.notes.append(
                f"{counted(len(runs) - len(ended), 'trial')} stopped early: in the sweep's table only"
            )
        ranks = {name: place for place, name in enumerate(self.sweep.table()["trial"])}
        by_rank = sorted(ended, key=lambda run: ranks.get(run.folder.name, len(ranks)))
        settings = list(dict.fromkeys(run.setup.name for run in by_rank))
        if len(settings) > MOST_SETTINGS:
            runs.notes.append(
                f"of {counted(len(settings), 'setting')} only the {MOST_SETTINGS} with the best trials "
                "are shown below the sweep"
            )
        return ended.where(lambda run: run.setup.name in settings[:MOST_SETTINGS])

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


@dataclass(frozen=True)
class Axis:
    """A parameter, or another number beside the score, of all trials."""

    name: str
    scale: Literal["linear", "log", "categories"]
    values: tuple[float | str | None, ...]
    """One for each trial; texts if `scale` is `categories`; `None` if not known."""
    order: tuple[str, ...] = ()
    """The categories, from the lowest upwards."""


@styled
def parallel_coordinates(
    axes: Sequence[Axis], scores: Sequence[float | None], metric: str, best: int | None, maximize: bool = True
) -> Figure:
    """A line for every trial that has a score: better ones are on top, and the best is bold.

    `best` is the place of the best trial. Raises `ValueError` if no trial has a score.
    """
    scored = [place for place, score in enumerate(scores) if score is not None and math.isfinite(score)]
    if not scored:
        raise ValueError("no trial has a score: there is nothing to draw")
    score = np.array([scores[place] for place in scored], dtype=float)
    rank = np.argsort(np.argsort(score if maximize else -score, kind="stable"), kind="stable")
    all_axes = [*axes, Axis(metric, "linear", tuple(scores))]
    columns = [_heights(axis, scored, rank) for axis in all_axes]
    figure = new_figure(2.6, max(3.3, 1.0 + 0.95 * len(all_axes)))
    panel = figure.subplots()
    norm = Normalize(score.min(), score.max() if score.max() > score.min() else score.min() + 1)
    colours = colormaps["viridis" if maximize else "viridis_r"]
    for place in np.argsort(rank):
        chosen = scored[place] == best
        panel.plot(
            range(len(all_axes)), [heights[place] for heights in columns],
            color=colours(norm(score[place])), linewidth=2.2 if chosen else 0.9,
            alpha=1.0 if chosen else 0.75, zorder=3 if chosen else 2, solid_capstyle="round",
        )  # fmt: skip
        if chosen:
            panel.plot(
                range(len(all_axes)), [heights[place] for heights in columns], linestyle="none", marker="o",
                markersize=3.5, color=INK, zorder=4,
            )  # fmt: skip
    for across, axis in enumerate(all_axes):
        _draw_axis(panel, across, axis, scored)
    panel.set_xlim(-0.35, len(all_axes) - 0.45)
    panel.set_ylim(-0.06, 1.06)
    panel.set_xticks(range(len(all_axes)), [_wrapped(axis.name) for axis in all_axes])
    panel.tick_params(axis="x", length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    panel.set_yticks([])
    panel.spines[:].set_visible(False)
    colour_bar(figure, ScalarMappable(norm, colours), metric, ax=panel, fraction=0.03, pad=0.01)
    return figure


def _shown_on(evidence: SweepEvidence, page: PageData) -> ShownEvidence:
    """The section of the page on the trials, and their table."""
    template = environment(__package__).get_template("sweep.html.j2")
    texts: Any = template.make_module({"sweep": sweep_section(evidence)})
    return ShownEvidence(
        first=[Section("sweep", "Sweep", Markup(texts.section()))],
        tables={"trials": evidence.table()},
        about={"trials": About(evidence.units())},
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


def _heights(axis: Axis, scored: Sequence[int], rank: np.ndarray) -> Float[np.ndarray, " trial"]:
    """The trials' values, scaled to 0 to 1; NaN if not known."""
    values = [axis.values[place] for place in scored]
    if axis.scale == "categories":
        steps = max(len(axis.order) - 1, 1)
        middle = np.array([axis.order.index(str(value)) / steps for value in values])
        aside = (rank / max(len(values) - 1, 1) - 0.5) * 2
        return (middle if len(axis.order) > 1 else middle + 0.5) + aside * min(SPREAD, 0.3 / steps)
    numbers = _scaled(axis, [math.nan if value is None else float(value) for value in values])
    low, high = _ends(axis, scored)
    return (numbers - low) / (high - low) if high > low else np.where(np.isnan(numbers), np.nan, 0.5)


def _is_log(axis: Axis) -> bool:
    """Whether the axis is logarithmic: not if a value has no logarithm, such as one rounded to 0."""
    return axis.scale == "log" and all(value is None or float(value) > 0 for value in axis.values)


def _scaled(axis: Axis, numbers: Sequence[float]) -> Float[np.ndarray, " number"]:
    array = np.array(numbers, dtype=float)
    return np.log10(array) if _is_log(axis) else array


def _ends(axis: Axis, scored: Sequence[int]) -> tuple[float, float]:
    known = [float(value) for place in scored if (value := axis.values[place]) is not None]
    scaled = _scaled(axis, known or [1.0])
    return float(scaled.min()), float(scaled.max())


def _draw_axis(panel: Axes, across: int, axis: Axis, scored: Sequence[int]) -> None:
    panel.plot([across, across], [0, 1], color=FAINT, linewidth=0.6, zorder=1)
    for height, text in _marks(axis, scored):
        panel.plot([across - 0.03, across], [height, height], color=FAINT, linewidth=0.6, zorder=1)
        panel.text(
            across - 0.05, height, text, ha="right", va="center", fontsize=5.5, color=INK, zorder=5,
            bbox={"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.4},
        )  # fmt: skip


def _marks(axis: Axis, scored: Sequence[int]) -> list[tuple[float, str]]:
    """Heights and texts: every category, or both ends of the numbers and round numbers between them."""
    if axis.scale == "categories":
        steps = len(axis.order) - 1
        return [(place / steps if steps else 0.5, text) for place, text in enumerate(axis.order)]
    low, high = _ends(axis, scored)
    spelt = (lambda place: f"{10**place:.3g}") if _is_log(axis) else (lambda place: f"{place:.4g}")
    if high <= low:
        return [(0.5, spelt(low))]
    between = (
        range(math.ceil(low), math.floor(high) + 1)
        if _is_log(axis)
        else MaxNLocator(4).tick_values(low, high)
    )
    marks = [(0.0, spelt(low)), (1.0, spelt(high))]
    for place in between:
        height = (float(place) - low) / (high - low)
        if NEAR < height < 1 - NEAR:
            marks.append((height, spelt(float(place))))
    return marks


def _wrapped(name: str) -> str:
    """A dotted key on two lines, so that axes can be close together."""
    return name.replace(".", ".\n", 1) if len(name) > 12 else name

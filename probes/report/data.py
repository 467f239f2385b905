"""The contents of a report: tables over all runs of a study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from mtl.probes.report.sweep import SweepEvidence
from mtl.probes.tables.examples_file import Examples

SCORES = pl.Schema(
    {"setup": pl.String, "task": pl.String, "seed": pl.Int64, "run": pl.String, "score": pl.Float64}
)
HISTORY = pl.Schema(
    {
        "setup": pl.String, "task": pl.String, "seed": pl.Int64, "run": pl.String, "update": pl.Int64,
        "score": pl.Float64,
    }
)  # fmt: skip
CHOICES = pl.Schema(
    {
        "setup": pl.String, "run": pl.String, "seed": pl.Int64, "mask": pl.String, "open_at_choice": pl.Int64,
        "forced_open": pl.Int64, "forced_closed": pl.Int64, "narrowly_kept": pl.Int64,
    }
)  # fmt: skip


@dataclass(frozen=True)
class HeadsKept:
    """Scores against open heads, as the figure `heads_kept` takes them."""

    table: pl.DataFrame
    """task, setup, setting, seed, run, kept, score."""
    heads: int
    """The number of heads of the encoder."""


@dataclass(frozen=True)
class PruningCurves:
    """The pruning curves of all runs that have any."""

    points: pl.DataFrame
    """The columns of curve.parquet, and run, setup."""
    kinds: pl.DataFrame | None
    """The shares kept of kinds of attention (`surviving_kinds`), and run, setup; `None` for one kind."""


@dataclass(frozen=True)
class RunExamples:
    """What the heads of a probed run, or of the encoder before training, attend to in a few sentences."""

    regime: str
    """The regime, as in `ReportData.heads`."""
    run: str
    """The folder of the run."""
    tasks: tuple[str, ...]
    """The tasks that the run was trained on."""
    examples: Examples


@dataclass(frozen=True)
class Setup:
    """Runs that differ only in their seeds; the single-task runs of all tasks are one setup."""

    name: str
    baseline: str | None
    """The single-task setup to compare with."""
    single: bool
    tasks: int = 1
    """How many tasks are trained together."""
    pruning: str = "none"
    """The setting `pruning`; for derived runs, followed by what was done to them."""
    trained: tuple[str, ...] = ()
    """The tasks that are trained: together, or each alone."""
    compared: bool = False
    """Whether one of the tasks is only compared with: half of a task, or one with random labels."""
    variant: str = ""
    """The part of the name after the tasks: how masks were learned, and the settings that differ."""
    unlike: tuple[str, ...] = ()
    """The keys, apart from those of masks, in which the baseline was trained otherwise."""

    @property
    def family(self) -> str:
        """The name of all setups with as many tasks that were trained alike: without the names of tasks."""
        return ", ".join(filter(None, ("STL" if self.single else f"MTL-{self.tasks}", self.variant)))

    @property
    def given(self) -> bool:
        """Whether masks were fixed beforehand: such masks say nothing about what tasks want."""
        return self.pruning == "fixed"


@dataclass(frozen=True)
class ReportData:
    """Everything that a report shows, before any statistic."""

    name: str
    encoder: str
    setups: tuple[Setup, ...]
    scores: pl.DataFrame
    """setup, task, seed, run, score (per cent)."""
    metrics: dict[str, str]
    """The name of each task's score."""
    split: str
    gates: pl.DataFrame | None
    """The columns of gates.parquet at the last step, and run, seed, setup; all masks have one shape."""
    heads: pl.DataFrame | None
    """The columns of heads.parquet, and regime (static, stl, pair, joint), run, seed; of the masks' shape."""
    history: pl.DataFrame
    """Learning curves: setup, task, seed, run, update, score on dev (per cent)."""
    kept: HeadsKept | None
    """Scores against open heads; `None` without masks or scores."""
    runs: pl.DataFrame
    """Provenance of every run that was found, one column per fact."""
    probes: pl.DataFrame
    """Provenance of every table of probes that was used."""
    notes: tuple[str, ...]
    """Notes on what is missing or was left out, with reasons."""
    worth: pl.DataFrame | None = None
    """What heads are worth: the table of `mtl.probes.statistics.head_values`, with the report's setups."""
    evidence: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    """Tables of the pieces of evidence that these runs give, by name (`mtl.runs.evidence`)."""
    pruning: PruningCurves | None = None
    """Pruning curves; `None` if no run has any."""
    choices: pl.DataFrame | None = None
    """What the final choice of heads for a target changed in each mask: `CHOICES`."""
    sweep: SweepEvidence | None = None
    """The sweep of which the runs are trials."""
    examples: tuple[RunExamples, ...] = ()
    """The first run of each regime and task that has examples."""
    only_compared: frozenset[str] = frozenset()
    """The tasks that others are only compared with: halves of tasks, and those with random labels."""
    on_words: bool = True
    """Whether a task labels words; otherwise there are no labels that heads may know and lose."""

    def names(self) -> list[str]:
        """All names of setups on the page: those of setups, of families, and of the figure of heads kept."""
        kept = () if self.kept is None else self.kept.table["setup"]
        of_setups = (name for setup in self.setups for name in (setup.name, setup.family))
        return sorted({*of_setups, *kept})

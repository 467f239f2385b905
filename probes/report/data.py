"""What a report is made of: its tables, and the masks that are claims."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

import polars as pl
from markupsafe import Markup
from matplotlib.figure import Figure

from mtl.probes.figures.style import render
from mtl.probes.statistics.masks import Masks
from mtl.probes.tables.heads_table import ExampleTables
from mtl.probes.tables.table_files import ColumnUnit, types_of

DEFAULT = (
    "by default, of the setups of single-task runs, the one with masks of most tasks, then of most seeds, "
    "then the first; --claims=SETUP chooses another"
)


@dataclass(frozen=True)
class ClaimingSetup:
    """The setup whose masks are the claims."""

    setup: str
    """The name of the setup in the report."""
    why: str
    """How the setup was chosen, as the page prints it."""


@dataclass(frozen=True)
class Claims:
    """The masks by which tasks claim heads."""

    by: ClaimingSetup | None
    """The setup that gives the claims; `None` if there are no masks."""
    masks: Masks | None
    """The masks of all tasks of the setup; `None` if it has none."""


def claim_sets(by_setup: Mapping[str, Masks], setups: Sequence[Setup]) -> dict[str, Masks]:
    """The masks of setups that may give claims: those with learned masks of several tasks."""
    given = {setup.name for setup in setups if setup.given}
    return {name: masks for name, masks in by_setup.items() if len(masks.tasks) > 1 and name not in given}


def claims_of(
    setups: Sequence[Setup], by_setup: Mapping[str, Masks], chosen: ClaimingSetup | None = None
) -> Claims:
    """The claims by the chosen setup, which may have no masks yet, or by the default setup."""
    by = chosen or _default(setups, by_setup)
    return Claims(by, None if by is None else by_setup.get(by.setup))


def notes_on_claims(claims: Claims, setups: Sequence[Setup], by_setup: Mapping[str, Masks]) -> list[str]:
    """A note if the claims are by the masks of joint runs."""
    if claims.by is None or claims.masks is None:
        return []
    if any(setup.single for setup in setups if setup.name == claims.by.setup):
        return []
    sets = claim_sets(by_setup, setups)
    if any(setup.single and setup.name in sets for setup in setups):
        return [f"claims are those of {claims.by.setup}, whose runs are joint runs"]
    return [f"no single-task run has masks: claims are those of {claims.by.setup}"]


def _default(setups: Sequence[Setup], by_setup: Mapping[str, Masks]) -> ClaimingSetup | None:
    """The setup of single-task runs with masks of most tasks and seeds; else any setup with several masks."""
    alone = [setup.name for setup in setups if setup.single and not setup.given and setup.name in by_setup]
    several = claim_sets(by_setup, setups)
    pool = [name for name in alone if name in several] or list(several) or alone
    if not pool:
        return None
    best = max(pool, key=lambda name: (len(by_setup[name].tasks), len(by_setup[name].seeds)))
    return ClaimingSetup(best, DEFAULT)


_OF_RUN = ColumnUnit.TEXT.of("setup", "task") | ColumnUnit.COUNT.of("seed") | ColumnUnit.TEXT.of("run")
SCORE_UNITS = _OF_RUN | ColumnUnit.PERCENT.of("score")
SCORES = pl.Schema(types_of(SCORE_UNITS))
HISTORY = pl.Schema(types_of(_OF_RUN | ColumnUnit.COUNT.of("update") | ColumnUnit.PERCENT.of("score")))
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
class RunExamples:
    """What the heads of a probed run, or of the encoder before training, attend to in a few sentences."""

    regime: str
    """The regime, as in `ReportData.heads`."""
    run: str
    """The folder of the run."""
    tasks: tuple[str, ...]
    """The tasks that the run was trained on."""
    examples: ExampleTables


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
    """The columns of heads.parquet, and regime (pretrained, stl, pair, joint), run, seed; of one shape."""
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
    resampled: tuple[str, ...] = ()
    """What the tests of ablation resample: `documents`, `sentences`; empty without such tests."""
    evidence: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    """Tables of the pieces of evidence that these runs give, by name (`mtl.runs.figures.table`)."""
    choices: pl.DataFrame | None = None
    """What the final choice of heads for a target changed in each mask: `CHOICES`."""
    examples: tuple[RunExamples, ...] = ()
    """The first run of each regime and task that has examples."""
    same_answer: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By task of classes or tags, the scores `majority` of one label for all items and `chance` of labels
    drawn at their frequencies, in per cent."""
    only_compared: frozenset[str] = frozenset()
    """The tasks that others are only compared with: halves of tasks, and those with random labels."""
    on_words: bool = True
    """Whether a task labels words; otherwise there are no labels that heads may know and lose."""

    def names(self) -> list[str]:
        """All names of setups on the page: those of setups, of families, and of the figure of heads kept."""
        kept = () if self.kept is None else self.kept.table["setup"]
        of_setups = (name for setup in self.setups for name in (setup.name, setup.family))
        return sorted({*of_setups, *kept})


NOTHING_DRAWN = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>", re.DOTALL)
AS_THEY_ARE = " <>/:;=,'()"
"""What a quoted attribute and a data address may both contain; `#`, `%`, `&` and `"` end one of them."""


def embedded(figure: Figure, description: str) -> Markup:
    """The figure as an image of its own, so that its ids and styles do not clash with those of the page."""
    packed = quote(compact(render(figure, "svg").decode()), safe=AS_THEY_ARE)
    return Markup('<img class="figure" alt="{}" src="data:image/svg+xml,{}">').format(
        description, Markup(packed)
    )


def compact(svg: str) -> str:
    """The same drawing in two thirds of the characters: places to 0.01 points, no comments, no line breaks.

    Numbers below 1 are scales of letters or opacities, and do not change.
    """
    drawn = re.sub(r"\s*\n\s*", " ", NOTHING_DRAWN.sub("", svg)).replace("> <", "><").strip()
    rounded = re.sub(
        r"\b[1-9]\d*\.\d{3,}", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), drawn
    )
    return rounded if "'" in rounded else rounded.replace('"', "'")

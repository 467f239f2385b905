"""Where the runs of a report come from: plain folders, or what a feature made in theirs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from mtl.config.schema import ScoredSplit, TrainConfig
from mtl.features import added
from mtl.probes.appearance import Appearance
from mtl.runs.compare.comparable import RunWithSetup
from mtl.runs.figures.drawn import FigureWithTables
from mtl.runs.figures.table import draw, evidence
from mtl.runs.folder.wandb_view import report_config

if TYPE_CHECKING:
    import polars as pl

    from mtl.probes.report.data import ClaimingSetup, ReportData
    from mtl.probes.report.page_part import PagePart

Draw = Callable[[], FigureWithTables]


@dataclass(frozen=True)
class ReportSource:
    """What a report takes from where its runs come from; this class is that of plain runs.

    A feature returns one of its own for the folders that are its (`Feature.sources`).
    """

    folder: Path
    train: TrainConfig = field(default_factory=TrainConfig)
    """The configuration whose tasks and scores come first."""
    split: ScoredSplit = "test"
    """The split of the scores, unless another one is given."""
    appearance: Appearance = field(default_factory=Appearance)
    """Colours and order, unless others are given."""
    finished: bool = True
    """Whether any run is finished, so that a command which made the runs writes a report."""
    not_to_probe: Collection[Path] = ()
    """The folders of runs that are not to be probed."""
    asked: Mapping[Path, Collection[int]] = field(default_factory=dict)
    """By the folder of a run, the seeds that are wanted of such runs."""
    notes: Sequence[str] = ()
    """Notes to print before the report is made."""
    files: Sequence[str] = ()
    """Patterns for the names of files that only its reports have, as `tables/trials.*`."""

    def choose(self, runs: list[RunWithSetup], notes: list[str]) -> list[RunWithSetup]:
        """The runs that the report shows; a note says what is left out."""
        return runs

    def claiming(self, data: ReportData) -> ClaimingSetup | None:
        """The setup whose masks are claims; `None`: the report's default."""
        return None

    def with_claims(self, data: ReportData, claiming: ClaimingSetup | None) -> ReportData:
        """The data, with only those masks of the claiming setup that are claims."""
        return data

    def parts(self, pieces: Sequence[PagePart]) -> Sequence[PagePart]:
        """What the page shows beside the core's parts, from that of all pieces of evidence."""
        return pieces

    def figures(
        self, data: ReportData, split: ScoredSplit, claiming: ClaimingSetup | None
    ) -> Mapping[str, Draw]:
        """The figures, by file name without suffix."""
        figures = of_evidence(data, split, claiming)
        if data.gates is not None:
            figures["heads-kept"] = self.heads_kept(data, split)
        return figures

    def heads_kept(self, data: ReportData, split: ScoredSplit) -> Draw:
        """The figure of scores against open heads, of all runs of the report."""
        return partial(draw, "heads-kept", [self.folder / run for run in data.runs["run"]], (), split)

    def keep(self, tables: Mapping[str, pl.DataFrame], page: Path) -> None:
        """What else the command that made the runs does with their report."""

    def wandb_config(self) -> TrainConfig:
        """The configuration with W&B's settings for the report; raises `InputError` if there is none."""
        return report_config(self.folder)


def of_evidence(data: ReportData, split: ScoredSplit, claiming: ClaimingSetup | None) -> dict[str, Draw]:
    """The figures of all pieces of evidence, by file name without suffix."""
    figures: dict[str, Draw] = {}
    for piece in evidence().values():
        drawn = {} if piece.of_report is None else resolve_name(piece.of_report)(data, claiming)
        figures |= {name: partial(draw, name, runs, split=split) for name, runs in drawn.items()}
    return figures


def source_of(folder: Path) -> ReportSource:
    """The source of the runs in a folder."""
    for file, made in added(lambda feature: feature.sources).items():
        if (folder / file).is_file():
            source: ReportSource = resolve_name(made)(folder)
            return source
    return ReportSource(folder)

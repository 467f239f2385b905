"""What the laboratory adds to the core."""

from __future__ import annotations

from collections.abc import Sequence

from mtl.features import Evidence, Feature, FigureRow, Keys, Measure, MeasureGroup

_RUNS = "mtl.stem_cell.pair_runs"
_PAGE = "mtl.probes.stem_cell"

EVIDENCE = {
    "claims": Evidence(
        title="claims and losses",
        answer=f"{_PAGE}.answers:wanted_answer",
        shown=f"{_PAGE}.claims_and_losses:claims_and_losses_section",
        tables=("wanted.*", "competition-*", "labels.*", "task-losses.*"),
    ),
    "common": Evidence(
        title="common heads", answer=f"{_PAGE}.answers:common_answer", tables=("common-heads.*",)
    ),
    "masks": Evidence(
        title="what masks cost",
        answer=f"{_PAGE}.answers:masks_answer",
        tables=("masks-cost.*",),
    ),
    "sharing": Evidence(
        title="what sharing costs",
        answer=f"{_PAGE}.answers:sharing_answer",
        tables=("sharing.*",),
    ),
    "pairs": Evidence(
        title="pairs of the contest",
        table=f"{_RUNS}:pair_table",
        of_report=f"{_RUNS}:contest_of_study",
        answer=f"{_PAGE}.answers:contest_answer",
        tables=("contest-*",),
        figures={
            "contest": FigureRow(
                "worth of claimed heads by whether the partner claims them: masked single-task runs, and "
                "pairs",
                f"{_RUNS}:draw_contest", tables=("-heads", "-tasks", "-sides"),
            ),
            "forest": FigureRow(
                "estimates of that contest, with the band of refutation", f"{_RUNS}:all_estimates",
                uses=(),
            ),
        },
    ),
    "cosines": Evidence(
        title="cosines of gradients",
        table=f"{_RUNS}:cosines",
        of_report=f"{_RUNS}:conflict_of_study",
        tables=("conflict.*",),
        figures={
            "conflict": FigureRow(
                "cosines of two tasks' gradients by who claims the head: masked single-task runs, and pairs",
                f"{_RUNS}:draw_conflict", uses=(),
            ),
        },
    ),
}  # fmt: skip

FEATURE = Feature(
    evidence=EVIDENCE,
    measures={
        "gradient_conflict": MeasureGroup(
            "",
            (Measure("gradient_conflict", "cosine between the gradients of two tasks", unit="number"),),
            made_by="mtl train --gradient_conflict_every=N",
            after="probes",
        ),
    },
    keys={
        "gradient_conflict_every": Keys(
            slot="mtl.stem_cell.conflict_meter:SLOT",
            unused="mtl.stem_cell.conflict_meter:is_unused",
            check="mtl.stem_cell.conflict_meter:check",
            meter="mtl.stem_cell.conflict_meter:meter",
        )
    },
    setups={"twins": "mtl.stem_cell.feature:twins"},
    presets={"control": {"kind": "drawn"}},
)


def twins(tasks: Sequence[str]) -> list[tuple[str, ...]]:
    """The setup `twins` of a study: each task beside itself, with half of the sentences each."""
    return [(f"{task}~a", f"{task}~b") for task in tasks]

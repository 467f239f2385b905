"""The laboratory's pieces of evidence, in the order of their answers on the report's first screen."""

from __future__ import annotations

from mtl.runs.evidence import Evidence
from mtl.runs.figures.row import FigureRow

_FIGURES = "mtl.stem_cell.figures"
_GATHERED = "mtl.stem_cell.gathered"
_OF_STUDY = "mtl.stem_cell.figures_of_study"
_REPORT = "mtl.probes.stem_cell.report"

EVIDENCE = {
    "claims": Evidence(
        title="claims and losses",
        answer=f"{_REPORT}.answer_wanted:wanted_answer",
        shown=f"{_REPORT}.claims_and_losses:shown",
        tables=("wanted.*", "competition-*", "labels.*", "task-losses.*"),
    ),
    "common": Evidence(
        title="common heads", answer=f"{_REPORT}.answer_common:common_answer", tables=("common-heads.*",)
    ),
    "masks": Evidence(
        title="what masks cost",
        answer=f"{_REPORT}.answer_masks:masks_answer",
        tables=("masks-cost.*",),
    ),
    "dose": Evidence(
        title="pairs under fixed masks",
        table=f"{_GATHERED}:dose",
        of_study=f"{_OF_STUDY}:dose",
        tables=("dose.*", "dose-scores.*"),
        figures={
            "dose": FigureRow(
                "scores of pairs under fixed masks by the heads that both have", "dose:by_overlap",
                tables=("", "-scores"), uses=("tasks", "split"), room=_FIGURES,
            ),
        },
    ),
    "sharing": Evidence(
        title="what sharing costs",
        answer=f"{_REPORT}.answer_sharing:sharing_answer",
        tables=("sharing.*",),
    ),
    "pairs": Evidence(
        title="pairs of the contest",
        table=f"{_GATHERED}:pairs",
        of_study=f"{_OF_STUDY}:contest",
        answer=f"{_REPORT}.answer_contest:contest_answer",
        tables=("contest-*",),
        figures={
            "contest": FigureRow(
                "worth of claimed heads by whether the partner claims them: masked single-task runs, and "
                "pairs",
                "contest:lines", tables=("-heads", "-tasks", "-sides"), room=_FIGURES,
            ),
            "forest": FigureRow(
                "estimates of that contest, with the band of refutation", "contest:all_estimates",
                uses=(), room=_FIGURES,
            ),
        },
    ),
    "cosines": Evidence(
        title="cosines of gradients",
        table=f"{_GATHERED}:cosines",
        of_study=f"{_OF_STUDY}:conflict",
        tables=("conflict.*",),
        figures={
            "conflict": FigureRow(
                "cosines of two tasks' gradients by who claims the head: masked single-task runs, and pairs",
                "contest:conflict", uses=(), room=_FIGURES,
            ),
        },
    ),
    "remedies": Evidence(
        title="remedies",
        table=f"{_GATHERED}:remedies",
        of_study=f"{_OF_STUDY}:remedies",
        answer=f"{_REPORT}.answer_remedy:remedy_answer",
        tables=("remedies.*", "remedy-*"),
        figures={
            "recovery": FigureRow(
                "what copied heads bring back of what joint training loses", "remedies:recovered",
                tables=("", "-contrasts", "-scores"), uses=("tasks", "split"), room=_FIGURES,
            ),
        },
    ),
    "mixing": Evidence(
        title="mixing vectors by claims",
        figures={
            "mixing": FigureRow(
                "overlap of heads' mixing vectors by how many tasks claim them: collaborative joint runs, "
                "masked single-task runs, and the encoder before training",
                "mixing:by_claims", tables=("", "-layers", "-pairs"), room=_FIGURES,
            ),
        },
    ),
}  # fmt: skip

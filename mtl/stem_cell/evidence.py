"""The laboratory's pieces of evidence, in the order of their answers on the report's first screen."""

from __future__ import annotations

from mtl.runs.evidence import Evidence
from mtl.runs.figures.row import FigureRow

_FIGURES = "mtl.stem_cell.figures"

EVIDENCE = {
    "sharing": Evidence(
        figures={
            "dose": FigureRow(
                "scores of pairs under fixed masks by the heads that both have", "dose:by_overlap",
                tables=("", "-scores"), room=_FIGURES,
            ),
        },
    ),
    "pairs": Evidence(
        figures={
            "contest": FigureRow(
                "worth of claimed heads by whether the partner claims them: masked single-task runs, and "
                "pairs",
                "contest:lines", tables=("-heads", "-tasks", "-sides"), room=_FIGURES,
            ),
            "forest": FigureRow(
                "estimates of that contest, with the band of refutation", "contest:all_estimates",
                room=_FIGURES,
            ),
        },
    ),
    "cosines": Evidence(
        figures={
            "conflict": FigureRow(
                "cosines of two tasks' gradients by who claims the head: masked single-task runs, and pairs",
                "contest:conflict", room=_FIGURES,
            ),
        },
    ),
    "remedies": Evidence(
        figures={
            "recovery": FigureRow(
                "what copied heads bring back of what joint training loses", "remedies:recovered",
                tables=("", "-contrasts", "-scores"), room=_FIGURES,
            ),
        },
    ),
    "mixing": Evidence(
        figures={
            "mixing": FigureRow(
                "overlap of heads' mixing vectors by how many tasks claim them: collaborative joint runs, "
                "masked single-task runs, and the encoder before training",
                "mixing:by_claims", tables=("", "-layers", "-pairs"), room=_FIGURES,
            ),
        },
    ),
}  # fmt: skip

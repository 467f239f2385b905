"""The page's first screen: four questions in their order, each with a word, a figure and its limits."""

from __future__ import annotations

from collections.abc import Mapping

from mtl.probes.report.answer import Answer
from mtl.probes.report.claims import ClaimsAndLosses
from mtl.probes.report.data import ReportData
from mtl.probes.statistics.masks import Masks
from mtl.probes.stem_cell.report.answer_contest import contest_answer
from mtl.probes.stem_cell.report.answer_remedy import remedy_answer
from mtl.probes.stem_cell.report.answer_sharing import sharing_answer
from mtl.probes.stem_cell.report.answer_wanted import wanted_answer


def answers(
    evidence: ReportData, by_setup: Mapping[str, Masks], claims: ClaimsAndLosses
) -> tuple[Answer, ...]:
    """All answers; none where the runs are of one task, so that nothing is shared."""
    if len(evidence.metrics) < 2 or evidence.sweep is not None:
        return ()
    return (
        wanted_answer(claims),
        sharing_answer(evidence),
        contest_answer(evidence, by_setup, claims),
        remedy_answer(evidence),
    )

"""Does a remedy help?"""

from __future__ import annotations

from probes.report.answer import CANNOT_TELL, Answer
from probes.report.data import ReportData

QUESTION = "Does a remedy help?"
LIMIT = "A remedy that helps says that heads were short, and only against a placebo that contested ones were."


def remedy_answer(evidence: ReportData) -> Answer:
    """What cloned or disjoint heads give back of what sharing costs."""
    missing = "no runs with a remedy; a study of remedies has cloned heads, their placebo, and single tasks"
    return Answer(QUESTION, CANNOT_TELL, missing, LIMIT)

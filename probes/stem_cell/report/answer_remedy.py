"""Does a remedy help?"""

from __future__ import annotations

import polars as pl

from mtl.probes.report.answer import CANNOT_TELL, Answer
from mtl.probes.report.embedded import embedded
from mtl.probes.report.page_part import PageData
from mtl.probes.stem_cell.figures.recovery import recovery
from mtl.probes.stem_cell.statistics.equivalence import BAND
from mtl.probes.stem_cell.statistics.remedies import (
    CONDITIONS,
    FEWEST_SEEDS,
    PLACEBO_OF,
    against_placebo,
    contrasts,
    recoveries,
)
from mtl.tasks.in_words import counted

QUESTION = "Does a remedy help?"
LIMIT = (
    "That copies of contested heads help more than copies of others does not say that contest was the loss: "
    "contested heads matter more to every task. Shuffled copies (F) tell part of it. Masks with limited "
    "overlap also lose heads that a task wants."
)
COMMAND = "mtl study remedy"


def remedy_answer(page: PageData) -> Answer:
    """What copies of contested heads, or masks with few heads in common, give back of what sharing costs.

    The word is on the first remedy that has a placebo beside it: copies for each task, split, transplanted,
    masks with a limit of overlap.
    """
    scores = page.data.evidence.get("remedies")
    if scores is None or scores.is_empty():
        missing = (
            "no runs with a remedy; a study of remedies has copied heads, their placebo, and single tasks"
        )
        return Answer(QUESTION, CANNOT_TELL, missing, LIMIT, command=COMMAND)
    table = recoveries(scores)
    word, reason = _contrast(scores)
    caption = (
        f"What remedies bring back on {page.data.split} of what joint training loses, 95 % intervals "
        "over seeds (joint 0, single task 100), and mean scores against parameters."
    )
    figure = embedded(recovery(scores), "recovered share per task and condition")
    return Answer(
        QUESTION,
        word,
        "; ".join([reason, *_reached(table)]),
        LIMIT,
        [(figure, caption)],
        {"remedies": table, "remedy-contrasts": contrasts(scores), "remedy-scores": scores},
        command=COMMAND,
    )


def _contrast(scores: pl.DataFrame) -> tuple[str, str]:
    conditions = set(scores["condition"])
    pair = next(
        ((remedy, placebo) for remedy, placebo in PLACEBO_OF.items() if {remedy, placebo} <= conditions), None
    )
    if pair is None:
        return (
            CANNOT_TELL,
            "no remedy with its placebo beside it: copies of contested heads, and of as many others",
        )
    remedy, placebo = pair
    names = f"{CONDITIONS[remedy]} ({remedy}) against {CONDITIONS[placebo]} ({placebo})"
    found = against_placebo(scores, remedy)
    if found is None:
        return CANNOT_TELL, f"{names}: fewer than {FEWEST_SEEDS} seeds that have both, in all tasks"
    reason = (
        f"{names}: {found.difference:+.2f} points in the mean of tasks (90 % interval {found.low:+.2f} to "
        f"{found.high:+.2f}, one-sided p {found.p:.3f}, {counted(found.runs, 'seed')})"
    )
    if found.word == "refuted":
        reason += f", less than {BAND:.0%} of what joint training loses"
    return found.word, reason


def _reached(table: pl.DataFrame) -> list[str]:
    """Whether each remedy reaches the single task, where there are seeds enough for a word."""
    remedies = table.filter(pl.col("condition").is_in([*PLACEBO_OF]))
    lines = []
    for row in remedies.filter(pl.col("word") != "").iter_rows(named=True):
        words = {
            "reaches": f"reaches the single task (margin {row['margin']:g})",
            "differs": f"differs from the single task by more than the margin ({row['margin']:g})",
            "cannot tell": "whether it reaches the single task cannot be told",
        }
        lines.append(f"{row['task']} with {row['condition']}: {words[row['word']]}")
    return lines

"""Does a remedy help?"""

from __future__ import annotations

import polars as pl

from mtl.probes.report.answer import CANNOT_TELL, Answer, estimates_in
from mtl.probes.report.embedded import embedded
from mtl.probes.report.page_part import PageData
from mtl.probes.stem_cell.figures.recovery import recovery
from mtl.probes.stem_cell.statistics.remedies import (
    CONDITIONS,
    PLACEBO_OF,
    contrasts,
    helps,
    recoveries,
)

QUESTION = "Does a remedy help?"
LIMIT = (
    "If copies of contested heads help more than copies of others, the contest need not be what was lost: "
    "contested heads matter more to every task. Shuffled copies (F) can tell part of it. Masks with limited "
    "overlap also lose heads that a task wants."
)
COMMAND = "mtl study remedy"


def remedy_answer(page: PageData) -> Answer:
    """How much of the cost of sharing copies of contested heads, or masks that overlap less, bring back.

    The word is on the first remedy that has a placebo beside it, in the order of `PLACEBO_OF`.
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
        f"How much of what joint training loses on {page.data.split} remedies bring back, with 95 % "
        "intervals over seeds (joint 0 %, single task 100 %), and mean scores against parameters."
    )
    figure = embedded(recovery(scores), "recovered share per task and condition")
    masks = page.claims.masks
    compared = contrasts(scores)
    forced = "" if masks is None else masks.of_real_labels().forced_in_words()
    return Answer(
        QUESTION,
        word,
        "; ".join([f"{forced}{reason}", *_reached(table)]),
        LIMIT,
        [(figure, caption)],
        {"remedies": table, "remedy-contrasts": compared, "remedy-scores": scores},
        command=COMMAND,
        estimates=estimates_in(
            "remedy-contrasts",
            compared,
            ("remedy", "placebo", "task"),
            "difference",
            "points",
            "seeds",
            low="difference_low",
            high="difference_high",
            level=0.9,
            p="p_holm",
        ),
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
    word, reason = helps(contrasts(scores), remedy)
    return word, f"{CONDITIONS[remedy]} ({remedy}) against {CONDITIONS[placebo]} ({placebo}): {reason}"


def _reached(table: pl.DataFrame) -> list[str]:
    """Whether each remedy reaches the single task, if there are enough seeds for a word."""
    remedies = table.filter(pl.col("condition").is_in([*PLACEBO_OF]))
    lines = []
    for row in remedies.filter(pl.col("word") != "").iter_rows(named=True):
        half = f"half of what sharing costs ({row['margin']:.2f})"
        words = {
            "reaches": f"reaches the single task within {half}",
            "differs": f"differs from the single task by more than {half}",
            "cannot tell": "whether it reaches the single task cannot be told",
        }
        lines.append(f"{row['task']} with {row['condition']}: {words[row['word']]}")
    return lines

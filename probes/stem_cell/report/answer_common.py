"""Do tasks keep the same heads more often than by chance?"""

from __future__ import annotations

from typing import Any

from mtl.probes.report.answer import CANNOT_TELL, Answer, estimates_in
from mtl.probes.report.number_format import chance
from mtl.probes.report.page_part import PageData
from mtl.probes.statistics.overlap import task_overlaps

QUESTION = "Do tasks keep the same heads more often than by chance?"
LIMIT = (
    "It is about these masks, with heads as the units, and names no reason: any decoder may need these "
    "heads. Masks learned on random labels can tell."
)
MISSING = "- {setups: [single], masks: [dynamic]}"
LONGER = "mtl study FILE --train.max_epochs=30"


def common_answer(page: PageData) -> Answer:
    """The answer by the heads that two tasks' masks have in common, pair by pair: the findings on overlap.

    *yes* if a pair has more than by chance, *no* if none has more and one has fewer. If all have as many as
    by chance, the answer is *cannot tell*: a difference that was not found is no proof that there is none.
    """
    masks = page.claims.masks
    if masks is None or len(masks.of_real_labels().tasks) < 2:
        missing = "no masks of two tasks or more; train single-task runs with --pruning=dynamic"
        return Answer(QUESTION, CANNOT_TELL, missing, LIMIT, command=MISSING)
    table = task_overlaps(masks.of_real_labels())
    pairs = {name: table.filter(finding=f"{name} chance") for name in ("more than", "fewer than", "as by")}
    told = next((name for name in ("more than", "fewer than") if pairs[name].height), None)
    learned = "learned heads" if masks.forced().any() else "heads"
    reasons = [
        _pair(row, learned)
        for name in ("more than", "fewer than")
        for row in pairs[name].sort("learned_q_more_layers").iter_rows(named=True)
    ]
    if others := pairs["as by"].height:
        reasons.append(
            f"{others} of {table.height} pairs {'have' if others > 1 else 'has'} as many as by chance"
        )
    word = {"more than": "yes", "fewer than": "no", None: CANNOT_TELL}[told]
    found = estimates_in(
        "common-heads", table, ("first", "second"), "learned_common", "heads in common", "open_first",
        n_of="open heads of the first task", p="learned_q_more_layers", word="finding",
    )  # fmt: skip
    reason = "; ".join(reasons)
    return Answer(
        QUESTION, word, reason, LIMIT, tables={"common-heads": table}, command=LONGER, estimates=found
    )


def _pair(row: dict[str, Any], learned: str) -> str:
    side = "more" if row["finding"] == "more than chance" else "fewer"
    return (
        f"in common, {row['first']} and {row['second']} keep {row['learned_common']} {learned}, and "
        f"{row['learned_expected_layers']:.1f} are expected by chance "
        f"(corrected p {chance(row[f'learned_q_{side}_layers'])})"
    )

"""Do tasks want the same heads?"""

from __future__ import annotations

import polars as pl

from mtl.probes.report.answer import CANNOT_TELL, Answer, estimates_in
from mtl.probes.report.embedded import embedded
from mtl.probes.report.page_part import PageData
from mtl.probes.stem_cell.figures.wanted import wanted_figure
from mtl.probes.stem_cell.statistics.wanted import draws_needed, wanted

QUESTION = "Do tasks want the same heads?"
LIMIT = (
    "Which heads a mask keeps depends on how many it may keep: compare only masks with equal budgets. "
    "The random labels are of one kind, a label per word type."
)
COMMAND = "- {{setups: [single, control], masks: [dynamic], draws: {{control: [{}]}}}}"


def wanted_answer(page: PageData) -> Answer:
    """The answer by the masks that give the claims."""
    claims = page.claims
    if claims.masks is None or len(claims.masks.tasks) < 2:
        missing = "no masks of two tasks or more; train single-task runs with --pruning=dynamic"
        return Answer(QUESTION, CANNOT_TELL, missing, LIMIT, command=_command(2))
    try:
        result = wanted(claims.masks)
    except ValueError as error:
        return Answer(QUESTION, CANNOT_TELL, str(error), LIMIT, command=_command(2))
    setup = claims.by.setup if claims.by is not None else ""
    caption = (
        f"Jaccard index of the heads that masks keep open ({setup}): a dot for each pair of tasks, or for "
        "each task. The last column compares a task with itself over seeds; two tasks cannot be expected to "
        "agree more than that."
    )
    figure = embedded(
        wanted_figure(result.table), "Jaccard of masks between tasks, beside chance and ceiling"
    )
    tables = {"wanted": result.table}
    command = _command(len(claims.masks.of_real_labels().tasks))
    means = result.table.group_by("kind", maintain_order=True).agg(pl.col("jaccard").mean(), masks=pl.len())
    return Answer(
        QUESTION, result.word, result.reason, LIMIT, [(figure, caption)], tables, command=command,
        estimates=estimates_in(
            "wanted", means, ("kind",), "jaccard", "Jaccard index", "masks", n_of="pairs of tasks, or tasks"
        ),
    )  # fmt: skip


def _command(tasks: int) -> str:
    """The line of a study's grid that answers the question for this number of tasks."""
    return COMMAND.format(", ".join(map(str, range(1, draws_needed(tasks) + 1))))

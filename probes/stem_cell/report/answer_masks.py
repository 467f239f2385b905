"""Does a task lose by keeping few of its heads?"""

from __future__ import annotations

import polars as pl

from mtl.probes.report.answer import CANNOT_TELL, Answer, estimates_in
from mtl.probes.report.data import ReportData, Setup
from mtl.probes.report.embedded import embedded
from mtl.probes.report.page_part import PageData
from mtl.probes.statistics.masks import Masks
from mtl.probes.stem_cell.figures.sharing import sharing_figure
from mtl.probes.stem_cell.statistics.sharing import Wording, sharing
from mtl.tasks.in_words import counted

QUESTION = "Does a task lose by keeping few of its heads?"
LIMIT = (
    "It is about these numbers of heads and these lengths of training: masks that are learned for longer, or "
    "that close fewer heads, may cost nothing."
)
COMMAND = "mtl study FILE --seeds=1,2,3,4,5,6"
MISSING = "- {setups: [single], masks: [none, dynamic]}"


def masks_answer(page: PageData) -> Answer:
    """The answer by the scores of single tasks with the masks that are the claims, and without masks."""
    data, by = page.data, page.claims.by
    setup = next((one for one in data.setups if by is not None and one.name == by.setup), None)
    masks = None if setup is None else page.masks.get(setup.name)
    if setup is None or masks is None or not _comparable(setup, data):
        missing = "no runs of single tasks that were trained alike, with learned masks and without"
        return Answer(QUESTION, CANNOT_TELL, missing, LIMIT, command=MISSING)
    kept = heads_kept(masks)
    wording = Wording(f"with {kept}", "with all", "with masks and without")
    groups = {setup.name: {setup.name: setup.baseline or ""}}
    scores = data.scores.filter(~pl.col("task").is_in(list(data.only_compared)))
    result = sharing(scores, groups, wording=wording)
    reason = f"{masks.forced_in_words()}{result.reason}"
    if result.table.is_empty():
        return Answer(QUESTION, result.word, reason, LIMIT, command=COMMAND)
    caption = (
        f"How many points less tasks score with masks of {kept} than with all heads, on {data.split}. "
        "Intervals take the spread of runs from all setups here. A loss left of the dashed line needs no "
        "remedy."
    )
    figure = embedded(sharing_figure(result.table, data.names(), "masks"), "points lost to masks per task")
    tables = {"masks-cost": result.table}
    figures = estimates_in(
        "masks-cost", result.table, ("setup", "task"), "loss", "points lost", "seeds", p="p_holm"
    )
    return Answer(
        QUESTION, result.word, reason, LIMIT, [(figure, caption)], tables, command=COMMAND, estimates=figures
    )


def heads_kept(masks: Masks) -> str:
    """How many heads the masks keep open: `12 of 72 heads`, or `10 to 12 of 72 heads`."""
    counts = masks.opened.sum((2, 3))
    fewest, most = int(counts.min()), int(counts.max())
    number = str(most) if fewest == most else f"{fewest} to {most}"
    return f"{number} of {counted(masks.opened[0, 0].size, 'head')}"


def _comparable(setup: Setup, data: ReportData) -> bool:
    """Whether the setup is of single tasks, and was trained like its baseline without masks."""
    without = {one.name for one in data.setups if one.single and one.pruning == "none"}
    return setup.single and not setup.given and not setup.unlike and setup.baseline in without

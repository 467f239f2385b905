"""Does sharing hurt?"""

from __future__ import annotations

import dataclasses

import numpy as np
import polars as pl

from mtl.probes.report.answer import CANNOT_TELL, Answer, Estimate, estimates_in
from mtl.probes.report.data import ReportData, Setup
from mtl.probes.report.embedded import embedded
from mtl.probes.report.page_part import PageData
from mtl.probes.stem_cell.figures.dose import dose_figure
from mtl.probes.stem_cell.figures.sharing import sharing_figure
from mtl.probes.stem_cell.statistics.dose import ALL, dose, word_on
from mtl.probes.stem_cell.statistics.sharing import ALL as MEAN
from mtl.probes.stem_cell.statistics.sharing import sharing

QUESTION = "Does sharing an encoder hurt?"
LIMIT = (
    "It does not say why: a shared encoder may also have too few updates, or tasks of unequal weight. Runs "
    "with more updates can tell."
)
COMMAND = "mtl study FILE --seeds=1,2,3,4,5,6"
MISSING = "- {setups: [single, all], masks: [none]}"
LIMIT_BY_CHANCE = (
    "It is about pairs whose tasks have few heads each: with more heads in common, they also have fewer "
    "heads in all. It does not say what sharing a whole encoder costs."
)


def sharing_answer(page: PageData) -> Answer:
    """The answer by the scores of runs without masks; the word is on the tasks of the largest joint runs.

    Pairs under fixed masks are shown beside it. If there are no runs without masks, the word is theirs.
    """
    data = page.data
    by_chance = _by_chance(data)
    groups = sharing_groups(data)
    notes = unlike_baselines(data)
    if not groups:
        if by_chance is not None:
            return dataclasses.replace(by_chance, notes=(*by_chance.notes, *notes))
        missing = (
            "no joint and single-task runs without masks; in a study, the setups all and single have them"
        )
        return Answer(QUESTION, CANNOT_TELL, missing, LIMIT, notes=notes, command=MISSING)
    result = sharing(data.scores, groups)
    reason, figures, tables = result.reason, [], {}
    found: tuple[Estimate, ...] = ()
    if not result.table.is_empty():
        caption = (
            f"How many points less tasks score jointly than alone, on {data.split}. The answer rests on the "
            f"tasks of {next(iter(groups))}. Intervals take the spread of runs from all setups here. A loss "
            "left of the dashed line needs no remedy."
        )
        figure = embedded(
            sharing_figure(result.table, data.names()), "points lost to joint training per task"
        )
        figures, tables = [(figure, caption)], {"sharing": result.table}
        found = estimates_in(
            "sharing", result.table, ("setup", "task"), "loss", "points lost", "seeds", p="p_holm"
        )
    if by_chance is not None:
        reason = f"{reason}; {by_chance.reason}"
        figures, tables = [*figures, *by_chance.figures], {**tables, **by_chance.tables}
        found += tuple(by_chance.estimates)
    return Answer(QUESTION, result.word, reason, LIMIT, figures, tables, notes, COMMAND, found)


def _by_chance(data: ReportData) -> Answer | None:
    """The answer by pairs under fixed masks; `None` without them."""
    scores = data.evidence.get("dose")
    if scores is None:
        return None
    losses = dose(scores)
    word, reason = word_on(losses, cost_of_pairs(data, set(losses["pair"]) - {ALL}))
    caption = (
        f"Scores on {data.split} of pairs under fixed masks, by the number of heads that both masks have, "
        "which was assigned by chance. Lines join the means."
    )
    figure = embedded(dose_figure(scores, losses), "scores by heads in common")
    return Answer(
        QUESTION, word, reason, LIMIT_BY_CHANCE, [(figure, caption)],
        {"dose": losses, "dose-scores": scores}, command=COMMAND,
        estimates=estimates_in("dose", losses, ("pair", "task"), "loss", "points lost", "runs"),
    )  # fmt: skip


def cost_of_pairs(data: ReportData, pairs: set[str]) -> float | None:
    """What the tasks of these pairs lose on average by joint training without masks, in points.

    `None` if runs without masks are missing for some pair or for one of its tasks alone.
    """
    wanted = {frozenset(pair.split("+")) for pair in pairs}
    losses: dict[frozenset[str], float] = {}
    for setup in _joint(data):
        tasks = frozenset(setup.trained)
        if tasks in wanted and setup.baseline is not None and not setup.unlike:
            table = sharing(data.scores, {setup.name: {setup.name: setup.baseline}}).table
            of_tasks = table.filter(pl.col("task") != MEAN)["loss"].to_numpy()
            if len(of_tasks) == len(tasks):
                losses[tasks] = float(of_tasks.mean())
    return float(np.mean([*losses.values()])) if wanted and losses.keys() == wanted else None


def sharing_groups(data: ReportData) -> dict[str, dict[str, str]]:
    """By family, setups of joint training without masks, each with the single-task setup to compare with.

    Setups of most tasks come first, then those with the shortest variant. Pairs that are trained alike are
    one group. Twins and pairs with the control task are left out, and so are setups whose single tasks were
    trained otherwise (`unlike_baselines`).
    """
    groups: dict[str, dict[str, str]] = {}
    for setup in sorted(_joint(data), key=lambda one: (-one.tasks, len(one.variant), one.name)):
        if setup.baseline is not None and not setup.unlike:
            groups.setdefault(setup.family, {})[setup.name] = setup.baseline
    return groups


def unlike_baselines(data: ReportData) -> tuple[str, ...]:
    """Notes on joint setups that cannot be compared with single tasks, since these were trained otherwise."""
    return tuple(
        f"{setup.name} and {setup.baseline} were trained with another {', '.join(setup.unlike)}: what "
        "sharing costs is not read from them"
        for setup in _joint(data)
        if setup.unlike
    )


def _joint(data: ReportData) -> list[Setup]:
    """Setups of joint training without masks, other than twins and pairs with the control task."""
    return [
        setup
        for setup in data.setups
        if not setup.single and setup.pruning == "none" and setup.baseline is not None
        if not setup.compared
    ]

"""Answers on claims and scores: which heads tasks want, what masks cost, and what sharing costs."""

from __future__ import annotations

import polars as pl

from mtl.probes.report.data import ReportData, Setup, embedded
from mtl.probes.report.page_part import Answer, AnswerNumber, PageData, estimates_in
from mtl.probes.report.scores import chance
from mtl.probes.statistics.masks import OVERLAP_PAPER, OVERLAP_UNITS, Masks, task_overlaps
from mtl.probes.statistics.significance import CANNOT_TELL, Finding
from mtl.probes.stem_cell.figures import sharing_figure, wanted_figure
from mtl.probes.stem_cell.statistics.sharing import (
    YES,
    Wording,
    about_losses,
    draws_needed,
    sharing,
    wanted,
    who_loses,
)
from mtl.probes.tables.table_files import About, ColumnUnit
from mtl.tasks.in_words import counted

_WANTED_QUESTION = "Do tasks want the same heads?"
_WANTED_LIMIT = (
    "Which heads a mask keeps depends on how many it may keep: compare only masks with equal budgets. "
    "The random labels are of one kind, a label per word type."
)
_WANTED_COMMAND = "- {{setups: [STL, control], masks: [dynamic], draws: {{control: [{}]}}}}"

_COMMON_QUESTION = "Do tasks keep the same heads more often than by chance?"
_COMMON_LIMIT = (
    "It holds for these masks; other seeds may differ. It does not say why heads are kept: some help any "
    "task, even one with random labels. Masks learned on random labels show which."
)
_COMMON_MISSING = "- {setups: [STL], masks: [dynamic]}"
_LONGER = "mtl study FILE --train.max_epochs=30"

_MASKS_QUESTION = "Does a task lose by keeping few of its heads?"
_MASKS_LIMIT = (
    "It is about these numbers of heads and these lengths of training: masks that are learned for longer, or "
    "that close fewer heads, may cost nothing."
)
_MASKS_COMMAND = "mtl study FILE --seeds=1,2,3,4,5,6"
_MASKS_MISSING = "- {setups: [STL], masks: [none, dynamic]}"

_SHARING_QUESTION = "Does sharing an encoder hurt?"
_SHARING_LIMIT = (
    "It does not say why: a shared encoder may also have too few updates, or tasks of unequal weight. Runs "
    "with more updates can tell."
)
_SHARING_COMMAND = "mtl study FILE --seeds=1,2,3,4,5,6"
_SHARING_MISSING = "- {setups: [STL, MTL], masks: [none]}"


def wanted_answer(page: PageData) -> Answer:
    """The answer by the masks that give the claims."""
    claims = page.claims
    if claims.masks is None or len(claims.masks.tasks) < 2:
        missing = "no masks of two tasks or more; train single-task runs with --pruning=dynamic"
        return Answer(_WANTED_QUESTION, CANNOT_TELL, missing, _WANTED_LIMIT, command=_command(2))
    try:
        result = wanted(claims.masks)
    except ValueError as error:
        return Answer(_WANTED_QUESTION, CANNOT_TELL, str(error), _WANTED_LIMIT, command=_command(2))
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
        _WANTED_QUESTION, result.word, result.reason, _WANTED_LIMIT, [(figure, caption)], tables,
        command=command,
        about={"wanted": About(ColumnUnit.NUMBER.of("jaccard", "learned"), (f"the masks of {setup}",))},
        estimates=estimates_in(
            "wanted", means, ("kind",), "jaccard", "Jaccard index", "masks", n_of="pairs of tasks, or tasks"
        ),
    )  # fmt: skip


def _command(tasks: int) -> str:
    """The line of a study's grid that answers the question for this number of tasks."""
    return _WANTED_COMMAND.format(", ".join(map(str, range(1, draws_needed(tasks) + 1))))


def common_answer(page: PageData) -> Answer:
    """The answer by the heads that two tasks' masks have in common, pair by pair: the findings on overlap.

    *yes* if a pair has more than by chance, *no* if none has more and one has fewer. If all have as many as
    by chance, the answer is *cannot tell*: a difference that was not found is no proof that there is none.
    """
    by, masks = page.claims.by, page.claims.masks
    if masks is None or len(masks.of_real_labels().tasks) < 2:
        missing = "no masks of two tasks or more; train single-task runs with --pruning=dynamic"
        return Answer(_COMMON_QUESTION, CANNOT_TELL, missing, _COMMON_LIMIT, command=_COMMON_MISSING)
    table = task_overlaps(masks.of_real_labels())
    pairs = {name: table.filter(finding=f"{name} chance") for name in ("more than", "fewer than", "as by")}
    told = next((name for name in ("more than", "fewer than") if pairs[name].height), None)
    freely = " that training chose" if masks.forced().any() else ""
    reasons = [_clearest(found, name, name == told, freely) for name, found in pairs.items() if found.height]
    word = {"more than": "yes", "fewer than": "no", None: CANNOT_TELL}[told]
    found = estimates_in(
        "common-heads", table, ("first", "second"), "learned_common", "heads in common", "open_first",
        n_of="open heads of the first task", p="learned_q_more_layers", word="finding",
    )  # fmt: skip
    reason = "; ".join(reasons)
    some, every = pairs[told].height if told else 0, table.height
    scope = f"for all {every} pairs" if some == every else f"for {some} of {every} pairs"
    return Answer(
        _COMMON_QUESTION,
        word,
        reason,
        _COMMON_LIMIT,
        tables={"common-heads": table},
        command=_LONGER,
        estimates=found,
        about={
            "common-heads": About(OVERLAP_UNITS, (f"the masks of {by.setup}",) if by else (), OVERLAP_PAPER)
        },
        scope=scope if some and every > 1 else "",
    )


def _clearest(pairs: pl.DataFrame, side: str, in_scope: bool, freely: str) -> str:
    """That pairs keep more or fewer of the same heads than by chance, and the one with the smallest p.

    `in_scope`: they are the pairs that the answer's scope counts.
    """
    count = counted(pairs.height, "pair")
    if side == "as by":
        return f"for {count} there is no evidence either way"
    p = f"learned_q_{side.removesuffix(' than')}_layers"
    clearest = pairs.sort(p, maintain_order=True).row(0, named=True)
    whose = f"{clearest['first']} and {clearest['second']}"
    said = f"keep {side.removesuffix(' than')} of the same heads than by chance"
    several = f"{'they' if in_scope else count} {said}, most clearly {whose}"
    return (
        f"{f'{whose} {said}' if pairs.height == 1 else several} "
        f"({clearest['learned_common']}{freely}; by chance {clearest['learned_expected_layers']:.1f}; "
        f"corrected p {chance(clearest[p])})"
    )


def masks_answer(page: PageData) -> Answer:
    """The answer by the scores of single tasks with the masks that are the claims, and without masks."""
    data, by = page.data, page.claims.by
    setup = next((one for one in data.setups if by is not None and one.name == by.setup), None)
    masks = None if setup is None else page.masks.get(setup.name)
    if setup is None or masks is None or not _comparable(setup, data):
        missing = "no runs of single tasks that were trained alike, with learned masks and without"
        return Answer(_MASKS_QUESTION, CANNOT_TELL, missing, _MASKS_LIMIT, command=_MASKS_MISSING)
    kept = heads_kept_text(masks)
    wording = Wording(f"with {kept}", "with all", "with masks and without")
    groups = {setup.name: {setup.name: setup.baseline or ""}}
    scores = data.scores.filter(~pl.col("task").is_in(list(data.only_compared)))
    result = sharing(scores, groups, wording=wording)
    reason = f"{masks.forced_in_words()}{result.reason}"
    if result.table.is_empty():
        return Answer(_MASKS_QUESTION, result.word, reason, _MASKS_LIMIT, command=_MASKS_COMMAND)
    caption = (
        f"How many points less tasks score with masks of {kept} than with all heads, on {data.split}. "
        "A setup has the spread of its own runs, or that of all runs here, whichever is larger; the mean "
        "pairs runs by seed. Losses left of the dashed line are below 1 point, too small to act on."
    )
    figure = embedded(sharing_figure(result.table, data.names(), "masks"), "points lost to masks per task")
    tables = {"masks-cost": result.table}
    figures = estimates_in(
        "masks-cost", result.table, ("setup", "task"), "loss", "points lost", "seeds", p="p_holm"
    )
    return Answer(
        _MASKS_QUESTION,
        result.word,
        reason,
        _MASKS_LIMIT,
        [(figure, caption)],
        tables,
        about={"masks-cost": about_losses(groups, data.split)},
        command=_MASKS_COMMAND,
        estimates=figures,
        scope=scope_of(result),
    )


def scope_of(result: Finding) -> str:
    """The tasks for which *yes* holds; the answer rests on the first group of the table."""
    return who_loses(result.table.filter(setup=result.table["setup"][0])) if result.word == YES else ""


def heads_kept_text(masks: Masks) -> str:
    """How many heads the masks keep open: `12 of 72 heads`, or `10 to 12 of 72 heads`."""
    counts = masks.opened.sum((2, 3))
    fewest, most = int(counts.min()), int(counts.max())
    number = str(most) if fewest == most else f"{fewest} to {most}"
    return f"{number} of {counted(masks.opened[0, 0].size, 'head')}"


def _comparable(setup: Setup, data: ReportData) -> bool:
    """Whether the setup is of single tasks, and was trained like its baseline without masks."""
    without = {one.name for one in data.setups if one.single and one.pruning == "none"}
    return setup.single and not setup.given and not setup.unlike and setup.baseline in without


def sharing_answer(page: PageData) -> Answer:
    """The answer by the scores of runs without masks; the word is on the tasks of the largest joint runs."""
    data = page.data
    groups = sharing_groups(data)
    notes = unlike_baselines(data)
    if not groups:
        missing = (
            "no joint and single-task runs without masks; in a study, the setups all and single have them"
        )
        return Answer(
            _SHARING_QUESTION, CANNOT_TELL, missing, _SHARING_LIMIT, notes=notes, command=_SHARING_MISSING
        )
    result = sharing(data.scores, groups)
    figures, tables = [], {}
    found: tuple[AnswerNumber, ...] = ()
    if not result.table.is_empty():
        caption = (
            f"How many points less tasks score jointly than alone, on {data.split}. The answer rests on the "
            f"tasks of {next(iter(groups))}. A setup has the spread of its own runs, or that of all runs "
            "here, whichever is larger; the mean pairs runs by seed. Losses left of the dashed line are "
            "below 1 point, too small to act on."
        )
        figure = embedded(
            sharing_figure(result.table, data.names()), "points lost to joint training per task"
        )
        figures, tables = [(figure, caption)], {"sharing": result.table}
        found = estimates_in(
            "sharing", result.table, ("setup", "task"), "loss", "points lost", "seeds", p="p_holm"
        )
    about = {"sharing": about_losses(groups, data.split)}
    return Answer(
        _SHARING_QUESTION, result.word, result.reason, _SHARING_LIMIT, figures, tables, notes,
        _SHARING_COMMAND, found, about=about, scope=scope_of(result),
    )  # fmt: skip


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

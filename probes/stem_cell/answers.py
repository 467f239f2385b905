"""Answers on claims and scores: which heads tasks want, what masks cost, what sharing costs; and the contest.

The contest is the primary test: is a head worth less to a task beside a partner that claims it, too?
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl
from markupsafe import Markup

from mtl.probes.report.data import Claims, ReportData, Setup, claim_sets, embedded
from mtl.probes.report.page_part import Answer, AnswerNumber, PageData, chance, estimates_in
from mtl.probes.statistics.masks import FEWEST_SEEDS, OVERLAP_PAPER, OVERLAP_UNITS, Masks, task_overlaps
from mtl.probes.statistics.significance import CANNOT_TELL, Finding
from mtl.probes.stem_cell.competition import CONFLICT_UNITS, conflict_by_claims, of_pairs, of_twins
from mtl.probes.stem_cell.contest import REFUTED, SUPPORTED, WORTH, WorthUnit, contest_cells
from mtl.probes.stem_cell.contest_table import (
    ABLATION,
    COLUMNS,
    IMPORTANCE,
    LINE_UNITS,
    SKILL_UNITS,
    Estimates,
    claims_table,
    estimates,
    head_lines,
    learned_claims,
    side_means,
    task_means,
    uncut_skill,
    worth_table,
)
from mtl.probes.stem_cell.figures import (
    conflict_figure,
    contest_figure,
    forest,
    sharing_figure,
    wanted_figure,
)
from mtl.probes.stem_cell.sharing import (
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
_MORE_SEEDS = "mtl study FILE --seeds=1,2,3"

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
    So it is with fewer than three seeds, since the runs of one seed share random numbers. Tasks whose masks
    were mostly closed by force are left out: what they keep may be what these numbers were.
    """
    by, masks = page.claims.by, page.claims.masks
    if masks is None or len(masks.of_real_labels().tasks) < 2:
        missing = "no masks of two tasks or more; train single-task runs with --pruning=dynamic"
        return Answer(_COMMON_QUESTION, CANNOT_TELL, missing, _COMMON_LIMIT, command=_COMMON_MISSING)
    masks = masks.of_real_labels()
    table = task_overlaps(masks)
    pairs = {name: table.filter(finding=f"{name} chance") for name in ("more than", "fewer than", "as by")}
    told = next((name for name in ("more than", "fewer than") if pairs[name].height), None)
    freely = " that training chose" if masks.forced().any() else ""
    reasons = [_clearest(found, name, name == told, freely) for name, found in pairs.items() if found.height]
    word = {"more than": "yes", "fewer than": "no", None: CANNOT_TELL}[told]
    found = estimates_in(
        "common-heads", table, ("first", "second"), "learned_common", "heads in common", "open_first",
        n_of="open heads of the first task", p="learned_q_more_layers", word="finding",
    )  # fmt: skip
    if len(masks.seeds) < FEWEST_SEEDS:
        there = counted(len(masks.seeds), "seed")
        reasons = [f"masks of {there} that all tasks have, and {FEWEST_SEEDS} are needed"]
    else:
        if forced := masks.closed_by_force():
            reasons.append(f"masks of {', '.join(forced)} were mostly closed by force")
        both = table.filter(~pl.any_horizontal(pl.col("first", "second").is_in(forced)))
        rows = both.filter(finding=CANNOT_TELL).select("first", "second").rows()
        if rows:
            names = ", ".join(f"{first} and {second}" for first, second in rows)
            reasons.append(f"masks of {names} are alike with equal seeds only")
    reason = "; ".join(reasons)
    some, every = pairs[told].height if told else 0, table.height
    scope = f"for all {every} pairs" if some == every else f"for {some} of {every} pairs"
    return Answer(
        _COMMON_QUESTION,
        word,
        reason,
        _COMMON_LIMIT,
        tables={"common-heads": table},
        command=_LONGER if len(masks.seeds) >= FEWEST_SEEDS else _MORE_SEEDS,
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


QUESTION = "Is a head worth less to a task beside a partner that claims it, too?"
LIMIT = (
    "It is about importance in these pairs of tasks on this encoder, not about scores: what sharing costs is "
    "a question of its own."
)
MASKS = "- {setups: [STL], masks: [dynamic]}"
PAIRS = "- {setups: [pairs], masks: [none]}  # and importance among probes.measures"
LOST = "share of worth lost"
SEEDS = "mtl study FILE --seeds=1,2,3,4,5,6"
ABOUT = {
    "contest-estimates": About(
        COLUMNS,
        (
            "share: how much less a claimed head is worth beside a partner that claims it, too, than beside "
            "other partners; corrected: the same, the error of claims counted",
        ),
    ),
    **{f"contest-{name}": About(units) for name, units in LINE_UNITS.items()},
    "conflict": About(CONFLICT_UNITS),
}
"""What the files of the answer's tables say of their numbers."""


def contest_answer(page: PageData) -> Answer:
    """The answer by the importance of heads in pair runs without masks, and by the page's claims."""
    data, claims, pairs = page.data, page.claims, page.data.evidence.get("pairs")
    missing, command = _missing(data, claims)
    conflict = _conflict(data, claims)
    if missing or claims.masks is None or data.worth is None or pairs is None:
        return Answer(QUESTION, CANNOT_TELL, missing, LIMIT, *conflict, command=command, about=ABOUT)
    of = claims_table(claims.masks)
    alone = {setup.name for setup in data.setups if setup.single}
    primary = claims.by.setup if claims.by is not None else ""
    others = {
        name: claims_table(masks)
        for name, masks in claim_sets(page.masks, data.setups).items()
        if name in alone and name != primary
    }
    worth = worth_table(data.worth, pairs, IMPORTANCE)
    try:
        skill, unmeasured = _skill(data, of)
        found = estimates(data.worth, pairs, of, others, skill, learned=learned_claims(claims.masks))
        cells, _ = contest_cells(worth, of)
        lines, means = head_lines(cells), task_means(cells)
        sides = side_means(worth, lines)
    except ValueError as error:
        return Answer(QUESTION, CANNOT_TELL, str(error), LIMIT, *conflict, command=PAIRS, about=ABOUT)
    tables = {
        "contest-estimates": found.table, "contest-heads": lines, "contest-tasks": means,
        "contest-sides": sides,
    }  # fmt: skip
    figures = []
    if lines.height:
        caption = (
            "Each grey line is a head that the task claims: on the left, its worth beside partners that do "
            "not claim it, on the right beside partners that do. What partners do to a whole layer is taken "
            "out. At the sides, as measured: the task beside itself (twin) and beside a task with random "
            "labels (control)."
        )
        drawn = embedded(contest_figure(lines, means, sides), "worth of claimed heads by the partner's claim")
        figures.append((drawn, caption))
    caption = (
        f"All estimates; the bold one was fixed beforehand (claims of {primary}). An interval inside the "
        "shaded band refutes a loss of a tenth. Estimates in units other than logs are put on this scale by "
        "planting such a loss."
    )
    if found.table["share"].is_finite().any():
        figures.append((embedded(forest(found.table), "all estimates of the contest"), caption))
    return Answer(
        QUESTION,
        found.primary.word,
        f"{claims.masks.forced_in_words()}{found.primary.reason}{found.beside_learned}{by_ablation(found)}",
        LIMIT,
        [*figures, *conflict[0]],
        {**tables, **conflict[1]},
        _remarks((*found.notes, *unmeasured), sides),
        SEEDS,
        estimates=_estimates(found),
        about={
            name: replace(of_table, notes=(f"claims: the masks of {primary}", *of_table.notes))
            for name, of_table in ABOUT.items()
        },
    )


def _estimates(found: Estimates) -> tuple[AnswerNumber, ...]:
    """Each estimate twice: as measured, and with the error of claims taken into account."""
    rows = ("contest-estimates", found.table, ("group", "estimate"))
    corrected = f"{LOST}, the error of claims counted"
    return (
        *estimates_in(*rows, "share", LOST, "seeds", low="share_low", high="share_high"),
        *estimates_in(
            *rows, "corrected", corrected, "seeds", low="corrected_low", high="corrected_high", p="", word=""
        ),
    )  # fmt: skip


def by_ablation(found: Estimates) -> str:
    """What ablation says, and whether importance contradicts it; empty if ablation was not measured."""
    rows = found.table.filter(pl.col("estimate").str.starts_with(f"{ABLATION}, ")).to_dicts()
    told = [
        f"by {row['estimate']}, it is worth {WORTH.of(row['share'])} "
        f"({WORTH.interval(row['share_low'], row['share_high'])}): {row['word']}"
        for row in rows
        if row["share"] is not None
    ]
    if any({row["word"], found.primary.word} == {SUPPORTED, REFUTED} for row in rows):
        told.append("importance and ablation contradict each other, and the word rests on importance alone")
    return "".join(f"; {text}" for text in told)


def _conflict(data: ReportData, claims: Claims) -> tuple[list[tuple[Markup, str]], dict[str, pl.DataFrame]]:
    """The figure and the table of gradients by who claims the head, if pairs recorded gradients."""
    cosines = data.evidence.get("cosines")
    if cosines is None or claims.masks is None:
        return [], {}
    try:
        found = conflict_by_claims(of_pairs(cosines), claims_table(claims.masks))
    except ValueError:  # no pair of which both tasks have claims
        return [], {}
    caption = (
        "Cosines of two tasks' gradients at heads that neither, one or both of them claim, as recorded while "
        "pairs were trained; twins have two decoders for one task."
    )
    if claims.masks.forced().any():
        caption += (
            f" Some of the claimed heads were forced: {claims.masks.of_real_labels().claims_in_words()}."
        )
    figure = embedded(conflict_figure(found, of_twins(cosines)), "gradients by claims")
    return [(figure, caption)], {"conflict": found.heads}


def _skill(
    data: ReportData, claims: pl.DataFrame
) -> tuple[list[tuple[str, pl.DataFrame, pl.DataFrame, WorthUnit]], tuple[str, ...]]:
    """What the secondary estimates by probes are made from, if single tasks and pairs were probed; notes."""
    pairs = data.evidence.get("pairs")
    if data.heads is None or pairs is None:
        return [], ()
    found: list[tuple[str, pl.DataFrame, pl.DataFrame, WorthUnit]] = []
    notes = []
    for name, measure, unit in SKILL_UNITS:
        try:
            skill = uncut_skill(data.heads, pairs, measure)
        except ValueError as error:
            notes.append(f"no estimate of the contest by {name}: {error}")
            continue
        if not skill.is_empty():
            found.append((name, skill, claims, unit))
    return found, tuple(notes)


def _missing(data: ReportData, claims: Claims) -> tuple[str, str]:
    """Which runs or measures the test lacks, and what makes them; both are empty if nothing is lacking."""
    if claims.masks is None or len(claims.masks.tasks) < 2:
        return (
            "no masks of two tasks or more, so there are no claims; "
            "train single-task runs with --pruning=dynamic",
            MASKS,
        )
    pairs = data.evidence.get("pairs")
    if pairs is None or pairs.is_empty():
        return "no pair runs without masks; in a study, the setup pairs has them", PAIRS
    worth = data.worth
    runs = set(pairs["run"])
    if (
        worth is None
        or worth.filter((pl.col("measure") == IMPORTANCE) & pl.col("run").is_in(runs)).is_empty()
    ):
        return (
            "no importance of heads in the pair runs; 'mtl importance RUN' measures it",
            "mtl importance RUN",
        )
    return "", ""


def _remarks(notes: tuple[str, ...], sides: pl.DataFrame) -> tuple[str, ...]:
    lacking = [name for name in ("twin", "control") if name not in set(sides["partner"])]
    if not lacking:
        return notes
    return (*notes, f"no {' and no '.join(lacking)} runs beside the contest: its two ends are not shown")

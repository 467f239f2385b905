"""Is a head worth less to a task beside a partner that claims it, too? The primary test."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
from markupsafe import Markup

from mtl.probes.report.data import Claims, ReportData, claim_sets, embedded
from mtl.probes.report.page_part import Answer, AnswerNumber, PageData, estimates_in
from mtl.probes.statistics.significance import CANNOT_TELL
from mtl.probes.stem_cell.figures import conflict_figure, contest_figure, forest
from mtl.probes.stem_cell.statistics.conflict import CONFLICT_UNITS, conflict_by_claims, of_pairs, of_twins
from mtl.probes.stem_cell.statistics.contest import REFUTED, SUPPORTED, WORTH, WorthUnit, contest_cells
from mtl.probes.stem_cell.statistics.contest_table import (
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
from mtl.probes.tables.table_files import About

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

"""Is a head worth less to a task beside a partner that claims it, too? The primary test."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
from markupsafe import Markup

from mtl.probes.report.answer import CANNOT_TELL, Answer
from mtl.probes.report.claims import ClaimsAndLosses, claim_sets
from mtl.probes.report.data import ReportData
from mtl.probes.report.embedded import embedded
from mtl.probes.statistics.masks import Masks
from mtl.probes.stem_cell.figures.conflict import conflict_figure
from mtl.probes.stem_cell.figures.contest import contest_figure
from mtl.probes.stem_cell.figures.forest import forest
from mtl.probes.stem_cell.statistics.conflict import conflict_by_claims, of_pairs, of_twins
from mtl.probes.stem_cell.statistics.contest_cells import contest_cells
from mtl.probes.stem_cell.statistics.contest_lines import head_lines, side_means, task_means
from mtl.probes.stem_cell.statistics.contest_table import IMPORTANCE, claims_table, estimates, worth_table
from mtl.probes.stem_cell.statistics.uncut_skill import SKILL_UNITS, uncut_skill
from mtl.probes.stem_cell.statistics.worth_units import Unit

QUESTION = "Is a head worth less to a task beside a partner that claims it, too?"
LIMIT = (
    "It is about importance in these pairs of tasks on this encoder, not about scores: what sharing costs is "
    "above, and whether it can be restored below."
)


def contest_answer(evidence: ReportData, by_setup: Mapping[str, Masks], claims: ClaimsAndLosses) -> Answer:
    """By the importance of heads in pair runs without masks, and the claims of the primary setup."""
    missing = _missing(evidence, claims)
    conflict = _conflict(evidence, claims)
    if missing or claims.masks is None or evidence.worth is None or evidence.pairs is None:
        return Answer(QUESTION, CANNOT_TELL, missing, LIMIT, *conflict)
    of = claims_table(claims.masks)
    alone = {setup.name for setup in evidence.setups if setup.single}
    primary = claims.primary.setup if claims.primary is not None else ""
    others = {
        name: claims_table(masks)
        for name, masks in claim_sets(by_setup, evidence.setups).items()
        if name in alone and name != primary
    }
    worth = worth_table(evidence.worth, evidence.pairs, IMPORTANCE)
    try:
        skill, unmeasured = _skill(evidence, of)
        found = estimates(evidence.worth, evidence.pairs, of, others, skill)
        cells, _ = contest_cells(worth, of)
        lines, means = head_lines(cells), task_means(cells)
        sides = side_means(worth, lines)
    except ValueError as error:
        return Answer(QUESTION, CANNOT_TELL, str(error), LIMIT, *conflict)
    tables = {
        "contest-estimates": found.table, "contest-heads": lines, "contest-tasks": means,
        "contest-sides": sides,
    }  # fmt: skip
    figures = []
    if lines.height:
        caption = (
            "Grey: a head that the task claims, from partners that do not claim it to partners that do; what "
            "partners do to a layer is taken out. At the sides, as measured: the task beside itself (twin) "
            "and beside a task whose labels mean nothing (control)."
        )
        drawn = embedded(contest_figure(lines, means, sides), "worth of claimed heads by the partner's claim")
        figures.append((drawn, caption))
    caption = (
        f"Every estimate; the bold one was fixed beforehand (claims of {primary}). An interval within the "
        "shaded band refutes a loss of a tenth. Other units than logs are put on this scale by planting one."
    )
    if found.table["share"].is_finite().any():
        figures.append((embedded(forest(found.table), "all estimates of the contest"), caption))
    return Answer(
        QUESTION,
        found.primary.word,
        f"{claims.masks.forced_in_words()}{found.primary.reason}",
        LIMIT,
        [*figures, *conflict[0]],
        {**tables, **conflict[1]},
        _remarks((*found.notes, *unmeasured), sides),
    )


def _conflict(
    evidence: ReportData, claims: ClaimsAndLosses
) -> tuple[list[tuple[Markup, str]], dict[str, pl.DataFrame]]:
    """The figure and table of the tasks' gradients by who claims the head, where pairs recorded them."""
    if evidence.cosines is None or claims.masks is None:
        return [], {}
    try:
        found = conflict_by_claims(of_pairs(evidence.cosines), claims_table(claims.masks))
    except ValueError:  # no pair of which both tasks have claims
        return [], {}
    caption = (
        "Cosines of two tasks' gradients at heads that neither, one or both of them claim, as recorded while "
        "pairs were trained; twins have two decoders for one task."
    )
    figure = embedded(conflict_figure(found, of_twins(evidence.cosines)), "gradients by claims")
    return [(figure, caption)], {"conflict": found.heads}


def _skill(
    evidence: ReportData, claims: pl.DataFrame
) -> tuple[list[tuple[str, pl.DataFrame, pl.DataFrame, Unit]], tuple[str, ...]]:
    """The secondary estimates by what probes find, where single tasks and pairs were probed, and notes."""
    if evidence.heads is None or evidence.pairs is None:
        return [], ()
    found: list[tuple[str, pl.DataFrame, pl.DataFrame, Unit]] = []
    notes = []
    for name, measure, unit in SKILL_UNITS:
        try:
            skill = uncut_skill(evidence.heads, evidence.pairs, measure)
        except ValueError as error:
            notes.append(f"no estimate of the contest by {name}: {error}")
            continue
        if not skill.is_empty():
            found.append((name, skill, claims, unit))
    return found, tuple(notes)


def _missing(evidence: ReportData, claims: ClaimsAndLosses) -> str:
    """Which runs or measures the test lacks; empty if none."""
    if claims.masks is None or len(claims.masks.tasks) < 2:
        return (
            "no masks of two tasks or more, so there are no claims; "
            "train single-task runs with --pruning=dynamic"
        )
    if evidence.pairs is None or evidence.pairs.is_empty():
        return "no pair runs without masks; a study has them as setup pairs"
    worth = evidence.worth
    runs = set(evidence.pairs["run"])
    if (
        worth is None
        or worth.filter((pl.col("measure") == IMPORTANCE) & pl.col("run").is_in(runs)).is_empty()
    ):
        return "no importance of heads in the pair runs; 'mtl importance RUN' measures it"
    return ""


def _remarks(notes: tuple[str, ...], sides: pl.DataFrame) -> tuple[str, ...]:
    lacking = [name for name in ("twin", "control") if name not in set(sides["partner"])]
    if not lacking:
        return notes
    return (*notes, f"no {' and no '.join(lacking)} runs beside the contest: its two ends are not shown")

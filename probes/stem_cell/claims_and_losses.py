"""The section on claims and losses: by the masks that give the claims, and by those of every other setup."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from markupsafe import Markup

from mtl.probes.report.data import ClaimingSetup, claim_sets
from mtl.probes.report.head_maps import head_map, strip
from mtl.probes.report.page_part import PageData, Section, ShownEvidence, environment, package_text
from mtl.probes.sites import grid, sites_of
from mtl.probes.statistics.head_values import VALUE_UNITS
from mtl.probes.statistics.masks import Masks
from mtl.probes.stem_cell.competition import CLAIMS_UNITS as BY_CLAIMS_UNITS
from mtl.probes.stem_cell.competition import (
    HEAD_UNITS,
    PRIMARY,
    SIGNS,
    SPREAD,
    TEST_UNITS,
    TOGETHER,
    TOO_FEW,
    Competition,
    by_claims,
    compete,
)
from mtl.probes.stem_cell.competition import LOSSES_UNITS as LOSS_UNITS
from mtl.probes.tables.table_files import About

COMPARISON_NAMES = {
    "joint against stl": "MTL against STL",
    "joint against pretrained": "MTL against before training",
    "pair against stl": "MTL-2 against STL",
}
TERMS = {
    "learned": [
        ("contested", Markup("claimed by two tasks or more")),
        (
            "partner",
            Markup(
                "the other task of a pair that was trained jointly; a twin is the task itself with a second "
                "decoder, and the control task has random labels"
            ),
        ),
    ],
    "worth": [("demand", Markup("the sum of the tasks' mean gates of a head"))],
    "skill": [
        (
            "loss",
            Markup(
                "skill in STL less skill in joint training, in percentage points: positive is lost, negative "
                "is gained"
            ),
        )
    ],
}
ON_OVERLAP = (
    "Some heads help any task, even one with random labels; the rows of a control task, if there are any, "
    "show how many."
)
P_BY = {
    SPREAD: "Student’s, spread of runs",
    SIGNS: "Student’s over pairs of seeds; p by exchanging their signs",
}
_HEADS = (
    "pretrained, stl, joint: mean skill before training, in single-task and in joint runs; "
    "loss: stl less joint"
)
_ABOUT = {
    "competition-heads": About(
        HEAD_UNITS, (_HEADS,), ("attention", "layer", "head", "claims", "demand", "stl", "joint", "loss")
    ),
    "competition-by-claims": About(
        BY_CLAIMS_UNITS,
        (
            "value, learned: Spearman's correlation of claims and loss within layers; p: one-sided, by "
            "permuting heads within layers; p_holm: p after Holm over all rows",
            "difference: how much more heads of several tasks lose than other heads of the same layer",
        ),
        ("claims", "tasks", "seeds", "contested", "value", "p_holm", "difference"),
    ),
    "competition-tests": About(
        TEST_UNITS,
        (
            "loss: skill in single-task runs less skill in joint runs; p: by permuting heads (within layers "
            "where the test says so); low, high: the 95 % interval: losses that the test does not reject",
        ),
    ),
    "labels": About(
        VALUE_UNITS,
        ("the best head's accuracy before training (pretrained), in single-task (stl), pair and joint runs",),
        ("task", "label", "count", "chance", "pretrained", "stl", "joint"),
    ),
    "task-losses": About(
        LOSS_UNITS,
        (
            "loss: skill of the regime after 'against' less skill of the regime before it",
            f"p_by '{SPREAD}': p is Student's with the spread of the runs of all regimes, and the "
            "intervals of a comparison hold together: they exclude 0 (an end at 0 is not part of one) "
            "exactly if p_holm is at most 0.05; "
            f"p_by '{SIGNS}': low and high are Student's over seeds, p is by exchanging the signs of seeds",
            "p_holm: p after Holm over the tasks of a comparison; paired_low, paired_high: Student's over "
            "pairs of runs with the same seed; paired_p: by exchanging their signs",
        ),
        ("comparison", "task", "labels", "seeds", "loss", "low high", "p_holm"),
    ),
}
"""The units of the tables' columns, and the notes on their numbers."""
_PACKAGE = "mtl.probes.stem_cell"


@dataclass(frozen=True)
class ClaimsAndLosses:
    """What a report shows on claims and losses."""

    competition: Competition | None
    by_claims: pl.DataFrame | None
    """The test by the claims of each setup, as `by_claims` gives it."""
    why_not: str
    """Why there is no verdict; empty if there is one."""


def claims_and_losses_section(page: PageData) -> ShownEvidence:
    """The section on claims and losses, its verdict above the notes, and its tables."""
    notes: list[str] = []
    found = claims_and_losses(page, notes)
    competition, by = found.competition, page.claims.by
    claimed = None if page.claims.masks is None else page.claims.masks.of_real_labels()
    texts: Any = environment(_PACKAGE).get_template("claims_and_losses.html.j2").make_module(
        {
            "competition": competition,
            "by_claims": found.by_claims,
            "why_not": found.why_not,
            "claiming": by,
            "claim_words": "" if claimed is None else claimed.claims_in_words(),
            "losses": _loss_maps(competition, claimed),
            "comparison_names": COMPARISON_NAMES,
            "p_by": P_BY,
            "primary_test": PRIMARY,
            "together": TOGETHER,
        }
    )  # fmt: skip
    section = Section("competition", "Competition", Markup(texts.section()))
    tables = {} if found.by_claims is None else {"competition-by-claims": found.by_claims}
    if competition is not None:
        tables |= {
            "competition-heads": competition.heads,
            "competition-tests": competition.head_tests,
            "labels": competition.labels,
            "task-losses": competition.task_losses,
        }
    return ShownEvidence(
        lead=None if competition is None or competition.verdict.word == TOO_FEW else Markup(texts.lead()),
        sections=[section] if page.data.on_words else [],
        terms=TERMS,
        on_overlap=ON_OVERLAP,
        style=package_text("claims_and_losses.css", _PACKAGE),
        head_skills=None if competition is None else competition.heads,
        tables=tables,
        about=_ABOUT if by is None else _ABOUT | {
            name: replace(_ABOUT[name], notes=(f"claims: the masks of {by.setup}", *_ABOUT[name].notes))
            for name in ("competition-heads", "competition-tests")
        },
        notes=notes,
        lines=_line(competition, by),
    )  # fmt: skip


def _line(competition: Competition | None, by: ClaimingSetup | None) -> list[str]:
    """The verdict on competition for a terminal; nothing if there are too few runs for one."""
    if competition is None or by is None or competition.verdict.word == TOO_FEW:
        return []
    test = competition.head_tests.row(by_predicate=pl.col("test") == PRIMARY, named=True)
    word = "Yes" if competition.verdict.word == TOGETHER else "No sign of it"
    return [
        f"Do heads that more tasks keep lose more of their skill in joint training? {word} (Spearman within "
        f"layers {test['value']:+.2f}, one-sided p {test['p']:.2g}); kept heads are those of {by.setup}"
    ]


def claims_and_losses(page: PageData, notes: list[str]) -> ClaimsAndLosses:
    """Claims and losses by the claims of the page; adds notes on what is missing."""
    data, by, masks = page.data, page.claims.by, page.claims.masks
    sets = claim_sets(page.masks, data.setups)
    if by is None:
        return ClaimsAndLosses(None, None, "No masks, so there are no claims to compare with losses.")
    missing = f"claims are to be those of {by.setup} ({by.why}), which has no masks yet"
    if masks is None:
        notes.append(f"no verdict on competition: {missing}")
    if data.heads is None or not data.on_words:
        return ClaimsAndLosses(None, None, "No probes, so there are no losses to compare with claims.")
    try:
        without = {name: claims.of_real_labels() for name, claims in sets.items()}
        tests = by_claims(claim_sets(without, data.setups), data.heads)
        competition = None if masks is None else compete(masks.of_real_labels(), data.heads)
    except ValueError as error:
        notes.append(f"competition: {error}")
        return ClaimsAndLosses(None, None, f"Claims and losses cannot be compared: {error}.")
    return ClaimsAndLosses(competition, tests, "" if competition else f"No verdict: {missing}.")


def _loss_maps(competition: Competition | None, claimed: Masks | None) -> dict[str, Markup] | None:
    """What each head loses, as a map and as dots by the number of tasks that claim it."""
    if competition is None or claimed is None:
        return None
    sites, heads = sites_of(competition.heads), int(competition.heads["head"].to_numpy().max()) + 1
    losses = grid(competition.heads, "loss", sites, heads)
    claims = grid(competition.heads, "claims", sites, heads).astype(int)
    most = float(np.abs(losses).max()) or 1.0
    names = [str(count) for count in range(len(claimed.tasks) + 1)]
    return {
        "map": head_map(losses / most, sites, "loss of every head from single to joint training"),
        "strip": strip(
            claims.ravel().tolist(),
            losses.ravel().tolist(),
            names,
            "tasks that claim the head",
            "skill lost, points",
        ),
        "most": Markup(f"{100 * most:.1f}"),
    }

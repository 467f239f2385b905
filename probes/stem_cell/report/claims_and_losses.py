"""The section on claims and losses: by the masks that give the claims, and by those of every other setup."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from markupsafe import Markup

from mtl.probes.report.claims import claim_sets
from mtl.probes.report.head_svg import head_map, strip
from mtl.probes.report.page_part import PageData, Section, Shown
from mtl.probes.report.templates import environment, text_of
from mtl.probes.sites import grid, sites_of
from mtl.probes.statistics.masks import Masks
from mtl.probes.stem_cell.statistics.claims_by_setup import by_claims
from mtl.probes.stem_cell.statistics.competition import PRIMARY, TOGETHER, Competition, compete
from mtl.probes.tables.printed import in_units, labels

COMPARISON_NAMES = {
    "joint against stl": "MTL against STL",
    "joint against static": "MTL against before training",
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
    "Tasks may want the same heads because any decoder needs them; the rows of a control task, if there are "
    "any, can tell."
)
_SCALED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "competition-heads": (("static", "stl", "joint"), ("loss",)),
    "competition-by-claims": ((), ("difference",)),
    "task-losses": ((), ("loss", "low", "high")),
}
"""For each table, the columns that are shares, and those that are differences of shares."""
_PACKAGE = "mtl.probes.stem_cell.report"


@dataclass(frozen=True)
class ClaimsAndLosses:
    """What a report shows on claims and losses."""

    competition: Competition | None
    by_claims: pl.DataFrame | None
    """The test by the claims of each setup, as `claims_by_setup.by_claims` gives it."""
    why_not: str
    """Why there is no verdict; empty if there is one."""


def shown(page: PageData) -> Shown:
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
    return Shown(
        lead=None if competition is None else Markup(texts.lead()),
        sections=[section] if page.data.on_words else [],
        terms=TERMS,
        on_overlap=ON_OVERLAP,
        style=text_of("claims_and_losses.css", _PACKAGE),
        head_skills=None if competition is None else competition.heads,
        tables=tables,
        printed=_printed(tables),
        notes=notes,
        lines=[] if competition is None or by is None
        else [f"competition: {competition.verdict}; by the claims of {by.setup}"],
    )  # fmt: skip


def _printed(tables: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """The tables as papers print them: shares in per cent, their differences in points."""
    made = {
        name: in_units(tables[name], per_cent, points)
        for name, (per_cent, points) in _SCALED.items()
        if name in tables
    }
    if "labels" in tables:
        made["labels"] = labels(tables["labels"])
    if "competition-tests" in tables:
        in_points = pl.col("sides") == 2
        scaled = [
            pl.when(in_points).then(pl.col(column) * 100).otherwise(column).alias(column)
            for column in ("value", "low", "high")
        ]
        unit = pl.when(in_points).then(pl.lit("points")).otherwise(pl.lit("correlation"))
        made["competition-tests"] = tables["competition-tests"].with_columns(*scaled, unit=unit)
    return made


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

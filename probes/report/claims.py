"""Claims and losses by the masks of the primary setup, and by those of every other setup beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from mtl.probes.report.data import ReportData, Setup
from mtl.probes.statistics.masks import Masks
from mtl.probes.stem_cell.statistics.claims_by_setup import by_claims
from mtl.probes.stem_cell.statistics.competition import Competition, compete
from mtl.probes.stem_cell.statistics.contest_cells import CONTROL

DEFAULT = (
    "by default: of the setups of single-task runs the one with masks of most tasks, then of most seeds, "
    "then the first; --claims=SETUP chooses another"
)


@dataclass(frozen=True)
class PrimarySetup:
    """The setup by whose claims the verdict on claims and losses is given."""

    setup: str
    """As the report names it."""
    why: str
    """How it was chosen; printed on the page."""


@dataclass(frozen=True)
class ClaimsAndLosses:
    """What a report shows on claims and losses."""

    primary: PrimarySetup | None
    masks: Masks | None
    """Those of the primary setup, with the control task's; `None` without any."""
    competition: Competition | None
    by_claims: pl.DataFrame | None
    """The test by the claims of each setup, as `claims_by_setup.by_claims` gives it."""
    why_not: str
    """Why there is no verdict; empty if there is one."""

    def summary(self) -> str:
        """The verdict and whose claims it rests on; empty without one."""
        if self.competition is None or self.primary is None:
            return ""
        return f"{self.competition.verdict}; by the claims of {self.primary.setup}"


def claim_sets(by_setup: Mapping[str, Masks], setups: Sequence[Setup]) -> dict[str, Masks]:
    """The setups that give claims: those with learned masks of several tasks."""
    given = {setup.name for setup in setups if setup.given}
    return {name: masks for name, masks in by_setup.items() if len(masks.tasks) > 1 and name not in given}


def claims_and_losses(
    evidence: ReportData, by_setup: Mapping[str, Masks], chosen: PrimarySetup | None, notes: list[str]
) -> ClaimsAndLosses:
    """Competition by the chosen claims, or by those of the default; adds notes on what is missing."""
    primary = chosen or _default(evidence, by_setup)
    masks = by_setup.get(primary.setup) if primary else None
    if primary is None:
        return ClaimsAndLosses(
            None, None, None, None, "No masks, so that there are no claims to compare with losses."
        )
    missing = f"claims are to be those of {primary.setup} ({primary.why}), of which there are no masks yet"
    if masks is None:
        notes.append(f"no verdict on competition: {missing}")
    elif not any(setup.single for setup in evidence.setups if setup.name == primary.setup):
        several = any(
            setup.single and setup.name in claim_sets(by_setup, evidence.setups) for setup in evidence.setups
        )
        notes.append(
            f"claims are those of {primary.setup}, whose runs are joint ones themselves"
            if several
            else f"no single-task run has masks: claims are those of {primary.setup}"
        )
    if evidence.heads is None or not evidence.on_words:
        return ClaimsAndLosses(
            primary, masks, None, None, "No probes, so that there are no losses to compare with claims."
        )
    try:
        sets = {
            name: claims.without(CONTROL) for name, claims in claim_sets(by_setup, evidence.setups).items()
        }
        tests = by_claims(claim_sets(sets, evidence.setups), evidence.heads)
        competition = None if masks is None else compete(masks.without(CONTROL), evidence.heads)
    except ValueError as error:
        notes.append(f"competition: {error}")
        return ClaimsAndLosses(primary, masks, None, None, f"Claims and losses cannot be compared: {error}.")
    return ClaimsAndLosses(
        primary, masks, competition, tests, "" if competition else f"No verdict: {missing}."
    )


def _default(evidence: ReportData, by_setup: Mapping[str, Masks]) -> PrimarySetup | None:
    """Masks of tasks trained alone, of most tasks and seeds; of one task only where there are no others."""
    alone = [
        setup.name for setup in evidence.setups if setup.single and not setup.given and setup.name in by_setup
    ]
    several = claim_sets(by_setup, evidence.setups)
    pool = [name for name in alone if name in several] or list(several) or alone
    if not pool:
        return None
    best = max(pool, key=lambda name: (len(by_setup[name].tasks), len(by_setup[name].seeds)))
    return PrimarySetup(best, DEFAULT)

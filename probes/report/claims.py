"""The setup whose masks say which heads tasks claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mtl.probes.report.data import Setup
from mtl.probes.statistics.masks import Masks

DEFAULT = (
    "by default, of the setups of single-task runs, the one with masks of most tasks, then of most seeds, "
    "then the first; --claims=SETUP chooses another"
)


@dataclass(frozen=True)
class ClaimingSetup:
    """The setup whose masks are the claims."""

    setup: str
    """The name of the setup in the report."""
    why: str
    """How the setup was chosen, as the page prints it."""


@dataclass(frozen=True)
class Claims:
    """The masks by which tasks claim heads."""

    by: ClaimingSetup | None
    """The setup that gives the claims; `None` if there are no masks."""
    masks: Masks | None
    """The masks of all tasks of the setup; `None` if it has none."""


def claim_sets(by_setup: Mapping[str, Masks], setups: Sequence[Setup]) -> dict[str, Masks]:
    """The masks of setups that may give claims: those with learned masks of several tasks."""
    given = {setup.name for setup in setups if setup.given}
    return {name: masks for name, masks in by_setup.items() if len(masks.tasks) > 1 and name not in given}


def claims_of(
    setups: Sequence[Setup], by_setup: Mapping[str, Masks], chosen: ClaimingSetup | None = None
) -> Claims:
    """The claims by the chosen setup, which may have no masks yet, or by the default setup."""
    by = chosen or _default(setups, by_setup)
    return Claims(by, None if by is None else by_setup.get(by.setup))


def notes_on_claims(claims: Claims, setups: Sequence[Setup], by_setup: Mapping[str, Masks]) -> list[str]:
    """A note if the claims are by the masks of joint runs."""
    if claims.by is None or claims.masks is None:
        return []
    if any(setup.single for setup in setups if setup.name == claims.by.setup):
        return []
    sets = claim_sets(by_setup, setups)
    if any(setup.single and setup.name in sets for setup in setups):
        return [f"claims are those of {claims.by.setup}, whose runs are joint runs"]
    return [f"no single-task run has masks: claims are those of {claims.by.setup}"]


def _default(setups: Sequence[Setup], by_setup: Mapping[str, Masks]) -> ClaimingSetup | None:
    """The setup of single-task runs with masks of most tasks and seeds; else any setup with several masks."""
    alone = [setup.name for setup in setups if setup.single and not setup.given and setup.name in by_setup]
    several = claim_sets(by_setup, setups)
    pool = [name for name in alone if name in several] or list(several) or alone
    if not pool:
        return None
    best = max(pool, key=lambda name: (len(by_setup[name].tasks), len(by_setup[name].seeds)))
    return ClaimingSetup(best, DEFAULT)

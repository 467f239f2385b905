"""The measures of all groups by name, and their probes."""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from mtl.probes.measures.groups import GROUPS

if TYPE_CHECKING:
    from mtl.probes.measures.corpus import ProbeSettings
    from mtl.probes.measures.probe import Probe

MEASURES = tuple(measure for group in GROUPS.values() for measure in group.measures)
"""Every measure, in the order in which reports list them."""
BY_NAME = {measure.name: measure for measure in MEASURES}
SKILLS: dict[str, str] = {
    measure.name: measure.chance for measure in MEASURES if measure.skill and measure.chance is not None
}
"""The measures of skill, each with its chance level."""
MADE_BY: Mapping[str, tuple[str, ...]] = {name: group.names for name, group in GROUPS.items()}
"""For each group, all values of the column `measure` that it makes, and replaces when it is made again."""
MADE_BY_PROBING = MADE_BY["probes"]


def probes_for(settings: ProbeSettings) -> list[Probe]:
    """New probes for everything that is measured from records; each function of the table is called once."""
    functions = dict.fromkeys(measure.probes for measure in MEASURES if measure.probes is not None)
    return [probe for function in functions for probe in resolve_name(function)(settings)]

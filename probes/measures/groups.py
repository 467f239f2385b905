"""The table of measures: a new one is its own file and a row here. Imports nothing heavy.

A row is a group of measures that are made together. From it follow its command, its name in `probes.measures`
of a study, what is written into heads.parquet, and its place in figures and in the report.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING

from mtl.features import Measure, MeasureGroup, added, in_order

if TYPE_CHECKING:
    from mtl.probes.measures.corpus import ProbeSettings
    from mtl.probes.measures.probe import Probe


def _tested(name: str) -> tuple[str, ...]:
    """The companions of a difference that is tested: its interval, p, and p adjusted for all heads."""
    return tuple(f"{name}_{end}" for end in ("low", "high", "p", "q"))


_ATTENTION = "mtl.probes.measures.attention:attention_probes"
_CLUSTERING = "mtl.probes.measures.clustering:clustering_probes"
_ROLES = "mtl.probes.measures.attention:role_probes"

_OWN = {
    "probes": MeasureGroup(
        "mtl.analysis.probe:probe_run",
        (
            Measure(
                "attention", "arcs and arguments met by the most attended word", skill=True,
                chance="attention_offset", chance_title="best fixed offset", length="attention_length",
                probes=_ATTENTION,
            ),
            Measure(
                "clustering", "words and spans nearest to the centroid of their own label", skill=True,
                chance="clustering_shuffled", chance_title="shuffled labels", majority="clustering_majority",
                projection="clustering_projection", probes=_CLUSTERING,
            ),
            Measure(
                "confidence", "mean attention to the most attended word", probes=_ROLES,
                predictor="confidence",
            ),
            Measure(
                "positional", "words that attend most to one relative position", probes=_ROLES,
                predictor="positional",
            ),
            Measure(
                "syntactic", "arcs of a relation met in one direction",
                chance="syntactic_offset", chance_title="best fixed offset", probes=_ROLES,
                predictor="syntactic",
            ),
            Measure(
                "syntactic_possible",
                "arcs that heads without sight of later words can meet in one direction", probes=_ROLES,
            ),
            Measure(
                "rare_words", "words that attend most to the rarest word of the sentence", probes=_ROLES,
                predictor="rare words",
            ),
        ),
        made_by="mtl probe RUN",
        settings=("corpus", "split", "centroids", "constituents", "final_special"),
        corpus="corpus",
        by_settings="mtl.analysis.probe:probed",
    ),
    "importance": MeasureGroup(
        "mtl.analysis.measuring:measure_importance",
        (
            Measure(
                "importance",
                "mean size of the loss's derivative with respect to the head's gate, nats per sentence",
                unit="nats", predictor="importance",
            ),
            Measure(
                "taylor", "first-order rise of the loss without the head, nats per sentence", unit="nats",
                predictor="Taylor", signed=True,
            ),
            Measure(
                "fisher", "mean squared derivative of the loss with respect to the head's gate",
                unit="number", predictor="Fisher",
            ),
            Measure(
                "integrated", "rise of the loss by integrated gradients, nats per sentence", unit="nats",
                predictor="integrated gradients", signed=True,
            ),
        ),
        "measure heads by gradients of the loss",
    ),
    "ablation": MeasureGroup(
        "mtl.analysis.ablation:measure_ablation",
        (
            Measure(
                "ablation", "points of the score lost without the head", unit="points",
                companions=_tested("ablation"), signed=True,
            ),
            Measure(
                "ablation_all_but_one", "points of the score lost if only this head of its layer stays",
                unit="points", companions=_tested("ablation_all_but_one"),
            ),
            Measure(
                "ablation_layer", "points of the score lost without the layer's heads", unit="points",
                companions=_tested("ablation_layer"),
            ),
        ),
        made_by="mtl ablate RUN",
        settings=("split", "sentences", "close"),
        by_settings="mtl.analysis.ablation:ablated",
    ),
}  # fmt: skip
GROUPS = in_order(_OWN, added(lambda feature: feature.measures))
"""Every group by its name in a study's `probes.measures`, in the order in which reports list them."""


def measured_groups() -> tuple[str, ...]:
    """The groups that can be measured on a finished run; those that may read heads.parquet come last."""
    names = [name for name, group in GROUPS.items() if group.code]
    return tuple(
        sorted(names, key=lambda name: GROUPS[name].file != MeasureGroup.__dataclass_fields__["file"].default)
    )


_OPTIONS = {
    "integrated": " --steps=N",
    "ablation_all_but_one": " --close=all_but_one",
    "ablation_layer": " --close=layer",
}
"""What a measure's command needs besides the run to make it."""


def made_with(measure: str) -> str:
    """The command that makes a measure, for messages."""
    name = next(name for name, group in GROUPS.items() if measure in group.names)
    command = GROUPS[name].made_by or f"mtl {name} RUN"
    return command + _OPTIONS.get(measure, "")


BY_NAME: dict[str, Measure] = {}
"""Every measure by its name, in the order in which reports list them."""
MEASURES = BY_NAME.values()
SKILLS: dict[str, str] = {}
"""The measures of skill, each with its chance level."""
MADE_BY: dict[str, tuple[str, ...]] = {}
"""For each group, all values of the column `measure` that it makes, and replaces when it is made again."""


def add_group(name: str, group: MeasureGroup) -> None:
    """Add a group to the tables; a program does it before it imports anything else of `mtl` that measures."""
    GROUPS[name] = group
    MADE_BY[name] = group.names
    for measure in group.measures:
        BY_NAME[measure.name] = measure
        if measure.skill and measure.chance is not None:
            SKILLS[measure.name] = measure.chance


for _name, _group in GROUPS.items():
    add_group(_name, _group)
MADE_BY_PROBING = MADE_BY["probes"]


def probes_for(settings: ProbeSettings) -> list[Probe]:
    """New probes for everything that is measured from records; each function of the table is called once."""
    functions = dict.fromkeys(measure.probes for measure in MEASURES if measure.probes is not None)
    return [probe for function in functions for probe in resolve_name(function)(settings)]


PROBED_KINDS = ("tags", "lemmas", "spans", "tree", "graph", "constituents", "frames", "class")
"""The same as the keys of `BY_KIND` in `mtl.probes.measures.corpus`, which are not imported for a plan."""

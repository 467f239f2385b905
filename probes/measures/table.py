"""The table of measures on heads: a new measure is its own file and a row here.

Probing computes the measures of these rows, heads.parquet holds them, and the study and the report show them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from mtl.probes.measures import attention, clustering, roles
from mtl.probes.measures.corpus import ProbeSettings
from mtl.probes.measures.probe import Probe

MadeBy = Literal["training", "probes", "importance", "relevance", "ablation"]
"""What makes a measure: training itself, or what `probes.measures` of a study names (`mtl probe`,
`mtl importance`, `mtl relevance`, `mtl ablate`)."""

Unit = Literal["share", "points", "number"]
"""What values are: a share of 1 (printed in per cent), points of a score in per cent, or a plain number."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One measure on heads, as rows of heads.parquet."""

    name: str
    """The value of the column `measure`."""
    title: str
    """What the measure is, as reports print it."""
    made_by: MadeBy
    skill: bool = False
    """Whether it measures per label of a task how good a head is; best heads and losses are about these."""
    chance: str | None = None
    """The measure that holds its chance level."""
    chance_title: str = ""
    """What the chance level is, as reports print it."""
    majority: str | None = None
    """The measure that holds what the most frequent label alone would give."""
    projection: str | None = None
    """The measure that holds, per layer, what random projections of the layer's input would give."""
    unit: Unit = "share"
    companions: tuple[str, ...] = ()
    """Further values of the column `measure` with a row for each row of this one: `NAME_low` and `NAME_high`
    (the ends of an interval) and others in the same unit, `NAME_p` and `NAME_q` (probabilities)."""
    probes: Callable[[ProbeSettings], Iterable[Probe]] | None = None
    """The function that gives its probes, which measures may share; `None`: not made from records."""

    @property
    def names(self) -> tuple[str, ...]:
        """All its values of the column `measure`: itself, its baselines, its companions."""
        names = (self.name, self.chance, self.majority, self.projection, *self.companions)
        return tuple(name for name in names if name is not None)


def _tested(name: str) -> tuple[str, ...]:
    """The companions of a difference that was tested: its interval, p, and p adjusted for all heads."""
    return tuple(f"{name}_{end}" for end in ("low", "high", "p", "q"))


MEASURES = (
    Measure(
        "attention", "arcs and arguments met by the most attended word", "probes", skill=True,
        chance="attention_offset", chance_title="best fixed offset", probes=attention.probes,
    ),
    Measure(
        "clustering", "words and spans nearest to the centroid of their own label", "probes", skill=True,
        chance="clustering_shuffled", chance_title="shuffled labels", majority="clustering_majority",
        projection="clustering_projection", probes=clustering.probes,
    ),
    Measure("confidence", "mean attention to the most attended word", "probes", probes=roles.probes),
    Measure("positional", "words that attend most to one relative position", "probes", probes=roles.probes),
    Measure(
        "syntactic", "arcs of a relation met in one direction", "probes",
        chance="syntactic_offset", chance_title="best fixed offset", probes=roles.probes,
    ),
    Measure(
        "syntactic_possible", "arcs that heads without sight of later words can meet in one direction",
        "probes", probes=roles.probes,
    ),
    Measure(
        "rare_words", "words that attend most to the rarest word of the sentence", "probes",
        probes=roles.probes,
    ),
    Measure("gradient_conflict", "cosine between the gradients of two tasks", "training", unit="number"),
    Measure(
        "importance", "mean size of the loss's derivative in the head's gate, nats per sentence",
        "importance", unit="number",
    ),
    Measure(
        "taylor", "first-order rise of the loss without the head, nats per sentence", "importance",
        unit="number",
    ),
    Measure("fisher", "mean squared derivative of the loss in the head's gate", "importance", unit="number"),
    Measure(
        "integrated", "rise of the loss by integrated gradients, nats per sentence", "importance",
        unit="number",
    ),
    Measure(
        "ablation", "points of the score lost without the head", "ablation", unit="points",
        companions=_tested("ablation"),
    ),
    Measure(
        "ablation_all_but_one", "points of the score lost if only this head of its layer stays", "ablation",
        unit="points", companions=_tested("ablation_all_but_one"),
    ),
    Measure(
        "ablation_layer", "points of the score lost without the layer's heads", "ablation", unit="points",
        companions=_tested("ablation_layer"),
    ),
    Measure("relevance", "share of its layer's relevance for the score of a task", "relevance"),
    Measure("relevance_signed", "relevance for the score of a task", "relevance", unit="number"),
)  # fmt: skip
"""Every measure, in the order in which reports list them."""

BY_NAME = {measure.name: measure for measure in MEASURES}
SKILLS: dict[str, str] = {
    measure.name: measure.chance for measure in MEASURES if measure.skill and measure.chance is not None
}
"""The measures of skill, each with its chance level."""
MADE_BY: Mapping[MadeBy, tuple[str, ...]] = {
    maker: tuple(name for measure in MEASURES if measure.made_by == maker for name in measure.names)
    for maker in get_args(MadeBy)
}
"""All values of the column `measure` by what makes them, and replaces them when it is run again."""
MADE_BY_PROBING = MADE_BY["probes"]


def probes_for(settings: ProbeSettings) -> list[Probe]:
    """Fresh probes for all that is measured from records; each function of the table is called once."""
    functions = dict.fromkeys(measure.probes for measure in MEASURES if measure.probes is not None)
    return [probe for function in functions for probe in function(settings)]

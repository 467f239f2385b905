"""The table of measures: a new one is its own file and a row here. Imports nothing heavy.

A row is a group of measures that are made together. From it follow its command, its name in `probes.measures`
of a study, what is written into heads.parquet, the code on which its results depend, and its place in figures
and in the report.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Unit = Literal["share", "points", "number"]
"""What values are: a share of 1 (printed in per cent), points of a score in per cent, or a plain number."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One measure on heads, as rows of heads.parquet."""

    name: str
    """The value of the column `measure`."""
    title: str
    """What the measure is, as reports print it."""
    skill: bool = False
    """Whether it measures how good a head is at labels of a task; best heads and losses are about these."""
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
    """Further values of the column `measure`, with a row for each row of this measure: `NAME_low` and
    `NAME_high` (the ends of an interval) and others in the same unit, `NAME_p` and `NAME_q`
    (probabilities)."""
    probes: str | None = None
    """`MODULE:FUNCTION` that returns its probes, which measures may share; `None`: not made from records."""
    predictor: str = ""
    """The name of the measure in figures as a predictor of ablation; empty: it is not used as one."""
    signed: bool = False
    """Whether maps draw it in two colours, above and below zero."""

    @property
    def names(self) -> tuple[str, ...]:
        """All values of the column `measure` that belong to it: itself, its baselines, its companions."""
        names = (self.name, self.chance, self.majority, self.projection, *self.companions)
        return tuple(name for name in names if name is not None)


@dataclass(frozen=True, slots=True)
class Group:
    """One row: measures that are made together, and replaced together when they are made again."""

    code: str
    """`MODULE:FUNCTION` that makes them (`mtl.analysis.measuring`). Results depend on the module and all that
    it imports. Empty: training makes them."""
    measures: tuple[Measure, ...] = ()
    """The measures that heads.parquet gets, the main one first."""
    summary: str = ""
    """The text in the overview of commands."""
    made_by: str = ""
    """The command that makes them, in messages; empty: `mtl NAME RUN`, which follows from this row."""
    settings: tuple[str, ...] = ("sentences",)
    """The keys of a study's `probes` that change the result. With `split`, the group judges what others
    chose, and is measured on the test split unless another one is given; without it, on the dev split."""
    corpus: str = ""
    """The key of a study's `probes` that names a corpus for this group; empty: it reads the run's corpus."""
    file: str = "heads.parquet"
    """The file in the run's folder that is there once the group is measured."""
    study: str = ""
    """`MODULE:FUNCTION` that measures it in a study; empty: `code`, with the settings that it takes."""
    shown: str = ""
    """`MODULE:FUNCTION` that prints its rows; empty: the heads with the highest values are printed."""

    @property
    def names(self) -> tuple[str, ...]:
        """All values of the column `measure` that belong to the group."""
        return tuple(name for measure in self.measures for name in measure.names)

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules on which its results depend, with all that these import."""
        functions = [self.code, *(measure.probes for measure in self.measures if measure.probes)]
        return tuple(dict.fromkeys(function.partition(":")[0] for function in functions))


def _tested(name: str) -> tuple[str, ...]:
    """The companions of a difference that is tested: its interval, p, and p adjusted for all heads."""
    return tuple(f"{name}_{end}" for end in ("low", "high", "p", "q"))


_ATTENTION = "mtl.probes.measures.attention:probes"
_CLUSTERING = "mtl.probes.measures.clustering:probes"
_ROLES = "mtl.probes.measures.roles:probes"

GROUPS: dict[str, Group] = {
    "probes": Group(
        "mtl.analysis.probing.run:probe_run",
        (
            Measure(
                "attention", "arcs and arguments met by the most attended word", skill=True,
                chance="attention_offset", chance_title="best fixed offset", probes=_ATTENTION,
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
        settings=("corpus", "split", "centroids", "final_special"),
        corpus="corpus",
        study="mtl.study.measures.measure:probed",
    ),
    "training": Group(
        "",
        (Measure("gradient_conflict", "cosine between the gradients of two tasks", unit="number"),),
        made_by="mtl train --gradient_conflict_every=N",
    ),
    "importance": Group(
        "mtl.analysis.importance.run:measure_importance",
        (
            Measure(
                "importance",
                "mean size of the loss's derivative with respect to the head's gate, nats per sentence",
                unit="number", predictor="importance",
            ),
            Measure(
                "taylor", "first-order rise of the loss without the head, nats per sentence", unit="number",
                predictor="Taylor", signed=True,
            ),
            Measure(
                "fisher", "mean squared derivative of the loss with respect to the head's gate",
                unit="number", predictor="Fisher",
            ),
            Measure(
                "integrated", "rise of the loss by integrated gradients, nats per sentence", unit="number",
                predictor="integrated gradients", signed=True,
            ),
        ),
        "measure heads by gradients of the loss",
    ),
    "ablation": Group(
        "mtl.analysis.ablation.run:measure_ablation",
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
        study="mtl.study.measures.measure:ablated",
    ),
    "relevance": Group(
        "mtl.analysis.relevance.run:measure_relevance",
        (
            Measure(
                "relevance", "share of its layer's relevance for the score of a task", predictor="relevance"
            ),
            Measure("relevance_signed", "relevance for the score of a task", unit="number"),
        ),
        "measure how much of a task's score passes through each attention head",
        shown="mtl.commands.show_relevance:show",
    ),
    "curve": Group(
        "mtl.analysis.curves.methods:methods_of",
        made_by="mtl curve RUN",
        settings=("split", "sentences", "orders", "draws"),
        file="curve.parquet",
        study="mtl.study.measures.measure:curve",
    ),
    "carry_over": Group(
        "mtl.analysis.importance.run:measure_importance",
        made_by="mtl study FILE",
        settings=("split", "sentences", "other"),
        corpus="other",
        file="importance-other.parquet",
        study="mtl.study.measures.measure:carried_over",
    ),
}  # fmt: skip
"""Every group by its name in a study's `probes.measures`, in the order in which reports list them."""


def measured_groups() -> tuple[str, ...]:
    """The groups that can be measured on a finished run; those that may read heads.parquet come last."""
    names = [name for name, group in GROUPS.items() if group.code]
    return tuple(
        sorted(names, key=lambda name: GROUPS[name].file != Group.__dataclass_fields__["file"].default)
    )


def made_with(measure: str) -> str:
    """The command that makes a measure, for messages."""
    name = next(name for name, group in GROUPS.items() if measure in group.names)
    command = GROUPS[name].made_by or f"mtl {name} RUN"
    return command + (" --steps=N" if measure == "integrated" else "")

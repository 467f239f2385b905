"""What the heads of an encoder are good at, measured on a corpus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl
from jaxtyping import Float
from torch import Tensor

from mtl.analysis.observe import Observer
from mtl.errors import InputError
from mtl.models.encoder import Encoder
from mtl.models.joint import JointModel
from probes.measures import items, passes, roles
from probes.measures.attention import AttentionProbe
from probes.measures.clustering import ClusteringProbe
from probes.measures.items import ITEMS_OF, Items
from probes.measures.probe import Probe
from probes.measures.record import HeadRecords
from tasks.sentence import Sentence

TASKS = tuple(ITEMS_OF)
BY_ATTENTION = ("dep", "srl")
"""The tasks probed by attention; the others are probed by clustering."""
MEASURES = (
    "attention", "attention_offset", "clustering", "clustering_shuffled", "clustering_majority",
    "confidence", "positional", "syntactic", "syntactic_offset", "rare_words",
)  # fmt: skip
"""All that is measured here."""


@dataclass(frozen=True, slots=True)
class Mask:
    """A mask over the heads, and what is probed under it."""

    name: str
    """The task that the mask belongs to; empty: all tasks."""
    tasks: tuple[str, ...]
    head_scale: Float[Tensor, "layer head"] | None


def masks_of(model: JointModel, annotated: Sequence[str]) -> list[Mask]:
    """A trained model's masks as they are in evaluation, each with the annotated tasks probed under it.

    A mask that tasks share serves all tasks, whether trained or not; a task's own mask serves that task.
    """
    if model.gates is None:
        return [Mask("", tuple(annotated), None)]
    gates = model.gates.gate().detach()
    if len(gates) == 1:
        return [Mask("", tuple(annotated), gates[0])]
    return [
        Mask(name, (name,), gates[turn]) for turn, name in enumerate(model.gates.masks) if name in annotated
    ]


@dataclass(frozen=True, slots=True)
class Probed:
    """A corpus indexed for probing: what is probed for per task, and where fitted figures come from."""

    sentences: Sequence[Sentence]
    items: Mapping[str, Items]
    fitted_sentences: Sequence[Sentence] | None
    """Other sentences that centroids and word frequencies are taken from; `None`: the same."""
    fitted: Mapping[str, Items]
    choice: str
    """Where they come from, in a word."""

    @classmethod
    def index(
        cls,
        sentences: Sequence[Sentence],
        fitted_sentences: Sequence[Sentence] | None = None,
        choice: str = "self",
    ) -> Probed:
        """Index all tasks that have something to probe for."""
        own = {name: items.index(sentences, items_of) for name, items_of in ITEMS_OF.items()}
        own = {name: each for name, each in own.items() if len(each)}
        if not own:
            raise InputError(f"none of {len(sentences)} sentences has an annotation to probe for")
        if fitted_sentences is None:
            return cls(sentences, own, None, own, choice)
        fitted: dict[str, Items] = {}
        for name in [name for name in own if name not in BY_ATTENTION]:
            names = {*own[name].names, *items.index(fitted_sentences, ITEMS_OF[name]).names}
            own[name] = items.index(sentences, ITEMS_OF[name], names)
            fitted[name] = items.index(fitted_sentences, ITEMS_OF[name], names)
            if not len(fitted[name]):
                raise InputError(
                    f"no sentence to take centroids from is annotated for {name}: use --centroids=self"
                )
        return cls(sentences, own, fitted_sentences, fitted, choice)

    def rarest(self) -> Tensor:
        """The rarest word of each sentence; see `rarest_words`."""
        counted = self.sentences if self.fitted_sentences is None else self.fitted_sentences
        frequencies = Counter(word for sentence in counted for word in sentence.words)
        return roles.rarest_words(self.sentences, frequencies)


def probe(
    encoder: Encoder,
    corpus: Probed,
    mask: Mask,
    *,
    final_special: bool = False,
    seed: int = 0,
    kept: int = passes.KEPT,
    advance: Callable[[int], None] = lambda sentences: None,
) -> pl.DataFrame:
    """The tidy table of an encoder under one mask; `advance` is told how many sentences each batch has"""
    layers, heads = encoder.layers, encoder.heads
    probes: list[Probe] = [
        AttentionProbe(name, corpus.items[name], layers, heads, root=name == "dep", final=final_special)
        for name in mask.tasks
        if name in BY_ATTENTION
    ]
    probes += [
        ClusteringProbe(
            name, corpus.items[name], corpus.fitted[name], layers, heads, encoder.head_dim,
            choice=corpus.choice, seed=seed,
        )
        for name in mask.tasks
        if name not in BY_ATTENTION
    ]  # fmt: skip
    probes += [
        roles.ConfidenceProbe(mask.name, layers, heads),
        roles.PositionalProbe(mask.name, layers, heads),
        roles.RareWordProbe(mask.name, corpus.rarest(), layers, heads, choice=corpus.choice),
    ]
    if "dep" in mask.tasks:
        probes.append(roles.SyntacticProbe("dep", corpus.items["dep"], layers, heads, final=final_special))
    device = next(encoder.parameters()).device
    scale = None if mask.head_scale is None else mask.head_scale.to(device)

    def watched(observer: Observer, batch: int) -> HeadRecords:
        records = observer[batch]
        advance(len(records.sentences))
        return records

    observer = Observer(encoder, corpus.sentences, scale)
    elsewhere = None
    if corpus.fitted_sentences is not None and any(name not in BY_ATTENTION for name in mask.tasks):
        other = Observer(encoder, corpus.fitted_sentences, scale)
        elsewhere = (watched(other, batch) for batch in range(len(other)))
    passes.measure(len(observer), lambda batch: watched(observer, batch), probes, elsewhere, kept)
    return pl.concat([each.compute() for each in probes])

"""Probe the heads of an encoder on a corpus: what each is good at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars as pl
from jaxtyping import Float
from torch import Tensor

from mtl.analysis.observe import Observer
from mtl.errors import InputError, as_input_error
from mtl.models.encoder import Encoder
from mtl.models.joint import JointModel
from mtl.models.source_encoder import SourceEncoder
from mtl.probes import heads_table
from mtl.probes.measures import passes
from mtl.probes.measures.corpus import ProbeCorpus, ProbeSettings
from mtl.probes.measures.probe import FittedProbe
from mtl.probes.measures.projection import DRAWS, random_projections
from mtl.probes.measures.record import HeadRecords
from mtl.probes.measures.table import probes_for
from mtl.tasks.sentence import Sentence
from mtl.tasks.twins import task_of


@dataclass(frozen=True, slots=True)
class Mask:
    """A mask over the heads, and the tasks that are measured under it."""

    name: str
    """The task that the mask belongs to; empty: all tasks."""
    tasks: tuple[str, ...]
    head_scale: Float[Tensor, "site head"] | None
    """`None`: all heads open."""


def masks_of(model: JointModel, annotated: Sequence[str]) -> list[Mask]:
    """A trained model's masks as they are in evaluation, each with the annotated tasks probed under it.

    A shared mask serves all annotated tasks, also those that the model was not trained on. A task's own mask
    serves that task. Where some heads belong to some tasks only, each task gets a mask that closes the heads
    of the others. Raises `InputError` for twins with a mask each.
    """
    if model.gates is None:
        return open_masks(model, annotated)
    gates = model.gates.gate().detach()
    if model.routes is not None:
        return [
            Mask(mask.name, mask.tasks, mask.head_scale * gates[model.mask_index(mask.name)])
            for mask in open_masks(model, annotated)
            if mask.head_scale is not None
        ]
    if len(gates) == 1:
        return [Mask("", tuple(annotated), gates[0])]
    if twin := next((name for name in model.gates.masks if task_of(name) != name), None):
        raise InputError(
            f"twins with a mask each ({twin}) cannot be probed: both are for the labels of {task_of(twin)}; "
            "probe with --masks=false, or single runs"
        )
    return [
        Mask(name, (name,), gates[turn]) for turn, name in enumerate(model.gates.masks) if name in annotated
    ]


def open_masks(model: JointModel, annotated: Sequence[str]) -> list[Mask]:
    """The masks of a model without its gates: all heads that a task has are open."""
    if model.routes is None:
        return [Mask("", tuple(annotated), None)]
    return [
        Mask(name, (name,), model.routes[turn]) for turn, name in enumerate(model.tasks) if name in annotated
    ]


def index_corpus(
    sentences: Sequence[Sentence],
    fitted_sentences: Sequence[Sentence] | None = None,
    choice: str = "self",
) -> ProbeCorpus:
    """A corpus indexed for probing; raises `InputError` if there is nothing to probe for."""
    with as_input_error():
        return ProbeCorpus.index(sentences, fitted_sentences, choice)


def probe(
    encoder: Encoder | SourceEncoder,
    corpus: ProbeCorpus,
    mask: Mask,
    *,
    final_special: bool = False,
    seed: int = 0,
    draws: int = DRAWS,
    kept: int = passes.KEPT,
    advance: Callable[[int], None] = lambda sentences: None,
) -> pl.DataFrame:
    """The tidy table of all measures on an encoder's heads under one mask.

    `final_special`, `seed` and `draws` are those of `ProbeSettings`; `kept` is the size in bytes of the
    records kept between passes, at most; `advance` receives the number of sentences of each finished batch.
    """
    probes = probes_for(
        ProbeSettings(
            corpus,
            mask.name,
            mask.tasks,
            encoder.layers,
            encoder.heads,
            encoder.head_dim,
            final_special,
            seed,
            encoder.causal,
            draws,
        )
    )
    device = next(encoder.parameters()).device
    scale = None if mask.head_scale is None else mask.head_scale.to(device)

    def observed(observer: Observer, batch: int) -> HeadRecords:
        records = observer[batch]
        advance(len(records.sentences))
        return records

    hidden = encoder.transformer.config.hidden_size
    projections = random_projections(encoder.layers, hidden, encoder.head_dim, draws, seed)
    observer = Observer(encoder, corpus.sentences, scale, projections=projections)
    fitted_records = None
    if corpus.fitted_sentences is not None and any(isinstance(probe, FittedProbe) for probe in probes):
        fitted = Observer(encoder, corpus.fitted_sentences, scale, projections=projections)
        fitted_records = (observed(fitted, batch) for batch in range(len(fitted)))
    passes.measure(len(observer), lambda batch: observed(observer, batch), probes, fitted_records, kept)
    return heads_table.at_sites(pl.concat([probe.compute() for probe in probes]), encoder.tap.sites)

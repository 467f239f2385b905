"""Probe the heads of an encoder on a corpus: what each of them is good at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import polars as pl

from mtl.analysis.probing.observe import ObservedCorpus
from mtl.errors import as_input_error
from mtl.models.head_scales import Mask
from mtl.models.tapped import WordReader
from mtl.probes.measures import passes
from mtl.probes.measures.corpus import ProbeCorpus, ProbeSettings
from mtl.probes.measures.items import PROBE_TARGETS, ProbeTarget
from mtl.probes.measures.probe import FittedProbe
from mtl.probes.measures.projection import DRAWS, random_projections
from mtl.probes.measures.record import HeadRecords
from mtl.probes.measures.table import probes_for
from mtl.probes.tables import heads_table
from mtl.tasks.sentence import Sentence


def index_corpus(
    sentences: Sequence[Sentence],
    fitted_sentences: Sequence[Sentence] | None = None,
    choice: str = "self",
    targets: Mapping[str, ProbeTarget] = PROBE_TARGETS,
) -> ProbeCorpus:
    """A corpus indexed for probing (`ProbeCorpus.index`); raises `InputError` if nothing can be probed."""
    with as_input_error():
        return ProbeCorpus.index(sentences, fitted_sentences, choice, targets)


def probe(
    encoder: WordReader,
    corpus: ProbeCorpus,
    mask: Mask,
    *,
    final_special: bool = False,
    seed: int = 0,
    draws: int = DRAWS,
    kept: int = passes.KEPT,
    advance: Callable[[int], None] = lambda sentences: None,
    watch: Callable[[HeadRecords], None] = lambda records: None,
) -> pl.DataFrame:
    """The tidy table of all measures on an encoder's heads under one mask.

    `final_special`, `seed` and `draws` are those of `ProbeSettings`. At most `kept` bytes of records are kept
    between passes. `advance` receives the number of sentences of each finished batch; `watch` receives the
    records of each batch of the corpus, those of some batches twice.
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

    def observed(batches: ObservedCorpus, batch: int) -> HeadRecords:
        records = batches[batch]
        advance(len(records.sentences))
        return records

    hidden = encoder.transformer.config.hidden_size
    projections = random_projections(encoder.layers, hidden, encoder.head_dim, draws, seed)
    read = ObservedCorpus(encoder, corpus.sentences, scale, projections=projections)
    fitted_records = None
    if corpus.fitted_sentences is not None and any(isinstance(probe, FittedProbe) for probe in probes):
        fitted = ObservedCorpus(encoder, corpus.fitted_sentences, scale, projections=projections)
        fitted_records = (observed(fitted, batch) for batch in range(len(fitted)))

    def watched(batch: int) -> HeadRecords:
        records = observed(read, batch)
        watch(records)
        return records

    passes.measure(len(read), watched, probes, fitted_records, kept)
    return heads_table.at_sites(pl.concat([probe.compute() for probe in probes]), encoder.tap.sites)

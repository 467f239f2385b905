"""The sink share and the entropy of a run's heads, as rows of heads.parquet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mtl.analysis.measuring import Measured, Progress, silent
from mtl.errors import InputError
from mtl.tasks.in_words import counted

if TYPE_CHECKING:
    import polars as pl

    from mtl.analysis.trained import TrainedRun
    from mtl.heads.gates import Mask
    from mtl.models.tapped import WordReader
    from mtl.tasks.sentence import Sentence

MEASURES = ("sink", "entropy")


def measure_patterns(trained: TrainedRun, *, masks: bool = True, progress: Progress = silent) -> Measured:
    """Measure where the attention of each head goes, and write it into the run's heads.parquet.

    Attention is at word level, as in probes. `sink` is the share that goes to special tokens: 1 minus the
    attention to words, so that a learned sink counts, too. Where a model has no special tokens, the first
    word of a row counts as one, and is left out as an attending word. `entropy` is that of the distribution
    over words and special tokens. Both are means over words. Of encoder-decoder models, the encoder's heads
    are measured.

    Args:
        trained: The run, its model and sentences.
        masks: Whether the run's head masks are applied.
        progress: As in `mtl.analysis.measuring`.

    Raises:
        InputError: there is no sentence whose words the model reads one by one.
    """
    import polars as pl

    from mtl.analysis.probe import readable_sources, single_sentences

    model = trained.model
    encoder = model.encoder.word_reader()
    alone = single_sentences([example.sentence for example in trained.corpus])
    readable = readable_sources(encoder, alone, trained.split)
    if not readable.sentences:
        raise InputError(
            f"none of the {counted(len(trained.corpus), 'sentence')} is a single one in which every word has "
            "pieces of its own: use --corpus"
        )
    chosen = model.scales.masks(tuple(trained.tasks), gated=masks)
    with progress(len(chosen) * len(readable.sentences)) as advance:
        tables = [pattern_rows(encoder, readable.sentences, mask, advance) for mask in chosen]
    pairs = len(trained.corpus) - len(alone)
    left_out = [f"left out: {counted(pairs, 'pair')} of sentences"] if pairs else []
    notes = (*left_out, *(f"left out: {line}" for line in readable.left_out), *readable.notes)
    return Measured(pl.concat(tables), {"masks": masks}, notes)


def pattern_rows(
    encoder: WordReader, sentences: Sequence[Sentence], mask: Mask, advance: Callable[[int], None]
) -> pl.DataFrame:
    """The rows of a mask; heads that were cut out have none."""
    import numpy as np
    import polars as pl
    import torch

    from mtl.analysis.probe import ObservedCorpus
    from mtl.probes.tables import heads_table

    scale = mask.head_scale
    if scale is not None:
        scale = scale.to(next(encoder.parameters()).device)
    corpus = ObservedCorpus(encoder, sentences, scale)
    special = bool(len(encoder.tokenizer.prefix) or len(encoder.tokenizer.suffix))
    total = torch.zeros(2, encoder.layers, encoder.heads, dtype=torch.float64)
    count = 0
    for batch, numbers in enumerate(corpus.batches):
        observation, positions = corpus.observed(batch)
        # Where no special token takes it, the first word of a row is the one that everything can see.
        attends = torch.ones_like(positions.row, dtype=torch.bool)
        if not special:
            attends = positions.column[positions.row, positions.first] > 1
        first_word = 1 if special else 2
        for site, attention in enumerate(observation.attentions):
            to = positions.attention(attention)[: len(attends)][attends].double()
            sink = 1 - to[..., first_word : positions.width + 1].sum(-1)
            spread = torch.special.entr(to / to.sum(-1, keepdim=True)).sum(-1)
            total[:, site] += torch.stack([sink, spread]).sum(1).cpu()
        count += int(attends.sum())
        advance(len(numbers))
    value, counts = (total / max(count, 1)).numpy(), np.array([count])
    tables = [
        heads_table.rows(name, mask.name, [""], of_measure[None], counts, "" if special else "first word")
        for name, of_measure in zip(MEASURES, value, strict=True)
    ]
    there = [(site, head) for site, heads in enumerate(encoder.tap.remaining) for head in heads]
    rows = pl.concat(tables).join(
        pl.DataFrame(there, {key: heads_table.SCHEMA[key] for key in ("layer", "head")}, orient="row"),
        on=("layer", "head"), how="semi", maintain_order="left",
    )  # fmt: skip
    return heads_table.at_sites(rows, encoder.tap.sites)

"""Probe the heads of an encoder on a corpus: records of what they do, and what each is good at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from mtl.errors import InputError, as_input_error
from mtl.models.batches import buckets
from mtl.models.head_scales import Mask
from mtl.models.passes import in_evaluation_mode
from mtl.models.subwords import Subwords, Tensors, Tokens
from mtl.models.tapped import Observation, WordReader
from mtl.probes.measures import probe as probe_module
from mtl.probes.measures.corpus import PROBE_TARGETS, ProbeCorpus, ProbeSettings, ProbeTarget
from mtl.probes.measures.groups import probes_for
from mtl.probes.measures.probe import DRAWS, NOTHING, FittedProbe, HeadRecords, random_projections
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


def probe_heads(
    encoder: WordReader,
    corpus: ProbeCorpus,
    mask: Mask,
    *,
    final_special: bool = False,
    seed: int = 0,
    draws: int = DRAWS,
    kept: int = probe_module.KEPT,
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

    probe_module.run_probes(len(read), watched, probes, fitted_records, kept)
    return heads_table.at_sites(pl.concat([probe.compute() for probe in probes]), encoder.tap.sites)


BATCH_TOKENS = 2048
"""Padded positions in a batch: few, since the attention of all layers is in memory at once."""


class ObservedCorpus:
    """A corpus in batches of sentences of nearly equal length, observed under a mask over the heads.

    A mask scales outputs, not attention: a head whose gate is 0 still has a most attended word, but its
    output is zero.

    Args:
        encoder: The encoder.
        sentences: The corpus.
        head_scale: The mask; `None`: all heads open.
        batch_tokens: Maximum number of padded positions per batch.
        projections: Maps that are applied to the input of each layer's attention; `None`: none.

    Raises:
        InputError: a sentence without words.
    """

    def __init__(
        self,
        encoder: WordReader,
        sentences: Sequence[Sentence],
        head_scale: Float[Tensor, "site head"] | None = None,
        batch_tokens: int = BATCH_TOKENS,
        projections: Float[Tensor, "layer hidden draw head_dim"] | None = None,
    ) -> None:
        empty = [number for number, sentence in enumerate(sentences, 1) if not len(sentence)]
        if empty:
            raise InputError(f"sentence {empty[0]} has no words: leave it out")
        self.encoder, self.head_scale, self.projections = encoder, head_scale, projections
        self._corpus = encoder.tokenizer.encode_sentences(sentences)
        lengths = [encoder.tokenizer.length(tokens) for tokens in self._corpus]
        self.batches = buckets(lengths, batch_tokens, None, None)
        """The numbers of the sentences in each batch."""

    def __len__(self) -> int:
        return len(self.batches)

    @torch.inference_mode()
    def __getitem__(self, batch: int) -> HeadRecords:
        """Observe one batch; raises `IndexError` past the last one, so that iteration ends."""
        observation, positions = self.observed(batch)
        numbers, device = self.batches[batch], positions.row.device
        if self.projections is not None:
            self.projections = self.projections.to(device, non_blocking=True)
        return records(
            observation,
            positions,
            torch.tensor(numbers),
            torch.tensor([len(self._corpus[number]) for number in numbers]),
            self._cut_out().to(device, non_blocking=True),
            self.encoder.tokenizer,
            self.projections,
        )

    @torch.inference_mode()
    def observed(self, batch: int) -> tuple[Observation, WordPositions]:
        """The observation of a batch, by pieces, and where its words are in it."""
        tokens = [self._corpus[number] for number in self.batches[batch]]
        subwords = self.encoder.tokenizer.collate(tokens)
        device = next(self.encoder.parameters()).device
        with in_evaluation_mode(self.encoder):
            observation = self.encoder.observe(subwords.to(device), self.head_scale)
        return observation, word_positions(subwords, tokens, self.encoder.tokenizer).to(device)

    def _cut_out(self) -> Bool[Tensor, "layer head"]:
        tap = self.encoder.tap
        cut_out = torch.ones(len(tap.sites), tap.heads, dtype=torch.bool)
        for site, heads in enumerate(tap.remaining):
            cut_out[site, list(heads)] = False
        return cut_out


@dataclass(frozen=True, slots=True)
class WordPositions(Tensors):
    """Where the words of a batch are in its rows; the words of all sentences follow each other."""

    rows: Int[np.ndarray, " word"]
    """The row that owns the word, on the host."""
    row: Int[Tensor, " word"]
    """The same beside the other tensors."""
    first: Int[Tensor, " word"]
    """The position of its first piece in that row."""
    pieces: Int[Tensor, " word"]
    """Its number of pieces."""
    more: Int[Tensor, "3 _"]
    """Word, row and position of every piece that is not the first of its word."""
    column: Int[Tensor, "row subword"]
    """The column of attended words that each position counts for: 0 for the first special token, 1 + the
    word's place in the row for each piece (owned by the row or not), `width` + 1 for the final special token,
    `width` + 2 for all others."""
    base: Int[Tensor, " row"]
    """The number of each row's first word in its sentence."""
    width: int
    """The largest number of words in a row."""
    last: bool = False
    """Whether a word is read at its last piece only: in causal models, no other piece has seen all of it."""

    def mean(self, pieces: Float[Tensor, "row subword ..."]) -> Float[Tensor, "word ..."]:
        """The mean over each word's pieces, or the value of its last piece (`last`)."""
        if self.last:
            return pieces[self.row, self.first + self.pieces - 1]
        # Most words are one piece, so take every first piece and change only words that have more.
        words = pieces[self.row, self.first]
        word, row, position = self.more
        if len(word):
            words.index_add_(0, word, pieces[row, position])
            words /= self.pieces.to(words.dtype).view(-1, *[1] * (words.dim() - 1))
        return words

    def attention(
        self, pieces: Float[Tensor, "row head subword subword"]
    ) -> Float[Tensor, "query head column"]:
        """The attention of words, and then of each row's first special token, to the columns of `column`.

        It is summed over the pieces of an attended word, and averaged over those of an attending word.
        """
        row, head, subword, _ = pieces.shape
        member = functional.one_hot(self.column, self.width + 3)[..., : self.width + 2].to(pieces.dtype)
        to_words = (pieces.reshape(row, head * subword, subword) @ member).view(row, head, subword, -1)
        return torch.cat([self.mean(to_words.transpose(1, 2)), to_words[:, :, 0]])


def word_positions(subwords: Subwords, tokens: Sequence[Tokens], tokenizer: Any) -> WordPositions:
    """Where the words of a batch are, on the CPU."""
    slot, nowhere = subwords.slot, subwords.sentences * subwords.width
    row, position = (slot != nowhere).nonzero(as_tuple=True)
    # Rows and the words that they own both ascend, so a word's pieces are adjacent.
    _, word, pieces = slot[row, position].unique_consecutive(return_inverse=True, return_counts=True)
    begin = pieces.cumsum(0) - pieces
    further = torch.ones(len(word), dtype=torch.bool)
    further[begin] = False

    counts = [sentence.counts for sentence in tokens]
    rows, _ = tokenizer.rows(counts)
    length = torch.from_numpy(rows.length)
    word_of_piece = np.concatenate([np.repeat(np.arange(len(count)), count) for count in counts])
    in_sentence = torch.from_numpy(word_of_piece[rows.pieces])
    base = in_sentence[length.cumsum(0) - length]
    in_row = in_sentence - base.repeat_interleave(length)
    width = int(in_row.max()) + 1

    before, after = len(tokenizer.prefix), len(tokenizer.suffix)
    across = torch.arange(slot.shape[1])
    column = torch.full_like(slot, width + 2)
    column[(across >= before) & (across < before + length[:, None])] = 1 + in_row
    if before:
        column[:, 0] = 0
    if after:
        column[torch.arange(len(length)), before + length + after - 1] = width + 1
    more = torch.stack([word[further], row[further], position[further]])
    owner = row[begin]
    return WordPositions(
        owner.numpy(), owner, position[begin], pieces, more, column, base, width, last=tokenizer.causal
    )


def records(
    observation: Observation,
    positions: WordPositions,
    sentences: Int[Tensor, " batch"],
    lengths: Int[Tensor, " batch"],
    cut_out: Bool[Tensor, "layer head"],
    tokenizer: Any,
    projections: Float[Tensor, "layer hidden draw head_dim"] | None = None,
) -> HeadRecords:
    """Reduce an observation to word level, and project the inputs of attention if projections are given.

    `sentences` and `lengths` are as in `HeadRecords`; `cut_out` marks heads that were cut out of the model.
    """
    like = observation.outputs[0]
    words, width = len(positions.row), positions.width
    shape = (words + len(positions.base), *cut_out.shape)
    word = torch.empty(shape, dtype=torch.long, device=like.device)
    peak, root, final = (like.new_full(shape, -1) for _ in range(3))
    outputs = like.new_empty(words, *cut_out.shape, like.shape[-1])
    draws = 0 if projections is None else projections.shape[2]
    projected = like.new_empty(words, len(cut_out), draws, like.shape[-1])
    for layer, attention in enumerate(observation.attentions):
        queries = positions.attention(attention)
        peak[:, layer], word[:, layer] = queries[..., 1 : width + 1].max(-1)
        if tokenizer.prefix:
            root[:, layer] = queries[..., 0]
        if tokenizer.suffix:
            final[:, layer] = queries[..., width + 1]
        outputs[:, layer] = positions.mean(observation.outputs[layer])
        if projections is not None:
            read = positions.mean(observation.inputs[layer])
            projected[:, layer] = torch.einsum("wi,ijd->wjd", read, projections[layer].to(read))
    word += torch.cat([positions.base[positions.row], positions.base])[:, None, None]
    word.masked_fill_(cut_out, NOTHING)
    if not tokenizer.prefix:
        word[words:] = NOTHING
    row = torch.from_numpy(positions.rows)
    return HeadRecords(sentences, lengths, row, word, peak, root, final, outputs, projected)

"""What is measured on the heads of a translation model: its encoder on annotated sources, so that heads can
be probed; what heads of the decoder and the cross attention attend to; and a batch translated under several
ablations in one search."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Int32
from tokenizers import Tokenizer
from torch import Tensor
from transformers.modeling_outputs import ModelOutput

from mtl.analysis.ablation import (
    AblatedCopies,
    Ablations,
    CountsByTask,
    Fill,
    Scale,
    closed_sites,
    under_scales,
)
from mtl.errors import InputError
from mtl.heads.replay import LayerReplay
from mtl.models.batches import Batch
from mtl.models.encoder import pool
from mtl.models.joint import JointModel
from mtl.models.subwords import Rows, Subwords, SubwordTokenizer, Tokens
from mtl.models.tapped import WordReader
from mtl.probes.measures.attention import AttentionMatrix
from mtl.probes.sites import head_name
from mtl.tasks.decoders.decoder import at_least_float32
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Sentence
from mtl.translation.pieces import ParallelSubwords, ParallelTokenizer
from mtl.translation.seq2seq import Seq2Seq, decoder_inputs, translations
from mtl.translation.task import translation_in
from mtl.translation.two_files import source_words


class SourceTokenizer:
    """The pieces of annotated sources as a translation model reads them, and the word of each piece.

    A sentence is read as it was written (`Sentence.text`), since translation models learn from raw text, in
    which no space comes before a full stop. Without that text, words are joined by spaces. A piece belongs
    to the word that contains most of its characters (the first on ties).

    Args:
        tokenizer: the tokenizer of the model.

    Raises:
        InputError: a tokenizer that gives no offsets of its pieces in the text.
    """

    causal = False

    def __init__(self, tokenizer: ParallelTokenizer) -> None:
        fast = tokenizer.tokenizer
        if not getattr(fast, "is_fast", False):
            raise InputError(
                f"{type(fast).__name__} does not say where in a text its pieces are, so heads cannot be "
                "probed on words: use a run whose tokenizer has a tokenizer.json"
            )
        self._subwords = SubwordTokenizer(fast, tokenizer.max_length)
        self._pieces = Tokenizer.from_str(fast.backend_tokenizer.to_str())
        self._pieces.no_truncation()
        self._pieces.no_padding()
        self.tokenizer = fast
        self.prefix, self.suffix = self._subwords.prefix, self._subwords.suffix

    def encode_sentences(self, sentences: Sequence[Sentence]) -> list[Tokens]:
        """The pieces of every sentence; a word whose characters are all in its neighbours' pieces has none.

        Raises `InputError` for a word with more pieces than the model reads at once.
        """
        texts = [sentence.text or " ".join(sentence.words) for sentence in sentences]
        encodings = self._pieces.encode_batch(texts, add_special_tokens=False)
        tokens = []
        for sentence, text, encoding in zip(sentences, texts, encodings, strict=True):
            word_of = words_at(text, sentence.words)
            words = np.array([word_of_piece(word_of, *span) for span in encoding.offsets], dtype=np.int64)
            counts = np.bincount(words, minlength=len(sentence)).astype(np.int32)
            if (longest := int(counts.max(initial=0))) > self._subwords.room:
                raise InputError(
                    f"{sentence.place or 'a sentence'}: a word of {counted(longest, 'subword')}, and the "
                    f"model reads at most {self._subwords.room:,}: leave the sentence out"
                )
            tokens.append(Tokens(np.array(encoding.ids, dtype=np.int32), counts))
        return tokens

    def covers(self, sentences: Sequence[Sentence]) -> list[bool]:
        """Per sentence, whether each word has a piece; heads can be measured only on such sentences."""
        return [bool(tokens.counts.all()) for tokens in self.encode_sentences(sentences)]

    def length(self, tokens: Tokens) -> int:
        """The positions that a sentence takes, special tokens included."""
        return self._subwords.length(tokens)

    def rows(self, counts: Sequence[Int[np.ndarray, " _"]]) -> tuple[Rows, Int[np.ndarray, " row"]]:
        """The windows of sentences, given their pieces per word."""
        return self._subwords.rows(counts)

    def collate(self, batch: Sequence[Tokens]) -> Subwords:
        """Padded rows of a batch."""
        return self._subwords.collate(batch)


def words_at(text: str, words: Sequence[str]) -> Int32[np.ndarray, " character"]:
    """The word that each character of a text belongs to; -1 at white space.

    Words and text must be equal apart from white space.
    """
    letters = [number for number, word in enumerate(words) for letter in word if not letter.isspace()]
    of_text = np.full(len(text), -1, dtype=np.int32)
    of_text[[place for place, letter in enumerate(text) if not letter.isspace()]] = letters
    return of_text


def word_of_piece(word_of: Int32[np.ndarray, " character"], start: int, end: int) -> int:
    """The word that most characters of a piece (`start` to `end`) are from.

    A piece of white space belongs to the word after it, or to the last word at the end of the text.
    """
    inside = word_of[start:end]
    inside = inside[inside >= 0]
    if len(inside):
        first = int(inside[0])
        return first + int(np.bincount(inside - first).argmax())
    after = word_of[end:]
    after = after[after >= 0]
    return int(after[0]) if len(after) else int(word_of.max())


class SourceEncoder(WordReader):
    """The encoder of a translation model.

    Its sites and heads are numbered as in the tables of the whole model. The decoder does not take part.
    """

    def __init__(self, model: Seq2Seq) -> None:
        stacks = tuple(stack for stack in model.family.stacks if stack.kind == "encoder")
        super().__init__(model.transformer, dataclasses.replace(model.family, stacks=stacks))
        kinds = dict.fromkeys(site.attention for site in model.tap.sites)
        self.without = tuple(kind for kind in kinds if kind not in {stack.kind for stack in stacks})
        self.tokenizer = SourceTokenizer(model.tokenizer)
        self._rows_of_scale = [model.tap.sites.index(site) for site in self.tap.sites]

    def scaled(self, subwords: Subwords, head_scale: Tensor | None) -> AbstractContextManager[None]:
        """Inside the block, the scale applies; it has a row for every site of the whole model."""
        return nullcontext() if head_scale is None else self.tap.scale(head_scale[self._rows_of_scale])

    def covers(self, sentences: Sequence[Sentence]) -> list[bool]:
        """Per sentence, whether each word has a piece of its own."""
        return self.tokenizer.covers(sentences)

    def read(self, subwords: Subwords, **options: Any) -> ModelOutput:
        """The output of the model's encoder."""
        return self.transformer.get_encoder()(
            input_ids=subwords.input_ids, attention_mask=subwords.attention_mask, **options
        )

    def words(self, output: ModelOutput, subwords: Subwords) -> Float[Tensor, "batch word hidden"]:
        """The mean of each word's pieces."""
        return pool(at_least_float32(output.last_hidden_state), subwords, "mean")


def attention_matrices(
    model: JointModel,
    encoder: Seq2Seq,
    site: int,
    head: int,
    sentences: Sequence[Sentence],
    texts: Sequence[str] | None,
    head_scale: Float[Tensor, "site head"] | None,
) -> list[AttentionMatrix]:
    """The attention of a head for each sentence and its translation; without `texts`, the model translates.

    Sources are read as in training, with spaces between words as they were written. A row is the subword that
    the decoder predicts at a position. Columns are those that it attends to: of the source in cross
    attention, else those that the decoder has read, which begin with its start token.

    Raises `InputError` for a text with more subwords than the model reads.
    """
    task = translation_in(model.tasks)
    assert task is not None
    tokenizer, device = encoder.tokenizer, model.device
    if head_scale is not None:
        head_scale = head_scale.to(device)
    name, kind = (
        head_name(encoder.tap.sites[site], head, encoder.tap.sites),
        encoder.tap.sites[site].attention,
    )
    found = []
    for number, sentence in enumerate(sentences):
        source = Sentence(source_words(sentence.text or " ".join(sentence.words)), place=sentence.place)
        pair = source if texts is None else source.with_layers({task.layer: texts[number]})
        subwords = tokenizer.collate(tokenizer.encode_sentences([pair])).to(device)
        if texts is None:
            written = encoder.search(
                subwords, head_scale, beam=task.beam, length_penalty=task.length_penalty,
                beam_spread=task.beam_spread,
            )  # fmt: skip
            read, predicted = written[:, :-1], written[:, 1:]
        else:
            assert subwords.pieces is not None
            read, predicted = decoder_inputs(encoder.transformer, subwords.pieces), subwords.pieces
        weights = encoder.attention(subwords, read, site, head, head_scale)[0]
        columns = read if kind == "decoder" else subwords.input_ids
        found.append(
            AttentionMatrix(
                ", ".join(filter(None, (name, sentence.id))),
                subword_texts(tokenizer, predicted[0]),
                subword_texts(tokenizer, columns[0]),
                weights.cpu().numpy(),
            )
        )
    return found


def subword_texts(tokenizer: ParallelTokenizer, ids: Int[Tensor, " position"]) -> tuple[str, ...]:
    """The text of each subword, after `▁` if a word begins with it; special tokens by their names."""
    fast = tokenizer.tokenizer
    special = set(fast.all_special_ids)
    texts = []
    for number, name in zip(ids.tolist(), fast.convert_ids_to_tokens(ids.tolist()), strict=True):
        begins = "▁" if name[:1] in ("▁", "Ġ") else ""
        texts.append(name if number in special else begins + fast.decode([number]).strip())
    return tuple(texts)


class TranslatedCopies(AblatedCopies):
    """Translations: the encoder runs once, and again only from the first closed head in it.

    Searches share nothing, since each ablation may change the choice from the first piece on.
    """

    tokens = 4096  # many, since a search step costs nearly as much for few

    def __init__(self, model: JointModel) -> None:
        encoder, task = model.encoder, translation_in(model.tasks)
        assert isinstance(encoder, Seq2Seq)
        assert task is not None
        self._name = task.name
        self._task, self.encoder = task, encoder
        self._replay = LayerReplay(encoder.transformer, encoder.family, encoder_alone=True)
        self._encoded: Float[Tensor, "row subword hidden"]

    def start(self, sites: Iterable[int]) -> int:
        """The same for all, so that any ablations may share a search; one search costs less than several."""
        return 0

    def unchanged(self, batch: Batch, scale: Scale | None) -> CountsByTask:
        """See `AblatedCopies`; also records the outputs of the encoder, its layers and heads."""
        subwords = _pieces(batch)
        # Heads must be recorded before they are scaled, so the scale is entered last.
        with self._replay.record(), under_scales(self.encoder.tap, scale, None, None):
            self._encoded = self.encoder.encode(subwords)
            [counts] = self._counts(batch, subwords, self._encoded)
        return counts

    def ablated(
        self, batch: Batch, scale: Scale | None, ablations: Ablations, fill: Fill | None
    ) -> list[CountsByTask]:
        """See `AblatedCopies`."""
        subwords = _pieces(batch)
        encoded = self._encoded_by_copy(subwords, scale, ablations, fill)
        of_row = ablations.to(batch.mask.device).repeat_interleave(subwords.sentences, 0)
        with under_scales(self.encoder.tap, scale, of_row, fill, self._task.beam):
            return self._counts(batch, _copied(subwords, len(ablations)), encoded.flatten(0, 1))

    def _encoded_by_copy(
        self, subwords: ParallelSubwords, scale: Scale | None, ablations: Ablations, fill: Fill | None
    ) -> Float[Tensor, "copy row subword hidden"]:
        """The encoder's output under each ablation; those that start at the same site share a pass."""
        encoded = self._encoded.repeat(len(ablations), 1, 1, 1)
        copies_by_start: dict[int, list[int]] = {}
        for copy, heads in enumerate(ablations):
            of_encoder = closed_sites(heads[: self._replay.sites])
            if of_encoder:
                copies_by_start.setdefault(self._replay.first(of_encoder), []).append(copy)
        for start, copies in copies_by_start.items():
            of_row = ablations[copies].to(encoded.device).repeat_interleave(subwords.sentences, 0)
            with (
                under_scales(self.encoder.tap, scale, of_row, fill),
                self._replay.start_at(start, len(copies)),
            ):
                above = self.encoder.encode(_copied(subwords, len(copies)))
            encoded[copies] = above.unflatten(0, (len(copies), subwords.sentences))
        return encoded

    def _counts(
        self, batch: Batch, subwords: ParallelSubwords, encoded: Float[Tensor, "row subword hidden"]
    ) -> list[CountsByTask]:
        """The counts of each copy of the batch, under the current scales."""
        gold = batch.of_task(self._name)
        copies = len(encoded) // len(batch.sentences)
        predicted = translations(
            self.encoder, self._task, subwords, list(batch.sentences) * copies, encoded=encoded
        )
        metric = self._task.metric()
        return [
            {self._name: metric.sentence_counts(predicted[first : first + len(gold)], gold)}
            for first in range(0, len(predicted), len(gold))
        ]


def _pieces(batch: Batch) -> ParallelSubwords:
    assert isinstance(batch.subwords, ParallelSubwords)
    return batch.subwords


def _copied(subwords: ParallelSubwords, copies: int) -> ParallelSubwords:
    return subwords.take(torch.arange(subwords.sentences, device=subwords.sentence.device).repeat(copies))

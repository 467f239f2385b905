"""Words to subwords: pieces per word, windows over long sentences, padded rows of a batch."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int, Int32
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from mtl.errors import InputError
from mtl.models.packed import Tensors
from mtl.models.pairs import PairTemplate, cut_pair, pair_template, special_tokens
from mtl.models.windows import Rows, rows_of
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Sentence


@dataclass(frozen=True, slots=True)
class Tokens:
    """A sentence's piece ids in one array, and how many of them each word has.

    Each word has at least one, except words that a pair longer than the window lost, and in `SourceTokenizer`
    words that their neighbours' pieces cover.
    """

    ids: Int32[np.ndarray, " subword"]
    counts: Int32[np.ndarray, " word"]
    shortened: int = 0
    """The number of words that lost pieces because they alone have more than the window holds."""
    second: int | None = None
    """The piece at which the second sentence of a pair begins; `None`: one sentence."""
    cut: bool = False
    """Whether a pair lost pieces because it is longer than the window."""

    def __len__(self) -> int:
        return len(self.counts)


@dataclass(frozen=True, slots=True)
class Subwords(Tensors):
    """Padded rows of subwords, and the word and sentence that each position contributes to."""

    input_ids: Int[Tensor, "row subword"]
    attention_mask: Int[Tensor, "row subword"]
    slot: Int[Tensor, "row subword"]
    """`sentence * width + word`; `sentences * width` at special tokens, padding and words that another window
    owns."""
    sentence: Int[Tensor, " row"]
    """The sentence of each row, ascending."""
    sentences: int
    width: int
    """Words of the longest sentence."""
    token_types: Int[Tensor, "row subword"] | None = None
    """The token type of each position, by the sentence of a pair; `None` if the batch has no pairs."""

    def take(self, sentences: Int[Tensor, " batch"]) -> Subwords:
        """The rows of the given sentences, in that order; a sentence may come more than once."""
        chosen = sentences.to(self.sentence.device)
        if len(self.sentence) == self.sentences:
            row, sentence = chosen, torch.arange(len(chosen), device=chosen.device)
        else:
            rows = torch.bincount(self.sentence, minlength=self.sentences)
            start = rows.cumsum(0) - rows
            sentence = torch.arange(len(chosen), device=chosen.device).repeat_interleave(rows[chosen])
            ahead = rows[chosen].cumsum(0) - rows[chosen]
            row = torch.arange(len(sentence), device=chosen.device) + (start[chosen] - ahead)[sentence]
        slot = self.slot[row]
        shift = (sentence - self.sentence[row])[:, None] * self.width
        nowhere = len(chosen) * self.width
        slot = torch.where(slot == self.sentences * self.width, nowhere, slot + shift)
        return Subwords(
            self.input_ids[row],
            self.attention_mask[row],
            slot,
            sentence,
            len(chosen),
            self.width,
            None if self.token_types is None else self.token_types[row],
        )

    def positions(self, attention: str) -> Int[Tensor, "row subword"]:
        """1 where there is a token, 0 at padding; the same for every kind of attention."""
        return self.attention_mask


class SubwordTokenizer:
    """A fast tokenizer applied word by word, with overlapping windows over long sentences.

    Byte-level tokenizers see a space before every word, so a word's pieces do not depend on its position. A
    pair of sentences is one window; if it is too long, the longer sentence loses its end. A tokenizer that
    puts nothing between the sentences of a pair gets its end-of-text token there. Padding is always at the
    end, so no position depends on it.

    Args:
        tokenizer: a fast tokenizer.
        max_length: the number of positions in a window, special tokens included.
        stride: the number of pieces from the start of a window to that of the next, which is moved back to
            the start of a word; `None`: half a window.
        causal: whether no position sees a later one, so that a word in several windows belongs to the one
            with the most pieces before the word.

    Raises:
        InputError: a tokenizer that is not fast, or `max_length` or `stride` out of range.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        max_length: int,
        stride: int | None = None,
        causal: bool = False,
    ) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise InputError(
                f"{type(tokenizer).__name__} is not a fast tokenizer; use an encoder with a tokenizer.json"
            )
        self.tokenizer, self.max_length, self.causal = tokenizer, max_length, causal
        # A copy without the truncation and padding that checkpoints may set.
        self._pieces = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._pieces.no_truncation()
        self._pieces.no_padding()
        self._before_word = " " if _space_belongs_to_word(self._pieces) else ""
        self.prefix, self.suffix = special_tokens(self._pieces)
        self._pair = pair_template(self._pieces)
        end, padding, unknown, mask = (
            getattr(tokenizer, f"{name}_token_id", None) for name in ("eos", "pad", "unk", "mask")
        )
        if self._pair is not None and not self._pair.between:
            self._pair = None if end is None else replace(self._pair, between=(int(end),))
        self.padding = 0 if padding is None else int(padding)
        self.unknown = next((int(id) for id in (unknown, padding, end) if id is not None), self.padding)
        """The id that a word without pieces gets: of the unknown token, else of padding, else of the end of a
        text. An ordinary piece's would be counted as unknown wherever it occurs."""
        self.has_mask_token = mask is not None
        self.mask: int | None = unknown if mask is None else int(mask)
        """The id that word dropout puts in place of words: the mask token's, else the unknown token's."""
        self.room = max_length - len(self.prefix) - len(self.suffix)
        if self.room < 1:
            raise InputError(
                f"a window of {counted(max_length, 'position')} has no room beside the special tokens: use "
                "longer windows"
            )
        self.stride = max(1, self.room // 2) if stride is None else stride
        if not 1 <= self.stride <= self.room:
            raise InputError(f"stride={self.stride}: use a number from 1 to {self.room}, a window's pieces")

    @property
    def pair(self) -> PairTemplate:
        """How two sentences are joined; raises `InputError` if the tokenizer has no template for pairs."""
        if self._pair is None:
            raise InputError(
                f"{type(self.tokenizer).__name__} has no template for pairs of sentences, with the special "
                "tokens of one sentence at its ends: use another encoder, or tasks for one sentence"
            )
        return self._pair

    def encode(self, words: Sequence[str], second: int | None = None) -> Tokens:
        """The pieces of one sentence, or of a pair; see `encode_all`."""
        return self.encode_all([words], [second])[0]

    def encode_all(
        self, sentences: Sequence[Sequence[str]], seconds: Sequence[int | None] | None = None
    ) -> list[Tokens]:
        """The pieces of every sentence; those with a number in `seconds` are pairs, divided at that word.

        A word without pieces gets the piece `unknown`. A word with more pieces than a window holds keeps its
        first ones; `Tokens.shortened` counts such words. One warning per call reports such words, and one
        reports pairs longer than a window.
        """
        before = self._before_word
        batch = [[before + word for word in words] if before else list(words) for words in sentences]
        encodings = self._pieces.encode_batch(batch, is_pretokenized=True, add_special_tokens=False)
        tokens = [
            self._tokens(encoding.ids, encoding.word_ids, len(words))
            for encoding, words in zip(encodings, batch, strict=True)
        ]
        if seconds is not None:
            tokens = self._with_pairs(tokens, seconds)
        self.warn_of(sum(sentence.shortened for sentence in tokens), sum(sentence.cut for sentence in tokens))
        return tokens

    def warn_of(self, shortened: int, cut: int) -> None:
        """Warn of words that lost pieces (`Tokens.shortened`), and of pairs that lost an end."""
        if cut:
            warnings.warn(
                f"{counted(cut, 'pair of sentences is', 'pairs of sentences are')} longer than a window of "
                f"{counted(self.max_length, 'position')}: the longer sentence of each loses its end",
                stacklevel=3,
            )
        if shortened:
            warnings.warn(
                f"{counted(shortened, 'word has', 'words have')} more than "
                f"{counted(self.room, 'piece')} and keep only their first ones",
                stacklevel=3,
            )

    def encode_sentences(self, sentences: Sequence[Sentence]) -> list[Tokens]:
        """The pieces of every sentence or pair; see `encode_all`."""
        return self.encode_all(
            [sentence.words for sentence in sentences], [sentence.second for sentence in sentences]
        )

    def length(self, tokens: Tokens) -> int:
        """The encoder positions that a sentence takes in all its windows, special tokens included."""
        if len(tokens.ids) <= self.room:
            between = 0 if tokens.second is None else len(self.pair.between)
            return len(self.prefix) + len(tokens.ids) + between + len(self.suffix)
        rows, _ = self.rows([tokens.counts])
        return len(rows.length) * (len(self.prefix) + len(self.suffix)) + len(rows.pieces)

    def rows(self, counts: Sequence[Int[np.ndarray, " _"]]) -> tuple[Rows, Int[np.ndarray, " row"]]:
        """The windows of sentences, given their pieces per word; see `rows_of`."""
        return rows_of(counts, self.room, self.stride, self.causal)

    def collate(self, batch: Sequence[Tokens]) -> Subwords:
        """Rows padded to the longest; each word's pieces count in the one window that owns it (`windows`).

        Raises `ValueError` for an empty batch.
        """
        if not batch:
            raise ValueError("an empty batch cannot be collated; use at least one sentence")
        width = max(len(tokens) for tokens in batch)
        counts = [tokens.counts for tokens in batch]
        ids = np.concatenate([tokens.ids for tokens in batch])
        words = np.array([len(count) for count in counts])
        every = np.concatenate(counts)
        slot_of_word = np.arange(len(every)) + np.repeat(
            np.arange(len(batch)) * width - (np.cumsum(words) - words), words
        )
        slots = np.repeat(slot_of_word, every)
        sentence = np.arange(len(batch))
        length = np.array([len(tokens.ids) for tokens in batch])
        nowhere = len(batch) * width
        if length.max() > self.room:
            rows, sentence = self.rows(counts)
            ids, slots, length = (
                ids[rows.pieces],
                np.where(rows.owned, slots[rows.pieces], nowhere),
                rows.length,
            )
        pairs = any(tokens.second is not None for tokens in batch)
        second = np.full(len(length), -1)
        if pairs:
            second = np.array([-1 if tokens.second is None else tokens.second for tokens in batch])[sentence]
            ids, slots, length = self.pair.with_between(ids, slots, length, second, nowhere)
        before, after = len(self.prefix), len(self.suffix)
        column = np.arange(before + length.max() + after)
        end = before + length[:, None]
        inside = (column >= before) & (column < end)
        input_ids = np.full(inside.shape, self.padding)
        input_ids[:, :before] = self.prefix
        input_ids[inside] = ids
        input_ids[np.arange(len(length))[:, None], end + np.arange(after)] = self.suffix
        slot = np.full(inside.shape, nowhere)
        slot[inside] = slots
        types = self.pair.token_types(column, length, second, before, after) if pairs else None
        return Subwords(
            input_ids=torch.from_numpy(input_ids),
            attention_mask=torch.from_numpy((column < end + after).astype(np.int64)),
            slot=torch.from_numpy(slot),
            sentence=torch.from_numpy(sentence),
            sentences=len(batch),
            width=width,
            token_types=None if types is None else torch.from_numpy(types),
        )

    def _with_pairs(self, tokens: Sequence[Tokens], seconds: Sequence[int | None]) -> list[Tokens]:
        """The tokens, with pairs cut to one window and marked where their second sentence begins."""
        marked = []
        for sentence, word in zip(tokens, seconds, strict=True):
            if word is None:
                marked.append(sentence)
                continue
            room = self.room - len(self.pair.between)
            if room < 2:
                raise InputError(
                    f"a window of {counted(self.max_length, 'position')} has no room for a pair of "
                    "sentences: use longer windows"
                )
            ids, counts, first = cut_pair(sentence.ids, sentence.counts, word, room)
            marked.append(Tokens(ids, counts, sentence.shortened, first, len(ids) < len(sentence.ids)))
        return marked

    def _tokens(self, ids: list[int], word_ids: list[int | None], words: int) -> Tokens:
        pieces, word = np.array(ids, dtype=np.int32), np.array(word_ids, dtype=np.int32)
        counts = np.bincount(word, minlength=words).astype(np.int32)
        if words and counts.min() == 0:
            empty = np.flatnonzero(counts == 0)
            pieces = np.insert(pieces, np.searchsorted(word, empty), self.unknown)
            counts[empty] = 1
        shortened = 0
        if len(pieces) > self.room and counts.max() > self.room:
            shortened = int((counts > self.room).sum())
            within = np.arange(len(pieces)) - np.repeat(np.cumsum(counts) - counts, counts)
            pieces, counts = pieces[within < self.room], np.minimum(counts, self.room)
        return Tokens(pieces, counts, shortened)


def _space_belongs_to_word(pieces: Tokenizer) -> bool:
    """Whether the space before a word is part of its first piece, so that every word needs one before it.

    It is in byte-level tokenizers, and in those whose normaliser turns a space into a letter of the word
    after it but adds none before the first word (Gemma).
    """
    description = json.loads(pieces.to_str())
    pre_tokenizer, normalizer = (description[part] or {} for part in ("pre_tokenizer", "normalizer"))
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    changes = normalizer.get("normalizers", [normalizer])
    replaces = any(
        change.get("type") == "Replace" and change["pattern"] == {"String": " "} and change["content"] == "▁"
        for change in changes
    )
    prepends = any(change.get("type") == "Prepend" for change in changes)
    return any(step.get("type") == "ByteLevel" for step in steps) or (replaces and not prepends)

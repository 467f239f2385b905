"""Words to subwords: pieces per word, templates, windows over long sentences, padded rows of a batch."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int32
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from mtl.errors import InputError
from mtl.tasks.decoders.decoder import copied
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Sentence


@dataclass(frozen=True, slots=True)
class PairTemplate:
    """What the tokenizer puts between the sentences of a pair, and its token types."""

    between: tuple[int, ...]
    """The ids of the special tokens between the sentences."""
    types: tuple[int, int, int, int, int]
    """The token types before the first sentence, in it, between the two, in the second one, after it."""

    def with_between(
        self,
        ids: Int[np.ndarray, " position"],
        slots: Int[np.ndarray, " position"],
        length: Int[np.ndarray, " row"],
        second: Int[np.ndarray, " row"],
        nowhere: int,
    ) -> tuple[Int[np.ndarray, " _"], Int[np.ndarray, " _"], Int[np.ndarray, " row"]]:
        """Insert the special tokens between the sentences of pairs; returns new `ids`, `slots` and `length`.

        `ids` and `slots` hold all rows one after the other. `second` is the piece at which a row's second
        sentence begins, -1 if it has none. Special tokens get the slot `nowhere`.
        """
        between = np.array(self.between, dtype=ids.dtype)
        row = np.flatnonzero(second >= 0)
        place = np.repeat((np.cumsum(length) - length + second)[row], len(between))
        return (
            np.insert(ids, place, np.tile(between, len(row))),
            np.insert(slots, place, nowhere),
            length + len(between) * (second >= 0),
        )

    def token_types(
        self,
        column: Int[np.ndarray, " subword"],
        length: Int[np.ndarray, " row"],
        second: Int[np.ndarray, " row"],
        before: int,
        after: int,
    ) -> Int[np.ndarray, "row subword"]:
        """The token types of the rows; zero in single sentences and at padding.

        `column` counts the positions of a row from 0; `before` and `after` are the numbers of special tokens
        at its ends.
        """
        end = before + length[:, None]
        boundary = before + second[:, None]
        part = (
            (column >= before).astype(np.int64)
            + (column >= boundary)
            + (column >= boundary + len(self.between))
            + (column >= end)
        )
        types = np.array(self.types, dtype=np.int64)[part]
        return np.where((second[:, None] >= 0) & (column < end + after), types, 0)


def special_tokens(pieces: Tokenizer) -> tuple[list[int], list[int]]:
    """The ids that the tokenizer puts before and after a sentence."""
    encoding = pieces.encode(["a"], is_pretokenized=True)
    of_words = [index for index, word in enumerate(encoding.word_ids) if word is not None]
    return encoding.ids[: of_words[0]], encoding.ids[of_words[-1] + 1 :]


def pair_template(pieces: Tokenizer) -> PairTemplate | None:
    """How the tokenizer's post-processor joins two sentences.

    `None` if it has no template for pairs, or one whose ends are not those of a single sentence.
    """
    encoding = pieces.encode(["a"], ["a"], is_pretokenized=True)
    sequences = encoding.sequence_ids
    first = [index for index, sequence in enumerate(sequences) if sequence == 0]
    second = [index for index, sequence in enumerate(sequences) if sequence == 1]
    if not first or not second:
        return None
    starts = (0, first[0], first[-1] + 1, second[0], second[-1] + 1)
    if (encoding.ids[: starts[1]], encoding.ids[starts[4] :]) != special_tokens(pieces):
        return None
    types = [encoding.type_ids[min(start, len(encoding.ids) - 1)] for start in starts]
    return PairTemplate(
        tuple(encoding.ids[starts[2] : starts[3]]), (types[0], types[1], types[2], types[3], types[4])
    )


def cut_pair(
    ids: Int32[np.ndarray, " subword"], counts: Int32[np.ndarray, " word"], word: int, room: int
) -> tuple[Int32[np.ndarray, " _"], Int32[np.ndarray, " word"], int]:
    """A pair's first pieces within `room`, their number per word, and where its second sentence begins.

    `word` is the first word of the second sentence. The longer sentence loses its end until both are equally
    long; then both lose theirs.
    """
    start = int(counts[:word].sum())
    first, second = _longest_first(start, int(counts[word:].sum()), room)
    return (
        np.concatenate([ids[:first], ids[start : start + second]]),
        np.concatenate([_among_first(counts[:word], first), _among_first(counts[word:], second)]),
        first,
    )


def _longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """How many pieces of each sentence stay if the longer one loses its last piece until both fit."""
    if first + second <= room:
        return first, second
    shorter = min(first, second, room // 2)
    return (room - shorter, shorter) if first > second else (shorter, room - shorter)


def _among_first(counts: Int32[np.ndarray, " word"], pieces: int) -> Int32[np.ndarray, " word"]:
    """How many pieces of each word are among the sentence's first `pieces`."""
    end = np.cumsum(counts)
    among: Int32[np.ndarray, " word"] = (np.minimum(end, pieces) - np.minimum(end - counts, pieces)).astype(
        np.int32
    )
    return among


class Rows(NamedTuple):
    """Windows as rows: the pieces of each row, and whether the row owns the word of each piece."""

    pieces: Int[np.ndarray, " position"]
    """Indices into the batch's pieces, all rows one after the other."""
    owned: Bool[np.ndarray, " position"]
    length: Int[np.ndarray, " row"]
    """Pieces per row."""


def windows(
    counts: Int[np.ndarray, " word"], room: int, stride: int, causal: bool = False
) -> list[tuple[int, int, int, int]]:
    """Windows (first word, end, first owned word, end of owned words) of at most `room` pieces each.

    `stride` is the number of pieces from the start of a window to that of the next, which is moved back to
    the start of a word. One window owns each word: the one with the most pieces on the word's shorter side,
    or with `causal` the one with the most pieces before it; the first window wins ties. No word may have more
    than `room` pieces.
    """
    end = np.cumsum(counts)
    start = end - counts
    words = len(counts)
    if words == 0 or end[-1] <= room:
        return [(0, words, 0, words)]
    spans: list[tuple[int, int]] = []
    first = 0
    while True:
        last = int(np.searchsorted(end, start[first] + room, side="right"))
        if last == words:
            # The last window starts as far back as it can.
            first = int(np.searchsorted(start, end[-1] - room))
            spans.append((first, words))
            break
        spans.append((first, last))
        onward = int(np.searchsorted(start, start[first] + stride, side="right")) - 1
        first = min(max(onward, first + 1), last)
    begin, stop = np.array(spans).T
    before, after = start - start[begin][:, None], end[stop - 1][:, None] - end
    margin = np.where(after >= 0, before, -1) if causal else np.minimum(before, after)
    best = np.where(margin >= 0, margin, -1).argmax(axis=0)
    owned = np.searchsorted(best, np.arange(len(spans) + 1))
    return [
        (*span, int(owned[i]), int(owned[i + 1])) for i, span in enumerate(spans) if owned[i] < owned[i + 1]
    ]


def rows_of(
    counts: Sequence[Int[np.ndarray, " _"]], room: int, stride: int, causal: bool = False
) -> tuple[Rows, Int[np.ndarray, " row"]]:
    """The windows of a batch of sentences as rows, and the sentence of each row.

    `counts` are each sentence's pieces per word; see `windows` for the other arguments.
    """
    pieces, owned, sentence, base = [], [], [], 0
    for number, count in enumerate(counts):
        edge = np.concatenate([[0], np.cumsum(count)])
        for first, end, mine, mine_end in windows(count, room, stride, causal):
            piece = np.arange(edge[first], edge[end])
            pieces.append(piece + base)
            owned.append((piece >= edge[mine]) & (piece < edge[mine_end]))
            sentence.append(number)
        base += edge[-1]
    length = np.array([len(row) for row in pieces])
    return Rows(np.concatenate(pieces), np.concatenate(owned), length), np.array(sentence)


T = TypeVar("T", bound="Tensors")
Moved = TypeVar("Moved")


@dataclass(frozen=True, slots=True)
class Tensors:
    """Tensors as fields, and other values beside them."""

    def each(self: T, move: Callable[[Tensor], Tensor]) -> T:
        """The same with each tensor replaced by what `move` makes of it."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        moved = {name: move(value) for name, value in values.items() if isinstance(value, Tensor)}
        return replace(self, **moved)

    def to(self: T, device: torch.device | str) -> T:
        """The same on another device; from the CPU its tensors are copied at once."""
        return moved_at_once(self.each, torch.device(device))


def moved_at_once(each: Callable[[Callable[[Tensor], Tensor]], Moved], device: torch.device) -> Moved:
    """What `each` makes of the same tensors on a device, to which they are copied from the CPU at once."""
    tensors: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    same = each(note)
    if all(tensor.device.type == device.type == "cpu" for tensor in tensors):
        return same
    if any(tensor.device.type != "cpu" for tensor in tensors):
        return each(lambda tensor: tensor.to(device))
    moved = iter(copied(tensors, device))
    return each(lambda _: next(moved))


@dataclass(frozen=True, slots=True)
class Tokens:
    """A sentence's piece ids in one array, and how many of them each word has.

    Each word has at least one, except words that a pair longer than the window lost, and words that their
    neighbours' pieces cover (`WordReader.covers`).
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

    @property
    def target(self) -> None:
        """The targets of a task that learns pieces: none, since these are pieces of words to label."""
        return None


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
    pieces: Float[Tensor, " slot"] | None = None
    """The number of positions of each slot but the last, 1 if it has none; `None`: not counted."""

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
            None if self.pieces is None else self.pieces.view(self.sentences, self.width)[chosen].flatten(),
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
            pieces=torch.from_numpy(
                np.bincount(slots, minlength=nowhere)[:nowhere].clip(1).astype(np.float32)
            ),
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

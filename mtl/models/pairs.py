"""The template of a tokenizer: the special tokens around one sentence, and between and around two."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int, Int32
from tokenizers import Tokenizer


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

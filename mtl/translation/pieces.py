"""Sentences and their translations as subwords, padded batches of both, and word dropout: in training, some
subwords are read as others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, Int32
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from mtl.errors import InputError
from mtl.models.subwords import Tensors
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import UNKNOWN
from mtl.translation.task import Translate
from mtl.translation.translator import PieceTargets


@dataclass(frozen=True, slots=True)
class ParallelTokens:
    """The pieces of a sentence and, if it is known, of its translation, each with its end-of-text piece."""

    ids: Int32[np.ndarray, " subword"]
    target: PieceTargets | None
    words: int
    """Words of the sentence."""

    def __len__(self) -> int:
        return self.words


@dataclass(frozen=True, slots=True)
class ParallelSubwords(Tensors):
    """Padded rows of sources, and of the translations if they are known."""

    input_ids: Int[Tensor, "row subword"]
    attention_mask: Int[Tensor, "row subword"]
    pieces: Int[Tensor, "row piece"] | None
    """Pieces of the translations, `UNKNOWN` at padding."""
    sentence: Int[Tensor, " row"]
    """The sentence of each row; every sentence has one row."""

    @property
    def sentences(self) -> int:
        """The number of sentences."""
        return len(self.sentence)

    def take(self, sentences: Int[Tensor, " batch"]) -> ParallelSubwords:
        """The rows of the given sentences, in that order; a sentence may come more than once."""
        chosen = sentences.to(self.sentence.device)
        taken = self.each(lambda tensor: tensor[chosen])
        return replace(taken, sentence=torch.arange(len(chosen), device=chosen.device))

    def positions(self, attention: str) -> Int[Tensor, "row _"]:
        """1 at the positions that a kind of attention has an output for, 0 at padding."""
        if attention == "encoder":
            return self.attention_mask
        assert self.pieces is not None
        return (self.pieces != UNKNOWN).long()


class ParallelTokenizer:
    """Subwords of a source and of its translation.

    Args:
        tokenizer: a fast tokenizer for both, or one of `transformers` that takes `text_target` (Marian).
        max_length: maximum number of pieces of a source or a translation, the end-of-text piece included.
        source: the source's language, set if the tokenizer has several (`src_lang`).
        target: the translation's language (`tgt_lang`).
    """

    prefix = ()
    """Special tokens before a sentence that tasks may read: none."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, max_length: int, source: str = "", target: str = ""
    ) -> None:
        self.tokenizer, self.max_length = tokenizer, max_length
        self.pad: int = tokenizer.pad_token_id
        self.layer = Translate.name
        """The layer of translations; a joint model sets that of its task."""
        if source and hasattr(tokenizer, "src_lang"):
            tokenizer.src_lang = source
        if target and hasattr(tokenizer, "tgt_lang"):
            tokenizer.tgt_lang = target

    def empty(self) -> list[int]:
        """The pieces of a translation without text: special tokens alone."""
        pieces: list[int] = self.tokenizer(text_target=[""])["input_ids"][0]
        return pieces

    def encode_sentences(self, sentences: Sequence[Sentence]) -> list[ParallelTokens]:
        """The pieces of every sentence and translation; raises `InputError` if one is too long."""
        if not sentences:
            return []
        sources = self.tokenizer([" ".join(sentence.words) for sentence in sentences])["input_ids"]
        texts = [sentence.layer(self.layer) for sentence in sentences]
        known = [text for text in texts if text is not None]
        encoded = iter(self.tokenizer(text_target=known)["input_ids"] if known else [])
        targets = [None if text is None else next(encoded) for text in texts]
        for sentence, *sides in zip(sentences, sources, targets, strict=True):
            longest = max(len(side) for side in sides if side is not None)
            if longest > self.max_length:
                raise InputError(
                    f"{sentence.place or 'a sentence'}: {counted(longest, 'subword')}, and the model reads "
                    f"at most {self.max_length:,}: split the sentence"
                )
        return [
            ParallelTokens(
                np.array(source, dtype=np.int32),
                None if target is None else PieceTargets(np.array(target, dtype=np.int64)),
                len(sentence),
            )
            for sentence, source, target in zip(sentences, sources, targets, strict=True)
        ]

    def length(self, tokens: ParallelTokens) -> int:
        """The positions of the source or the translation, whichever is longer."""
        return max(len(tokens.ids), 0 if tokens.target is None else len(tokens.target.pieces))

    def collate(self, batch: Sequence[ParallelTokens]) -> ParallelSubwords:
        """Pad sentences into a batch; without translations if one of them has none."""
        ids, mask = _padded([tokens.ids for tokens in batch], self.pad)
        targets = [tokens.target.pieces for tokens in batch if tokens.target is not None]
        known = len(targets) == len(batch)
        return ParallelSubwords(
            torch.from_numpy(ids),
            torch.from_numpy(mask),
            torch.from_numpy(_padded(targets, UNKNOWN)[0]) if known else None,
            torch.arange(len(batch)),
        )

    def text(self, pieces: Int[Tensor, "row piece"]) -> list[str]:
        """What rows of pieces spell, without special tokens."""
        decoded: list[str] = self.tokenizer.batch_decode(pieces, skip_special_tokens=True)
        return [text.strip() for text in decoded]


class WordDropout:
    """Replaces subwords of the source, and of what the decoder reads of the translation.

    Special tokens, which include padding and codes of languages, stay.

    Raises `InputError` if they are to be replaced by the unknown token and the tokenizer has none.
    """

    def __init__(self, task: Translate, tokenizer: ParallelTokenizer) -> None:
        self.source, self.target = task.source_word_dropout, task.target_word_dropout
        fast = tokenizer.tokenizer
        self._special = torch.tensor(sorted(fast.all_special_ids))
        self._unknown: int | None = fast.unk_token_id
        self._ordinary: Int[Tensor, " subword"] | None = None
        if task.replaced_by == "random":
            special = set(fast.all_special_ids)
            self._ordinary = torch.tensor([piece for piece in range(len(fast)) if piece not in special])
        elif (self.source or self.target) and self._unknown is None:
            place = f"tasks.{task.name}" if task.standard else task.name
            raise InputError(
                f"{place}.replaced_by=unknown: the model's tokenizer has no unknown token: use "
                f"{place}.replaced_by=random"
            )

    def __call__(self, ids: Int[Tensor, "row subword"], share: float) -> Int[Tensor, "row subword"]:
        """The subwords, of which this share is replaced; each is drawn for itself."""
        if not share:
            return ids
        drawn = torch.rand(ids.shape, device=ids.device) < share
        drawn &= ~torch.isin(ids, self._special.to(ids.device))
        if self._ordinary is None:
            assert self._unknown is not None
            return ids.masked_fill(drawn, self._unknown)
        ordinary = self._ordinary.to(ids.device)
        others = ordinary[torch.randint(len(ordinary), ids.shape, device=ids.device)]
        return torch.where(drawn, others, ids)


def _padded(rows: Sequence[Any], filler: int) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    padded = np.full((len(rows), int(lengths.max(initial=1))), filler, dtype=np.int64)
    for line, row in zip(padded, rows, strict=True):
        line[: len(row)] = row
    return padded, (np.arange(padded.shape[1]) < lengths[:, None]).astype(np.int64)


def subword_texts(tokenizer: ParallelTokenizer, ids: Int[Tensor, " position"]) -> tuple[str, ...]:
    """The text of each subword, after `▁` if a word begins with it; special tokens by their names."""
    fast = tokenizer.tokenizer
    special = set(fast.all_special_ids)
    texts = []
    for number, name in zip(ids.tolist(), fast.convert_ids_to_tokens(ids.tolist()), strict=True):
        begins = "▁" if name[:1] in ("▁", "Ġ") else ""
        texts.append(name if number in special else begins + fast.decode([number]).strip())
    return tuple(texts)


PAD, END, UNKNOWN_PIECE = "<pad>", "</s>", "<unk>"
"""Special pieces; decoders start with the padding piece, as in Marian."""


def train_vocabulary(texts: Iterable[str], size: int, max_length: int) -> PreTrainedTokenizerFast:
    """A tokenizer with at most `size` pieces, special ones included; the same for the same texts.

    Byte pair encoding (Sennrich et al. 2016) of bytes (Radford et al. 2019): every text can be encoded, and
    decodes to itself except for white space around it. The unigram model is not offered: its training in the
    library is not deterministic, and a resumed run trains its vocabulary again.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = [PAD, END, UNKNOWN_PIECE]
    pieces = Tokenizer(models.BPE(unk_token=UNKNOWN_PIECE))
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    pieces.decoder = decoders.ByteLevel()
    pieces.train_from_iterator(texts, trainer)
    pieces.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, pieces.token_to_id(END))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=pieces,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN_PIECE,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )


def require_languages(
    name: str, config: Any, tokenizer: Any, source: str, target: str, key: str = "translate"
) -> None:
    """Raise `InputError` if a checkpoint states other languages, or the same in the other direction.

    `key` is the dotted key of the translation, of which the message names `source` and `target`.
    """
    stated = [
        next((value for holder in (config, tokenizer) if (value := getattr(holder, key, None))), None)
        for key in ("source_lang", "target_lang")
    ]
    pair = getattr(config, "langs", None) or stated
    if len(pair) != 2 or not all(pair) or not (source or target):
        return
    given = (source or pair[0], target or pair[1])
    if given == tuple(pair):
        return
    fix = f"use {key}.source={pair[0]} and {key}.target={pair[1]}, or another checkpoint"
    if given == tuple(reversed(pair)):
        raise InputError(f"{name} translates from {pair[0]} to {pair[1]}, the other way round: {fix}")
    raise InputError(
        f"{name} translates from {pair[0]} to {pair[1]}, not from {given[0]} to {given[1]}: {fix}"
    )


def require_language_codes(
    name: str, tokenizer: Any, source: str, target: str, key: str = "translate"
) -> None:
    """Raise `InputError` unless a tokenizer of many languages is given two of them, by its own codes.

    `key` is as in `require_languages`.
    """
    if not hasattr(tokenizer, "src_lang"):
        return
    codes = _language_codes(tokenizer)
    for end, language in (("source", source), ("target", target)):
        if language in codes:
            continue
        # A code begins with its language: en_XX, eng_Latn.
        near = [code for code in codes if language and code.startswith(language[:2])][:5] or codes[:3]
        where = f"{key}.{end}={language}" if language else f"{key}.{end} is not set"
        raise InputError(
            f"{where}: {name} knows {counted(len(codes), 'language')} by its own codes; use one of them, "
            f"such as {', '.join(near)}"
        )


def _language_codes(tokenizer: Any) -> list[str]:
    """The codes of the languages that a tokenizer tells apart, sorted."""
    known = getattr(tokenizer, "lang_code_to_id", None)  # mBART, mBART-50, M2M100
    if known is None:  # NLLB has them only as special tokens
        named = set(tokenizer.special_tokens_map.values())
        known = [token for token in tokenizer.all_special_tokens if token not in named]
    return sorted(known)

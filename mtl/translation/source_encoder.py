"""The encoder of a translation model on annotated sources, so that its heads can be probed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Int32
from tokenizers import Tokenizer
from torch import Tensor
from transformers.modeling_outputs import ModelOutput

from mtl.errors import InputError
from mtl.models.encoder import pool
from mtl.models.subwords import Rows, Subwords, SubwordTokenizer, Tokens
from mtl.models.tapped import SharedEncoder, WordReader
from mtl.tasks.decoders.decoder import at_least_float32
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Sentence
from mtl.translation.pieces import ParallelTokenizer


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

    def __init__(self, model: SharedEncoder) -> None:
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

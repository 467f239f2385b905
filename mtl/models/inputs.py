"""The inputs of runs: corpora, pieces and pretrained encoders, read once for all runs of a process."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mtl.config.schema import CorpusConfig, EncoderConfig
from mtl.corpora.load import Tasks, load_split
from mtl.corpora.readers import files, read_sentences
from mtl.models.found import encoder_files
from mtl.tasks.sentence import Sentence

if TYPE_CHECKING:  # a study that is only planned needs no torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from mtl.models.batches import Tokenizer
    from mtl.models.encoder import Encoder
    from mtl.models.subwords import SubwordTokenizer, Tokens


K = TypeVar("K")
V = TypeVar("V")
MOST_ENCODERS = 2
"""Encoders that are kept, and tokenisers whose pieces are kept."""
MOST_FILES = 64
"""Files whose sentences are kept; five tasks with files of their own have fifteen."""
MOST_TEXTS = 1_000_000
"""Texts whose pieces are kept, per tokeniser."""


FileVersion = tuple[str, int, int]
"""A file as it was when it was read: its path, the time of its last change in ns, and its size in bytes."""


class InputCache:
    """Reads corpora, tokenises them and loads encoders; with `keep`, the most recently used ones only once.

    At most `MOST_ENCODERS`, `MOST_FILES` and `MOST_TEXTS` are kept. Files are identified by path,
    modification time and size, so a changed corpus or encoder is read again.
    """

    def __init__(self, keep: bool = False) -> None:
        self.keep = keep
        self._corpora: dict[tuple[str, tuple[FileVersion, ...]], list[Sentence]] = {}
        self._pieces: dict[tuple[str, int], dict[tuple[tuple[str, ...], int | None], Tokens]] = {}
        self._encoders: dict[
            tuple[str, str, str, tuple[FileVersion, ...]], tuple[PreTrainedModel, PreTrainedTokenizerFast]
        ] = {}

    def split(self, config: CorpusConfig, tasks: Tasks, split: str) -> list[Sentence]:
        """The sentences of one split, with the layers of the chosen tasks; see `load_split`."""
        return load_split(config, tasks, split, self._read)

    def encoder(self, config: EncoderConfig, seed: int = 0) -> Encoder:
        """An encoder, pretrained or with random weights drawn with `seed` (`encoder.weights`).

        Weights that a checkpoint lacks are the same in all runs.
        """
        import torch

        from mtl.models import pretrained
        from mtl.models.encoder import Encoder, Reading

        def load() -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
            if config.weights == "random":
                return pretrained.random_encoder(config.name, config.attention, seed)
            with torch.random.fork_rng():
                torch.manual_seed(0)
                return pretrained.load_encoder(config.name, config.attention, torch.float32)

        weights = f"random {seed}" if config.weights == "random" else ""
        key = config.name, config.attention, weights, tuple(map(_version, encoder_files(config.name)))
        transformer, tokenizer = _kept(self._encoders, key, MOST_ENCODERS, load) if self.keep else load()
        return Encoder(
            copy.deepcopy(transformer) if self.keep else transformer,
            tokenizer,
            Reading(config.pooling, config.layers, config.word_dropout),
        )

    def pieces(self, tokenizer: SubwordTokenizer | Tokenizer, sentences: Sequence[Sentence]) -> Sequence[Any]:
        """The pieces of every sentence; only those of an encoder's tokenizer, of words alone, are kept."""
        from mtl.models.subwords import SubwordTokenizer

        if not isinstance(tokenizer, SubwordTokenizer):
            return tokenizer.encode_sentences(sentences)
        texts = [(sentence.words, sentence.second) for sentence in sentences]
        if not self.keep:
            return _encoded(tokenizer, texts)
        definition = tokenizer.tokenizer.backend_tokenizer.to_str()
        key = hashlib.sha256(definition.encode()).hexdigest(), tokenizer.max_length
        known = _kept(self._pieces, key, MOST_ENCODERS, dict)
        new = list(dict.fromkeys(text for text in texts if text not in known))
        known.update(zip(new, _encoded(tokenizer, new), strict=True))
        pieces = [known[text] for text in texts]
        if len(known) > MOST_TEXTS:
            self._pieces[key] = dict(zip(texts, pieces, strict=True))
        return pieces

    def _read(self, path: Path, format: str) -> list[Sentence]:
        if not self.keep:
            return read_sentences(path, format)
        key = (format, tuple(_version(file) for file in files(path, format)))
        return _kept(self._corpora, key, MOST_FILES, lambda: read_sentences(path, format))


def _kept(store: dict[K, V], key: K, most: int, make: Callable[[], V]) -> V:
    """The store's value of a key, made if it is missing; the store keeps the `most` values used last."""
    value = store.pop(key) if key in store else make()
    store[key] = value
    while len(store) > most:
        del store[next(iter(store))]
    return value


def _encoded(
    tokenizer: SubwordTokenizer, texts: Sequence[tuple[tuple[str, ...], int | None]]
) -> list[Tokens]:
    return tokenizer.encode_all([words for words, _ in texts], [second for _, second in texts])


def _version(file: Path) -> FileVersion:
    status = file.stat()
    return str(file.resolve()), status.st_mtime_ns, status.st_size

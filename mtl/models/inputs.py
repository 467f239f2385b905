"""The inputs of runs: corpora, pieces and pretrained encoders, read once for all runs of a process."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from mtl.config.schema import CorpusConfig, EncoderConfig
from mtl.corpora.load import load_split
from mtl.corpora.readers import files, read
from mtl.corpora.sources import Tasks
from mtl.tasks.sentence import Sentence

if TYPE_CHECKING:  # a study that is only planned needs no torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from mtl.models.encoder import Encoder
    from mtl.models.parallel import ParallelTokenizer, ParallelTokens
    from mtl.models.subwords import SubwordTokenizer, Tokens


K = TypeVar("K")
V = TypeVar("V")
MOST_ENCODERS = 2
"""Encoders that are kept, and tokenisers whose pieces are."""
MOST_FILES = 64
"""Files of sentences that are kept; five tasks with files of their own have fifteen."""
MOST_TEXTS = 1_000_000
"""Texts of which a tokeniser's pieces are kept."""


class FileVersion(NamedTuple):
    """A file as it was when it was read."""

    path: str
    changed_ns: int
    size: int


@dataclass
class InputCache:
    """Reads corpora, tokenises them and loads encoders; with `keep`, the most recently used ones only once.

    At most `MOST_ENCODERS`, `MOST_FILES` and `MOST_TEXTS` are kept. Files are identified by path,
    modification time and size, so a changed corpus is read again.
    """

    keep: bool = False
    _corpora: dict[tuple[str, tuple[FileVersion, ...]], list[Sentence]] = field(
        default_factory=dict, repr=False
    )
    _pieces: dict[tuple[str, int], dict[tuple[tuple[str, ...], int | None], Tokens]] = field(
        default_factory=dict, repr=False
    )
    _encoders: dict[tuple[str, str], tuple[PreTrainedModel, PreTrainedTokenizerFast]] = field(
        default_factory=dict, repr=False
    )

    def split(self, config: CorpusConfig, tasks: Tasks, split: str) -> list[Sentence]:
        """The sentences of one split, with the layers of the chosen tasks; see `load_split`."""
        return load_split(config, tasks, split, self._read)

    def encoder(self, config: EncoderConfig) -> Encoder:
        """A pretrained encoder; weights that its checkpoint lacks are the same for every seed of a run."""
        import torch

        from mtl.models import pretrained
        from mtl.models.encoder import Encoder
        from mtl.models.reading import Reading

        def load() -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
            with torch.random.fork_rng():
                torch.manual_seed(0)
                return pretrained.load(config.name, config.attention, torch.float32)

        key = (config.name, config.attention)
        transformer, tokenizer = _kept(self._encoders, key, MOST_ENCODERS, load) if self.keep else load()
        return Encoder(
            copy.deepcopy(transformer) if self.keep else transformer,
            tokenizer,
            Reading(config.pooling, config.layers, config.word_dropout),
        )

    def pieces(
        self, tokenizer: SubwordTokenizer | ParallelTokenizer, sentences: Sequence[Sentence]
    ) -> Sequence[Tokens | ParallelTokens]:
        """The pieces of every sentence; those of sentences with translations are not kept."""
        from mtl.models.parallel import ParallelTokenizer

        if isinstance(tokenizer, ParallelTokenizer):
            return tokenizer.encode_sentences(sentences)
        texts = [(sentence.words, sentence.second) for sentence in sentences]
        if not self.keep:
            return _encoded(tokenizer, texts)
        spelt = tokenizer.tokenizer.backend_tokenizer.to_str()
        key = hashlib.sha256(spelt.encode()).hexdigest(), tokenizer.max_length
        known = _kept(self._pieces, key, MOST_ENCODERS, dict)
        new = list(dict.fromkeys(text for text in texts if text not in known))
        known.update(zip(new, _encoded(tokenizer, new), strict=True))
        pieces = [known[text] for text in texts]
        if len(known) > MOST_TEXTS:
            self._pieces[key] = dict(zip(texts, pieces, strict=True))
        return pieces

    def _read(self, path: Path, format: str) -> list[Sentence]:
        if not self.keep:
            return read(path, format)
        key = (format, tuple(_version(file) for file in files(path, format)))
        return _kept(self._corpora, key, MOST_FILES, lambda: read(path, format))


def _kept(store: dict[K, V], key: K, most: int, make: Callable[[], V]) -> V:
    """What the store has of this key, made if it lacks it; the store keeps the `most` that were used last."""
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
    return FileVersion(str(file.resolve()), status.st_mtime_ns, status.st_size)

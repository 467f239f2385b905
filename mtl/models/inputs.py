"""The inputs of runs: corpora, pieces and pretrained encoders, read once for all runs of a process."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mtl.config.schema import CorpusConfig, EncoderConfig
from mtl.corpora.load import load_split
from mtl.corpora.readers import files, read
from mtl.tasks.sentence import Sentence

if TYPE_CHECKING:  # a study that is only planned needs no torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from mtl.models.encoder import Encoder
    from mtl.models.parallel import ParallelTokenizer, ParallelTokens
    from mtl.models.subwords import SubwordTokenizer, Tokens


class FileVersion(NamedTuple):
    """A file as it was when it was read."""

    path: str
    changed_ns: int
    size: int


@dataclass
class InputCache:
    """Reads corpora, tokenises them and loads encoders; with `keep`, each only once.

    Files are identified by path, modification time and size, so a changed corpus is read again.
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

    def split(self, config: CorpusConfig, tasks: Sequence[str], split: str) -> list[Sentence]:
        """The sentences of one split, with the layers of the chosen tasks; see `load_split`."""
        return load_split(config, tasks, split, self._read)

    def encoder(self, config: EncoderConfig) -> Encoder:
        """A pretrained encoder; weights that its checkpoint lacks are the same for every seed of a run."""
        import torch

        from mtl.models import pretrained
        from mtl.models.encoder import Encoder
        from mtl.models.reading import Reading

        key = (config.name, config.attention)
        if key not in self._encoders:
            with torch.random.fork_rng():
                torch.manual_seed(0)
                loaded = pretrained.load(config.name, config.attention, torch.float32)
            if self.keep:
                self._encoders[key] = loaded
        else:
            loaded = self._encoders[key]
        transformer, tokenizer = loaded
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
        known = self._pieces.setdefault(
            (hashlib.sha256(spelt.encode()).hexdigest(), tokenizer.max_length), {}
        )
        new = list(dict.fromkeys(text for text in texts if text not in known))
        known.update(zip(new, _encoded(tokenizer, new), strict=True))
        return [known[text] for text in texts]

    def _read(self, path: Path, format: str) -> list[Sentence]:
        if not self.keep:
            return read(path, format)
        key = (format, tuple(_version(file) for file in files(path, format)))
        if key not in self._corpora:
            self._corpora[key] = read(path, format)
        return self._corpora[key]


def _encoded(
    tokenizer: SubwordTokenizer, texts: Sequence[tuple[tuple[str, ...], int | None]]
) -> list[Tokens]:
    return tokenizer.encode_all([words for words, _ in texts], [second for _, second in texts])


def _version(file: Path) -> FileVersion:
    status = file.stat()
    return FileVersion(str(file.resolve()), status.st_mtime_ns, status.st_size)

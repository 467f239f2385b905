"""Cutting a subset out of a corpus, by lists of sentence ids or at random."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from mtl.corpora.formats.jsonl import read_jsonl
from mtl.corpora.formats.lines import BLANKS, malformed, read_lines
from mtl.corpora.splits import refuse_existing, split_files, write_splits
from mtl.errors import InputError
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Sentence


def select(corpus: Path, ids: Path | Sequence[Path], out: Path, overwrite: bool = False) -> dict[str, int]:
    """Write for each list `X.ids` (one id a line) `X.jsonl` into `out`; returns the sentences per list.

    Sentences come in the list's order, from all `*.jsonl` files of `corpus`. With `overwrite` the lists
    replace the corpus that `out` holds, so that no split of it is left beside them.
    """
    _check_place(corpus, out, overwrite)
    lists = [ids] if isinstance(ids, Path) else list(ids)
    if len({path.stem for path in lists}) < len(lists):
        raise InputError(f"two lists have the same name: {', '.join(map(str, lists))}; rename one")
    sentences = _by_id(corpus)
    chosen = {path.stem: _chosen(path, sentences, corpus) for path in lists}
    write_splits(out, chosen)
    return {name: len(subset) for name, subset in chosen.items()}


def draw(
    corpus: Path, numbers: Mapping[str, int], out: Path, seed: int = 1, overwrite: bool = False
) -> dict[str, int]:
    """Draw sentences of each split at random and write them to `out`; returns their number by split.

    `numbers` says how many. Sentences stay in order. What is drawn from a split depends on the seed alone.
    """
    _check_place(corpus, out, overwrite)
    paths = {path.stem: path for path in split_files(corpus)}
    chosen = {}
    for split, number in numbers.items():
        if split not in paths:
            raise InputError(f"{corpus}: no {split}.jsonl to draw sentences from; it has {', '.join(paths)}")
        sentences = list(read_jsonl(paths[split]))
        if number > len(sentences):
            raise InputError(
                f"{paths[split]}: {number:,} of {counted(len(sentences), 'sentence')}: draw fewer"
            )
        drawn = np.random.default_rng([seed, zlib.crc32(split.encode())]).permutation(len(sentences))[:number]
        chosen[split] = [sentences[place] for place in sorted(drawn.tolist())]
    write_splits(out, chosen)
    return dict(numbers)


def _check_place(corpus: Path, out: Path, overwrite: bool) -> None:
    if out.resolve() == corpus.resolve():
        raise InputError(f"{out} is the corpus itself: choose another --out")
    refuse_existing(out, overwrite)


def _by_id(corpus: Path) -> dict[str, Sentence]:
    sentences: dict[str, Sentence] = {}
    for path in split_files(corpus):
        for sentence in read_jsonl(path):
            if not sentence.id:
                raise InputError(f"{sentence.place}: a sentence without an id; give every sentence one")
            if (other := sentences.get(sentence.id)) is not None:
                raise InputError(
                    f"{sentence.place}: the id '{sentence.id}' is that of {other.place}, too; make ids unique"
                )
            sentences[sentence.id] = sentence
    return sentences


def _chosen(path: Path, sentences: dict[str, Sentence], corpus: Path) -> list[Sentence]:
    subset: dict[str, Sentence] = {}
    for number, line in enumerate(read_lines(path), start=1):
        name = line if line in sentences else line.strip(BLANKS)
        if not name:
            continue
        if name not in sentences:
            raise malformed(path, number, f"no sentence '{name}' in {corpus}; list ids as they are there")
        if name in subset:
            raise malformed(path, number, f"the id '{name}' is listed twice; list each once")
        subset[name] = sentences[name]
    if not subset:
        raise InputError(f"{path}: no ids; list one a line")
    return list(subset.values())

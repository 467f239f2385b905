"""Selecting a subset of a corpus, by lists of sentence ids or at random."""

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


def select(corpus: Path, ids: Sequence[Path], out: Path, overwrite: bool = False) -> dict[str, int]:
    """Write `X.jsonl` into `out` for each list `X.ids` (one id per line); returns the sentences per list.

    Sentences come in the list's order, from all `*.jsonl` files of `corpus`. With `overwrite`, all splits of
    the corpus in `out` are replaced.
    """
    _check_place(corpus, out, overwrite)
    if len({path.stem for path in ids}) < len(ids):
        raise InputError(f"two lists have the same name: {', '.join(map(str, ids))}; rename one")
    sentences = _by_id(corpus)
    chosen = {path.stem: _chosen(path, sentences, corpus) for path in ids}
    write_splits(out, chosen)
    return {name: len(subset) for name, subset in chosen.items()}


def draw(
    corpus: Path, numbers: Mapping[str, int], out: Path, seed: int = 1, overwrite: bool = False
) -> dict[str, int]:
    """Draw `numbers` of sentences from the splits at random and write them to `out`; returns `numbers`.

    Sentences keep their order. What is drawn from a split does not depend on other splits.
    """
    _check_place(corpus, out, overwrite)
    paths = {path.stem: path for path in split_files(corpus)}
    chosen = {}
    for split, number in numbers.items():
        if split not in paths:
            raise InputError(f"{corpus}: no {split}.jsonl to draw sentences from; it has {', '.join(paths)}")
        sentences = read_jsonl(paths[split])
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
                    f"{sentence.place}: the id '{sentence.id}' is also that of {other.place}; make ids unique"
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
        raise InputError(f"{path}: no ids; list one per line")
    return list(subset.values())

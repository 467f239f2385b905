"""Sentences in which heads were seen, and what they attended to there, as a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import polars as pl

from mtl.probes.tables import table_files

SENTENCES = 24
"""Sentences of the corpus that are kept, spread over it."""
FILE = "examples.parquet"
SCHEMA = pl.Schema(
    {
        "mask": pl.String(), "sentence": pl.Int32(), "attention": pl.String(), "layer": pl.Int32(),
        "head": pl.Int32(), "attended": pl.List(pl.Int16), "share": pl.List(pl.UInt8),
        "hit": pl.List(pl.Boolean),
    }
)  # fmt: skip


class ExampleArc(NamedTuple):
    """Words `start` to `end` (exclusive, from 0) and the word that they depend on; -1 is the root."""

    task: str
    label: str
    start: int
    end: int
    anchor: int


class ExampleSentence(NamedTuple):
    """A sentence and the arcs that heads are probed for."""

    words: tuple[str, ...]
    arcs: tuple[ExampleArc, ...]


class Examples(NamedTuple):
    """The sentences, and a row for each mask, sentence and head.

    `mask` is the task of the mask, empty for all; `sentence` is a number in `sentences`; `attended` has the
    word that each word attends to most (-1: the first special token, where it competes as the root; -2: the
    final one; -3: nothing), `share` how much in per cent; `hit` says of each arc whether it is hit in either
    direction.
    """

    sentences: tuple[ExampleSentence, ...]
    table: pl.DataFrame


def write(path: Path, examples: Examples) -> None:
    """Write the examples as a parquet file, with the sentences in its metadata."""
    table_files.write_parquet(examples.table, path, {"sentences": json.dumps(examples.sentences)})


def read(path: Path) -> Examples:
    """Read what `write` wrote; raises `ValueError` or `OSError` for another or a damaged file."""
    table, metadata = table_files.read_complete(path, SCHEMA, "mtl probe")
    try:
        made = json.loads(metadata["sentences"])
        sentences = [
            ExampleSentence(tuple(words), tuple(ExampleArc(*arc) for arc in arcs)) for words, arcs in made
        ]
    except (KeyError, ValueError, TypeError) as error:
        raise ValueError(f"{path}: its sentences cannot be read; make it with 'mtl probe'") from error
    return Examples(tuple(sentences), table)

"""A file with sentences, and what heads attend to in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import polars as pl

from mtl.probes.tables import table_files

SENTENCES = 24
"""The number of sentences of a corpus that are kept, spread evenly over it."""
FILE = "examples.parquet"
SCHEMA = pl.Schema(
    {
        "mask": pl.String(), "sentence": pl.Int32(), "attention": pl.String(), "layer": pl.Int32(),
        "head": pl.Int32(), "attended": pl.List(pl.Int16), "share": pl.List(pl.UInt8),
        "hit": pl.List(pl.Boolean),
    }
)  # fmt: skip


class ExampleArc(NamedTuple):
    """Words `start` to `end` (from 0, without `end`) and the word that they depend on; -1 is the root."""

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

    `mask` is the task of the mask, or empty for all tasks. `sentence` is a place in `sentences`. `attended`
    has the word that each word attends to most (-1: the first special token, if it competes as the root; -2:
    the final one; -3: nothing), and `share` its attention in per cent. `hit` says for each arc whether it is
    hit in either direction.
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

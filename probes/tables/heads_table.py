"""The tidy tables of heads: heads.parquet, the gates of masks, and sentences with what heads attend to."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import polars as pl
import polars.selectors as cs
from jaxtyping import Float, Int

from mtl.probes.sites import Site
from mtl.probes.tables import table_files
from mtl.tasks.catalogue import of_draw


def last_gates(gates: pl.DataFrame) -> pl.DataFrame:
    """The rows of the last step of every mask: of each task of each run (column `run`, if there is one)."""
    mask = [name for name in ("run", "task") if name in gates.columns]
    return gates.filter(pl.col("step") == pl.col("step").max().over(mask))


def name_draws(gates: pl.DataFrame) -> pl.DataFrame:
    """The table in which each draw of random labels has a task of its own, if there are several draws.

    The column `draw` is the draw of a mask's random labels, null for the masks of other tasks.
    """
    if gates["draw"].drop_nulls().n_unique() < 2:
        return gates
    drawn = gates.select("task", "draw").drop_nulls("draw").unique()
    names = {(task, draw): of_draw(task, draw) for task, draw in drawn.iter_rows()}
    renamed = pl.DataFrame(
        [(*key, name) for key, name in names.items()],
        {"task": pl.String, "draw": gates.schema["draw"], "named": pl.String},
        orient="row",
    )
    joined = gates.join(renamed, on=["task", "draw"], how="left", maintain_order="left")
    return joined.with_columns(task=pl.coalesce("named", "task")).drop("named")


SENTENCES = 24
"""The number of sentences of a corpus that are kept, spread evenly over it."""
FILE = "examples.parquet"
EXAMPLES_SCHEMA = pl.Schema(
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


class ExampleTables(NamedTuple):
    """The sentences, and a row for each mask, sentence and head.

    `mask` is the task of the mask, or empty for all tasks. `sentence` is a place in `sentences`. `attended`
    has the word that each word attends to most (-1: the first special token, if it competes as the root; -2:
    the final one; -3: nothing), and `share` its attention in per cent. `hit` says for each arc whether it is
    hit in either direction.
    """

    sentences: tuple[ExampleSentence, ...]
    table: pl.DataFrame


def write_examples(path: Path, examples: ExampleTables) -> None:
    """Write the examples as a parquet file, with the sentences in its metadata."""
    table_files.write_parquet(examples.table, path, {"sentences": json.dumps(examples.sentences)})


def read_examples(path: Path) -> ExampleTables:
    """Read what `write_heads_table` wrote; raises `ValueError` or `OSError` for another or a damaged file."""
    table, metadata = table_files.read_complete(path, EXAMPLES_SCHEMA, "mtl probe")
    try:
        made = json.loads(metadata["sentences"])
        sentences = [
            ExampleSentence(tuple(words), tuple(ExampleArc(*arc) for arc in arcs)) for words, arcs in made
        ]
    except (KeyError, ValueError, TypeError) as error:
        raise ValueError(f"{path}: its sentences cannot be read; make it with 'mtl probe'") from error
    return ExampleTables(tuple(sentences), table)


T = TypeVar("T")


def computed_once(make: Callable[[pl.DataFrame], T]) -> Callable[[pl.DataFrame], T]:
    """The function of a table, with its value computed once and kept as long as the table exists.

    Tables are known by identity: two equal tables have values of their own.
    """
    values: dict[int, T] = {}

    @wraps(make)
    def of_table(table: pl.DataFrame) -> T:
        if id(table) not in values:
            values[id(table)] = make(table)
            weakref.finalize(table, values.pop, id(table))
        return values[id(table)]

    return of_table


SCHEMA = pl.Schema(
    {
        "measure": pl.String,
        "task": pl.String,
        "label": pl.String,
        "attention": pl.String,
        "layer": pl.Int32,
        "head": pl.Int32,
        "value": pl.Float64,
        "count": pl.Int64,
        "choice": pl.String,
    }
)
"""A row per measure, task, label and head; layers and heads from 0, null if a value belongs to no head.

`attention` is the kind of attention, `self` in encoders; it names a head together with `layer` and `head`.

`choice` names the alternative that was taken if a definition leaves several, such as the columns that compete
for the most attended word, the source of centroids, or the epoch.
"""


def rows(
    measure: str,
    task: str,
    labels: Sequence[str],
    value: Float[np.ndarray, "label ..."],
    count: Int[np.ndarray, " label"],
    choice: str = "",
) -> pl.DataFrame:
    """The rows of a measure; labels that do not occur are left out, labels that are never hit are not.

    `value` is by label, layer and head, or by label and layer, or only by label, as a chance level may be.
    """
    label, *place = (axis.ravel() for axis in np.indices(value.shape))
    frame = pl.DataFrame(
        {
            "measure": measure,
            "task": task,
            "label": np.array(labels, dtype=object)[label].tolist(),
            "attention": "self",
            **dict.fromkeys(("layer", "head")),
            **dict(zip(("layer", "head"), place, strict=False)),
            "value": value.ravel(),
            "count": count[label],
            "choice": choice,
        },
        schema=SCHEMA,
    )
    return frame.filter(pl.col("count") > 0)


def at_sites(table: pl.DataFrame, sites: Sequence[Site]) -> pl.DataFrame:
    """Replace the numbers of sites in the column `layer` by each site's kind of attention and layer.

    Rows without a layer get the kind of attention of all sites, if there is only one.
    """
    kinds = {site.attention for site in sites}
    of_all = pl.lit(next(iter(kinds))) if len(kinds) == 1 else pl.col("attention")
    names = pl.DataFrame(
        {
            "layer": range(len(sites)),
            "kind": [site.attention for site in sites],
            "of_kind": [site.layer for site in sites],
        },
        schema={"layer": pl.Int32, "kind": pl.String, "of_kind": pl.Int32},
    )
    joined = table.join(names, on="layer", how="left", maintain_order="left")
    return joined.with_columns(
        attention=pl.coalesce("kind", of_all), layer=pl.coalesce("of_kind", "layer")
    ).select(table.columns)


def in_categories(table: pl.DataFrame) -> pl.DataFrame:
    """The table with texts as categories, which take a third of the memory and half of the time to group."""
    return table.with_columns(cs.string().cast(pl.Categorical))


def in_texts(table: pl.DataFrame) -> pl.DataFrame:
    """The table with categories as texts, to be joined with tables of texts."""
    return table.with_columns(cs.categorical().cast(pl.String))


@computed_once
def runs_of(table: pl.DataFrame) -> pl.DataFrame:
    """The columns regime, run, seed and task as texts: each combination once, in order."""
    return in_texts(table.select("regime", "run", "seed", "task").unique(maintain_order=True))


def write_heads_table(path: Path, table: pl.DataFrame, provenance: Mapping[str, str]) -> None:
    """Write the table with its provenance as the file's metadata."""
    table_files.write_parquet(table, path, provenance)


def read_heads_table(path: Path) -> tuple[pl.DataFrame, dict[str, str]]:
    """A table and its provenance; raises `ValueError` if the file cannot be read or lacks a column."""
    return table_files.read_complete(path, SCHEMA, "mtl probe")

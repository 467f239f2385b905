"""The counts per sentence from which a run's scores follow: a file per split in the run's folder."""

from __future__ import annotations

import zlib
from pathlib import Path

import polars as pl

from mtl.errors import InputError
from mtl.files import whole_file
from mtl.probes.tables.table_files import read_parquet, write_parquet
from mtl.runs.folder.run import Run, mark_of
from mtl.tasks.sentence import Sentence

SCHEMA = pl.Schema(
    [("task", pl.String), ("sentence", pl.Int32), ("key", pl.UInt32), ("counts", pl.List(pl.Float64))]
)
"""A row per task and annotated sentence of the split.

`sentence` is its number from 0, `key` a checksum of its words (`key_of`), and `counts` are those of
`mtl.tasks.metrics.metric.TaskMetric.sentence_counts`.
"""


def key_of(sentence: Sentence) -> int:
    """A number that tells sentences with different words apart."""
    return zlib.crc32("\0".join(sentence.words).encode())


def write(run: Run, split: str, counts: pl.DataFrame) -> None:
    """Write the counts of a split into the run's folder."""
    path = _path(run, split)
    path.parent.mkdir(exist_ok=True)
    with whole_file(path) as file:
        write_parquet(counts, file, mark_of(run.folder))


def read(run: Run, split: str) -> pl.DataFrame:
    """The counts of a split; raises `InputError` if the run has none, or the file is damaged."""
    path = _path(run, split)
    if not path.is_file():
        raise InputError(
            f"{run.folder} has no counts per sentence of {split}; write them with "
            f"'mtl evaluate {run.folder} --split {split}'"
        )
    try:
        counts = read_parquet(path).select(SCHEMA.names()).cast(SCHEMA)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(
            f"{path} cannot be read ({error}); write it again with "
            f"'mtl evaluate {run.folder} --split {split}'"
        ) from error
    if not counts["counts"].explode().drop_nulls().is_finite().all():
        raise InputError(
            f"{path} has counts that are not finite; write it again with "
            f"'mtl evaluate {run.folder} --split {split}'"
        )
    return counts


def _path(run: Run, split: str) -> Path:
    return run.folder / "sentence_counts" / f"{split}.parquet"

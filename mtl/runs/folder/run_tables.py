"""Tables in a run's folder: measures on heads, importance over time, counts per sentence.

Several commands and a training with a meter may write at once: each changes its own rows under a lock.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from pathlib import Path

import polars as pl
import polars.selectors as cs

from mtl.errors import InputError, as_input_error
from mtl.files import check_file_place, whole_file
from mtl.probes.tables import heads_table as table
from mtl.probes.tables.table_files import read_parquet, write_parquet
from mtl.runs.folder.run import Run, mark_of
from mtl.tasks.in_words import counted
from mtl.tasks.sentence import Sentence
from mtl.workers.lease import changing


def write_measures(
    path: Path, rows: pl.DataFrame, replaced: Collection[str], provenance: Mapping[str, str | None]
) -> None:
    """Replace all rows of the `replaced` measures in the table by `rows`.

    Rows and provenance of other measures stay. Keys of `provenance` with a prefix belong to the measures of
    one command (`relevance.split`), keys without one to probing; `None` removes a key. Raises `InputError` if
    the file exists and is no such table, or if a value is not finite; `ValueError` for rows of a measure that
    is not among the replaced ones.
    """
    foreign = sorted(set(rows["measure"]) - set(replaced))
    if foreign:
        raise ValueError(f"rows of {foreign[0]!r}, which is not among the replaced measures")
    require_finite_rows(rows, path)
    settings: dict[str, str | None] = {**provenance, **mark_of(path.parent)}
    with changing(path):
        if path.exists():
            before, known = read_measures(path)
            rows = pl.concat([before.filter(~pl.col("measure").is_in(replaced)), rows])
            settings = {**known, **settings}
        with whole_file(path) as temporary:
            table.write_heads_table(
                temporary, rows, {key: value for key, value in settings.items() if value is not None}
            )


def require_finite_rows(rows: pl.DataFrame, path: Path) -> None:
    """Raise `InputError`, which names the first one, if a value that is to be written is not finite."""
    for column in rows.select(cs.float()).columns:
        wrong = rows.filter(~pl.col(column).is_finite())
        if not wrong.is_empty():
            row = wrong.row(0, named=True)
            where = ", ".join(
                f"{key} {row[key]}"
                for key in ("measure", "by", "task", "label", "layer", "head", "draw")
                if key in row
            )
            raise InputError(
                f"{path} is not written: {counted(wrong.height, 'value')} not finite, the first one "
                f"({column} {row[column]}) at {where}: does the model overflow?"
            )


def check_place(path: Path, measured: Path) -> None:
    """Raise `InputError` or `OSError` if measures of the run or encoder in the folder `measured` cannot be
    written there, or would pass for those of another run; called before any is made."""
    if path.parent.exists() and not path.parent.is_dir():
        raise InputError(f"{path.parent}: a file, and no folder: use out=FOLDER")
    check_file_place(path)
    if (path.parent / "config.yaml").exists() and path.parent.resolve() != measured.resolve():
        raise InputError(
            f"{path.parent} is a run, and {measured} is measured: write its table elsewhere (--out)"
        )
    if path.exists():
        read_measures(path)


def forget_measures(path: Path, forgotten: Collection[str]) -> None:
    """Remove all rows of some measures from the table, or the file if it has no other rows."""
    with changing(path):
        heads, provenance = read_measures(path)
        rest = heads.filter(~pl.col("measure").is_in(forgotten))
        if rest.is_empty():
            path.unlink()
            return
        with whole_file(path) as temporary:
            table.write_heads_table(temporary, rest, provenance)


def read_measures(path: Path) -> tuple[pl.DataFrame, dict[str, str]]:
    """The table and its provenance; raises `InputError` if the file is no such table."""
    with as_input_error():
        return table.read_heads_table(path)


FILE = "importance.parquet"
IMPORTANCE_SCHEMA = pl.Schema(
    {
        "step": pl.Int32, "task": pl.String, "attention": pl.String, "layer": pl.Int32, "head": pl.Int32,
        "value": pl.Float64,
    }
)  # fmt: skip
"""A row per evaluation (by its update), task and head; layers and heads from 0; nats per sentence."""


def read_importance(run: Run) -> pl.DataFrame:
    """The table; raises `InputError` if it is missing or damaged."""
    path = run.folder / FILE
    if not path.is_file():
        raise InputError(
            f"{run.folder} has no importance over time: train it with --importance_every=1 (or more)"
        )
    try:
        return read_parquet(path).select(IMPORTANCE_SCHEMA.names()).cast(IMPORTANCE_SCHEMA)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{path}: cannot be read ({error}); train the run again") from error


def add_importance(run: Run, rows: pl.DataFrame) -> None:
    """Add an evaluation's rows; those of this update or later ones are replaced, as when a run is resumed."""
    path = run.folder / FILE
    rows = rows.select(IMPORTANCE_SCHEMA.names()).cast(IMPORTANCE_SCHEMA)
    if path.is_file():
        rows = pl.concat([read_importance(run).filter(pl.col("step") < rows["step"].min()), rows])
    with whole_file(path) as temporary:
        write_parquet(rows, temporary)


COUNTS_SCHEMA = pl.Schema(
    [
        ("task", pl.String), ("sentence", pl.Int32), ("key", pl.UInt32), ("document", pl.String),
        ("counts", pl.List(pl.Float64)),
    ]
)  # fmt: skip
"""A row per task and annotated sentence of the split.

`sentence` is its number from 0, `key` a checksum of its words (`key_of`), `document` what it is from (empty:
unknown), and `counts` are those of `mtl.tasks.metrics.TaskMetric.sentence_counts`.
"""


def key_of(sentence: Sentence) -> int:
    """A number that tells sentences with different words apart."""
    return zlib.crc32("\0".join(sentence.words).encode())


def check_counts_place(run: Run, split: str) -> None:
    """Raise `OSError` if `write_counts` cannot write; called before any sentence is scored."""
    check_file_place(_path(run, split))


def write_counts(run: Run, split: str, counts: pl.DataFrame) -> None:
    """Write the counts of a split into the run's folder."""
    path = _path(run, split)
    path.parent.mkdir(exist_ok=True)
    with whole_file(path) as file:
        write_parquet(counts, file, mark_of(run.folder))


def read_counts(run: Run, split: str) -> pl.DataFrame:
    """The counts of a split; raises `InputError` if the run has none, or the file is damaged."""
    path = _path(run, split)
    if not path.is_file():
        raise InputError(
            f"{run.folder} has no counts per sentence of {split}; write them with "
            f"'mtl evaluate {run.folder} --split {split}'"
        )
    try:
        table = read_parquet(path)
        if "document" not in table.columns:  # an earlier version wrote it
            table = table.with_columns(document=pl.lit(""))
        counts = table.select(COUNTS_SCHEMA.names()).cast(COUNTS_SCHEMA)
        counts = counts.with_columns(pl.col("document").fill_null(""))
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

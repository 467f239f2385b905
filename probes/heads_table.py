"""The tidy table of what heads are good at, and its summary per label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl
from jaxtyping import Float, Int

SCHEMA = pl.Schema(
    {
        "measure": pl.String,
        "task": pl.String,
        "label": pl.String,
        "layer": pl.Int32,
        "head": pl.Int32,
        "value": pl.Float64,
        "count": pl.Int64,
        "choice": pl.String,
    }
)
"""One row per measure, task, label and head; layers and heads from 0, null where a figure is of no head.

`choice` says what was chosen where the definition leaves a choice: the columns that compete for the most
attended word, or where centroids come from.
"""

CHANCE = {"attention": "attention_offset", "clustering": "clustering_shuffled"}
"""Per probe the measure that says what it would show by chance."""


def rows(
    measure: str,
    task: str,
    labels: Sequence[str],
    value: Float[np.ndarray, "label layer head"],
    count: Int[np.ndarray, " label"],
    choice: str = "",
) -> pl.DataFrame:
    """A measure's rows; labels that do not occur are left out, labels that are never hit are not."""
    label, layer, head = (axis.ravel() for axis in np.indices(value.shape))
    frame = pl.DataFrame(
        {
            "measure": measure,
            "task": task,
            "label": np.array(labels, dtype=object)[label].tolist(),
            "layer": layer,
            "head": head,
            "value": value.ravel(),
            "count": count[label],
            "choice": choice,
        },
        schema=SCHEMA,
    )
    return frame.filter(pl.col("count") > 0)


def headless_rows(
    measure: str,
    task: str,
    labels: Sequence[str],
    value: Float[np.ndarray, " label"],
    count: Int[np.ndarray, " label"],
    choice: str = "",
) -> pl.DataFrame:
    """Rows of a figure that no head has part in."""
    nobody = pl.lit(None, dtype=pl.Int32)
    whole = rows(measure, task, labels, value[:, None, None], count, choice)
    return whole.with_columns(layer=nobody, head=nobody)


def write(path: Path, table: pl.DataFrame, provenance: Mapping[str, str]) -> None:
    """Write the table with its provenance as the file's metadata."""
    table.write_parquet(path, metadata=dict(provenance))


def read(path: Path) -> tuple[pl.DataFrame, dict[str, str]]:
    """A table and its provenance; raises `ValueError` if it is none of ours."""
    try:
        table = pl.read_parquet(path)
        metadata = pl.read_parquet_metadata(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise ValueError(f"{path}: cannot be read ({error}); make it with 'mtl probe'") from error
    if "choice" not in table.columns:
        table = table.with_columns(choice=pl.lit(""))
    missing = sorted(set(SCHEMA) - set(table.columns))
    if missing:
        raise ValueError(f"{path}: no column {missing[0]!r}; make the table with 'mtl probe'")
    provenance = {key: value for key, value in metadata.items() if key != "ARROW:schema"}
    return table.select(SCHEMA.names()).cast(SCHEMA), provenance


def best_heads(table: pl.DataFrame) -> pl.DataFrame:
    """Per task and label the best head of the task's probe (the first one on ties) beside its chance level.

    `chance` is the best fixed offset for attention, and for clustering the best head under shuffled labels:
    the best of as many heads, like the value that it stands beside.
    """
    of = ["task", "label"]
    probes = table.filter(pl.col("measure").is_in(list(CHANCE)))
    best = (
        probes.sort("value", "layer", "head", descending=[True, False, False])
        .group_by(of, maintain_order=True)
        .first()
    )
    chance = (
        table.filter(pl.col("measure").is_in(list(CHANCE.values())))
        .group_by(of)
        .agg(chance=pl.col("value").max())
    )
    majority = table.filter(pl.col("measure") == "clustering_majority").select(*of, majority="value")
    return (
        best.join(chance, on=of, how="left")
        .join(majority, on=of, how="left")
        .select("measure", *of, "count", "value", "layer", "head", "chance", "majority", "choice")
        .sort("task", "count", "label", descending=[False, True, False])
    )


def weighted_means(best: pl.DataFrame) -> pl.DataFrame:
    """Per task the count-weighted means over labels of the best heads' values and of chance."""

    def mean(column: str) -> pl.Expr:
        return ((pl.col(column) * pl.col("count")).sum() / pl.col("count").sum()).alias(column)

    return (
        best.group_by("measure", "task", "choice", maintain_order=True)
        .agg(
            labels=pl.len(),
            items=pl.col("count").sum(),
            value=mean("value"),
            chance=mean("chance"),
            majority=pl.when(pl.col("majority").is_null().all()).then(None).otherwise(mean("majority")),
        )
        .sort("task")
    )


def markdown(best: pl.DataFrame, means: pl.DataFrame) -> str:
    """Both summaries as Markdown tables, one per task, figures in per cent."""
    parts = []
    for mean in means.iter_rows(named=True):
        clustering = mean["measure"] == "clustering"
        chance = "shuffled labels" if clustering else "best fixed offset"
        titles = ["label", "count", "best head", "layer", "head", chance]
        lines = [
            f"## {mean['task']}: {mean['measure']} ({mean['choice']})",
            "",
            f"| {' | '.join(titles)} |",
            "|---|" + "---:|" * (len(titles) - 1),
        ]
        of_task = best.filter((pl.col("task") == mean["task"]) & (pl.col("measure") == mean["measure"]))
        lines += [
            f"| {row['label'].replace('|', chr(92) + '|')} | {row['count']:,} | {per_cent(row['value'])} | "
            f"{row['layer']} | {row['head']} | {per_cent(row['chance'])} |"
            for row in of_task.iter_rows(named=True)
        ]
        most = f"; the most frequent label alone: {per_cent(mean['majority'])}" if clustering else ""
        lines += [
            f"| *weighted mean* | {mean['items']:,} | {per_cent(mean['value'])} | | | "
            f"{per_cent(mean['chance'])} |",
            "",
            f"{mean['labels']} labels{most}.",
        ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def per_cent(share: float | None) -> str:
    """A share in per cent, with one decimal."""
    return "" if share is None else f"{100 * share:.1f}"

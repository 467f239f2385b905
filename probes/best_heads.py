"""The best head of every label beside its chance level, and the means over labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from probes.head_names import with_names
from probes.measures.table import BY_NAME, MEASURES, SKILLS
from probes.sites import in_order, sites_of


def best_heads(table: pl.DataFrame) -> pl.DataFrame:
    """Per task and label the best head of the task's probe (the first one on ties) beside its chance level.

    `chance` is the best fixed offset for attention, and for clustering the best head under shuffled labels:
    the best of as many heads as the value beside it.
    """
    label = ["task", "label"]
    probes = table.filter(pl.col("measure").is_in(list(SKILLS)))
    best = (
        probes.sort(-pl.col("value"), in_order(sites_of(probes)), "layer", "head")
        .group_by(label, maintain_order=True)
        .first()
    )
    chance = (
        table.filter(pl.col("measure").is_in(list(SKILLS.values())))
        .group_by(label)
        .agg(chance=pl.col("value").max())
    )
    majorities = [measure.majority for measure in MEASURES if measure.majority is not None]
    majority = table.filter(pl.col("measure").is_in(majorities)).select(*label, majority="value")
    return (
        best.join(chance, on=label, how="left")
        .join(majority, on=label, how="left")
        .select(
            "measure", *label, "count", "value", "attention", "layer", "head", "chance", "majority", "choice"
        )
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
    parts, named = [], with_names(best)
    for mean in means.iter_rows(named=True):
        measure = BY_NAME[mean["measure"]]
        titles = ["label", "count", "best head", "head", measure.chance_title]
        lines = [
            f"## {mean['task']}: {mean['measure']} ({mean['choice']})",
            "",
            f"| {' | '.join(titles)} |",
            "|---|" + "---:|" * (len(titles) - 1),
        ]
        of_task = named.filter((pl.col("task") == mean["task"]) & (pl.col("measure") == mean["measure"]))
        lines += [
            f"| {row['label'].replace('|', chr(92) + '|')} | {row['count']:,} | {per_cent(row['value'])} | "
            f"{hit_by(row)} | {per_cent(row['chance'])} |"
            for row in of_task.iter_rows(named=True)
        ]
        most = ""
        if measure.majority is not None:
            most = f"; the most frequent label alone: {per_cent(mean['majority'])}"
        lines += [
            f"| *weighted mean* | {mean['items']:,} | {per_cent(mean['value'])} | | "
            f"{per_cent(mean['chance'])} |",
            "",
            f"{mean['labels']} labels{most}.",
        ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def hit_by(row: Mapping[str, Any]) -> str:
    """The name of the best head of a row of `best_heads` with names; empty for a label that no head hits."""
    return row["name"] if row["value"] else ""


def per_cent(share: float | None) -> str:
    """A share in per cent, with one decimal."""
    return "" if share is None else f"{100 * share:.1f}"

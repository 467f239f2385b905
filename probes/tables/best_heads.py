"""The best head of every label beside its chance level, and the means over labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from mtl.probes.head_names import with_names
from mtl.probes.measures.table import BY_NAME, MEASURES
from mtl.probes.sites import KEYS
from mtl.probes.tables.label_scores import FEWEST_ITEMS, best_of_labels, label_scores, weighted_mean
from mtl.tasks.in_words import counted


def best_heads(table: pl.DataFrame) -> pl.DataFrame:
    """Per task and label the best head of the task's probe (the first one on ties) beside its chance level.

    For attention, `chance` is the best fixed offset; for clustering, it is the best head under shuffled
    labels, chosen from as many heads as the value beside it. `counted` says whether the label counts in the
    means.
    """
    label = ["task", "label"]
    best = best_of_labels(label_scores(table))
    majorities = [measure.majority for measure in MEASURES if measure.majority is not None]
    majority = table.filter(pl.col("measure").is_in(majorities)).select(*label, majority="value")
    columns = ("measure", *label, "count", "value", *KEYS, "chance", "majority", "choice", "counted")
    return (
        best.join(majority, on=label, how="left")
        .select(columns)
        .sort("task", "count", "label", descending=[False, True, False])
    )


def weighted_means(best: pl.DataFrame) -> pl.DataFrame:
    """Per task the means of the best heads' values and of chance over labels that count, weighted by items.

    Null for a task without such a label.
    """
    counted = pl.col("counted")

    def mean(column: str) -> pl.Expr:
        of = pl.when(counted).then(pl.col(column))
        return pl.when((counted & pl.col(column).is_not_null()).any()).then(weighted_mean(of)).alias(column)

    return (
        best.group_by("measure", "task", "choice", maintain_order=True)
        .agg(
            mean("value"), mean("chance"), mean("majority"), labels=counted.sum(),
            items=pl.col("count").filter(counted).sum(), left_out=(~counted).sum(),
        )
        .select("measure", "task", "choice", "labels", "items", "value", "chance", "majority", "left_out")
        .sort("task")
    )  # fmt: skip


def left_out(mean: Mapping[str, Any]) -> str:
    """How many labels a row of `weighted_means` leaves out, and why; empty if none is left out."""
    if not mean["left_out"]:
        return ""
    number = f"{counted(mean['left_out'], 'label')}"
    return f"{number} marked * left out of the mean: root, or fewer than {FEWEST_ITEMS} items"


def label_name(row: Mapping[str, Any]) -> str:
    """The label of a row of `best_heads`, with a star if it does not count."""
    return row["label"] + ("" if row["counted"] else " *")


def markdown(best: pl.DataFrame, means: pl.DataFrame) -> str:
    """Both summaries as Markdown tables, one per task, with numbers in per cent."""
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
            f"| {_escaped(label_name(row))} | {row['count']:,} | {per_cent(row['value'])} | "
            f"{hit_by(row)} | {per_cent(row['chance'])} |"
            for row in of_task.iter_rows(named=True)
        ]
        most, rest = "", _escaped(left_out(mean))
        if measure.majority is not None:
            most = f"; the most frequent label alone: {per_cent(mean['majority'])}"
        lines += [
            f"| *weighted mean* | {mean['items']:,} | {per_cent(mean['value'])} | | "
            f"{per_cent(mean['chance'])} |",
            "",
            f"{counted(mean['labels'], 'label')}{most}." + (f" {rest[0].upper()}{rest[1:]}." if rest else ""),
        ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _escaped(text: str) -> str:
    """Text that Markdown prints literally in a cell of a table."""
    return text.replace("|", r"\|").replace("*", r"\*")


def hit_by(row: Mapping[str, Any]) -> str:
    """The name of the best head of a row of `best_heads` with names; empty for a label that no head hits."""
    return row["name"] if row["value"] else ""


def per_cent(share: float | None) -> str:
    """A share in per cent, with one decimal."""
    return "" if share is None else f"{100 * share:.1f}"

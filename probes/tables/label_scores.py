"""The scores of heads on labels, with chance, the root and the fewest items; the best head of every label."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from mtl.probes.measures.groups import BY_NAME, MEASURES, SKILLS
from mtl.probes.sites import KEYS, Site, attention_order, head_name, sites_of, with_names
from mtl.probes.tables.heads_table import computed_once, in_texts
from mtl.probes.tables.table_files import by_catalogue
from mtl.tasks.in_words import counted

FEWEST_ITEMS = 30
"""The number of items that a label needs to count: with fewer, one of many heads is above chance by luck."""
SKILL = "skill"
"""The name of what a task's probe scores above chance, whichever measure of `SKILLS` it is."""
POSITIONAL = "positional"
_RUN = ("setup", "regime", "run", "seed")
"""The columns that tell runs apart, if a table has rows of several runs."""
_OF_ARCS = ("attention", "syntactic")
_ROOT = r"(?i)^root\b"
_COUNTS = (pl.col("count") >= FEWEST_ITEMS) & ~(
    pl.col("measure").is_in(_OF_ARCS) & pl.col("label").cast(pl.String).str.contains(_ROOT)
)


def arcs_count(label: str, items: int) -> bool:
    """Whether a label of arcs counts in statements about a head (see `label_scores`)."""
    return items >= FEWEST_ITEMS and not re.search(_ROOT, label)


def weighted_mean(column: str | pl.Expr = "value") -> pl.Expr:
    """The mean of a column, each row as often as its `count` says."""
    value = pl.col(column) if isinstance(column, str) else column
    return (value * pl.col("count")).sum() / pl.col("count").filter(value.is_not_null()).sum()


def label_scores(heads: pl.DataFrame, measures: Mapping[str, str] = SKILLS) -> pl.DataFrame:
    """The rows of measures with a value per label and head, each beside its chance level.

    `heads` has the columns of heads.parquet, and any of setup, regime, run and seed; `measures` maps each
    measure to the one that holds its chance level. Further columns:

    - `chance`: that of the head, else of its layer, else of the label, else null;
    - `above`: the value less chance;
    - `counted`: whether the label counts in statements about a head. It needs `FEWEST_ITEMS` items. The
      relation `root` never counts: one end of its arc is the first special token, at which most heads look
      most of the time. It is recognised by its name, in upper or lower case and with any subtype (`root:x`).
      Tables contain names and no arcs, so a corpus that uses another name needs to be renamed.
    """
    values = heads.filter(pl.col("measure").is_in(list(measures))).drop_nulls("head")
    level = heads.filter(pl.col("measure").is_in(list(measures.values()))).with_columns(
        pl.col("measure").replace_strict(
            {level: name for name, level in measures.items()}, return_dtype=heads.schema["measure"]
        )
    )
    joined = _with_chance(values, level)
    return joined.with_columns(above=pl.col("value") - pl.col("chance"), counted=_COUNTS)


@computed_once
def skill_scores(heads: pl.DataFrame) -> pl.DataFrame:
    """The `label_scores` of all tasks' probes."""
    return label_scores(heads)


def _with_chance(values: pl.DataFrame, level: pl.DataFrame) -> pl.DataFrame:
    """The values with a column `chance`; measures have the same names in both tables.

    A chance level for all heads has no layer and no head, and one for the heads of a layer has no head.
    """
    label = [*_run_keys(values), "measure", "task", "label"]
    site = [*label, *KEYS[:-1]]
    levels = {
        "for_all": (label, level.filter(pl.col("layer").is_null())),
        "for_layer": (site, level.filter(pl.col("head").is_null()).drop_nulls("layer")),
        "for_head": ([*label, *KEYS], level.drop_nulls("head")),
    }
    joined = values
    for name, (keys, of_level) in levels.items():
        if of_level.is_empty():
            joined = joined.with_columns(pl.lit(None, pl.Float64).alias(name))
            continue
        joined = joined.join(
            of_level.select(*keys, pl.col("value").alias(name)),
            on=keys, how="left", nulls_equal=True, maintain_order="left",
        )  # fmt: skip
    return joined.with_columns(chance=pl.coalesce("for_head", "for_layer", "for_all")).drop(levels)


def best_of_labels(scores: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """The row of the best head of every task and label (the first head on ties), for each group of `by`.

    `scores` are those of `label_scores`, or means of them. `chance` becomes the best chance level of all
    heads, so that it is chosen from as many heads as the value beside it.
    """
    label = [*by, "task", "label"]
    highest = scores.with_columns(pl.col("chance").max().over(label)).filter(
        pl.col("value").eq_missing(pl.col("value").max().over(label))
    )
    first = highest.sort(
        -pl.col("value"), attention_order(sites_of(scores)), "layer", "head", maintain_order=True
    )
    return in_texts(first.group_by(label, maintain_order=True).first())


def head_scores(heads: pl.DataFrame, measure: str) -> pl.DataFrame:
    """One value per run, task and head: the columns that tell runs apart, `task`, those of `KEYS`, `value`.

    For measures with a chance level, only labels that count are used (`label_scores`). Skill is the mean over
    labels of what is above chance, at least 0 on each label, weighted by items. `syntactic` is that of the
    relation and direction farthest above chance, and `positional` that of the best offset. Other measures are
    those of the whole task (label ""), or the mean over labels, weighted by items. If there are several
    choices (such as epochs), the last one is taken.
    """
    row = BY_NAME.get(measure)
    by = [*_run_keys(heads), "task"]
    if measure == SKILL or (row is not None and row.chance is not None):
        chance = SKILLS if measure == SKILL else {measure: BY_NAME[measure].chance or ""}
        rows = _last(label_scores(heads, chance)).filter("counted").drop_nulls("chance")
        skilled = measure == SKILL or BY_NAME[measure].skill
        value = weighted_mean(pl.col("above").clip(0)) if skilled else pl.col("above").max()
    else:
        rows = _last(heads.filter(pl.col("measure") == measure).drop_nulls("head"))
        whole = (pl.col("label") == "").any().over(by)
        rows = rows.filter((pl.col("label") == "") | ~whole)
        value = pl.col("value").max() if measure == POSITIONAL else weighted_mean()
    return in_texts(rows.group_by(*by, *KEYS, maintain_order=True).agg(value=value))


def _last(rows: pl.DataFrame) -> pl.DataFrame:
    keys = [*_run_keys(rows), "measure", "task", "label", *KEYS]
    return rows.group_by(keys, maintain_order=True).last()


def _run_keys(table: pl.DataFrame) -> list[str]:
    return [name for name in _RUN if name in table.columns]


def best_heads(table: pl.DataFrame) -> pl.DataFrame:
    """Per task and label the best head of the task's probe (the first one on ties) beside its chance level.

    For attention, `chance` is the best fixed offset; for clustering, it is the best head under shuffled
    labels, chosen from as many heads as the value beside it. `length` is the mean length of arcs. `counted`
    says whether the label counts in the means.
    """
    label = ["task", "label"]
    best = best_of_labels(label_scores(table))
    majorities = [measure.majority for measure in MEASURES if measure.majority is not None]
    majority = table.filter(pl.col("measure").is_in(majorities)).select(*label, majority="value")
    lengths = [measure.length for measure in MEASURES if measure.length is not None]
    length = table.filter(pl.col("measure").is_in(lengths)).select(*label, length="value")
    numbers = ("count", "value", *KEYS, "chance", "majority", "length")
    columns = ("measure", *label, *numbers, "choice", "counted")
    rows = best.join(majority, on=label, how="left").join(length, on=label, how="left").select(columns)
    return by_catalogue(rows.sort("count", "label", descending=[True, False]))


def weighted_means(best: pl.DataFrame) -> pl.DataFrame:
    """Per task the means of the best heads' values and of chance over labels that count, weighted by items.

    Null for a task without such a label.
    """
    counted = pl.col("counted")

    def mean(column: str) -> pl.Expr:
        of = pl.when(counted).then(pl.col(column))
        return pl.when((counted & pl.col(column).is_not_null()).any()).then(weighted_mean(of)).alias(column)

    means = (
        best.group_by("measure", "task", "choice", maintain_order=True)
        .agg(
            mean("value"), mean("chance"), mean("majority"), labels=counted.sum(),
            items=pl.col("count").filter(counted).sum(), left_out=(~counted).sum(),
        )
        .select("measure", "task", "choice", "labels", "items", "value", "chance", "majority", "left_out")
    )  # fmt: skip
    return by_catalogue(means)


def labels_left_out(mean: Mapping[str, Any]) -> str:
    """How many labels a row of `weighted_means` leaves out, and why; empty if none is left out."""
    if not mean["left_out"]:
        return ""
    number = f"{counted(mean['left_out'], 'label')}"
    return f"{number} marked * left out of the mean: root, or fewer than {FEWEST_ITEMS} items"


def label_name(row: Mapping[str, Any]) -> str:
    """The label of a row of `best_heads`, with a star if it does not count."""
    return row["label"] + ("" if row["counted"] else " *")


def markdown_summaries(best: pl.DataFrame, means: pl.DataFrame) -> str:
    """Both summaries as Markdown tables, one per task, with numbers in per cent."""
    parts, named = [], with_names(best)
    for mean in means.iter_rows(named=True):
        measure = BY_NAME[mean["measure"]]
        with_length = measure.length is not None
        titles = ["label", "count", "best head", "head", measure.chance_title, *[LENGTH] * with_length]
        lines = [
            f"## {mean['task']}: {mean['measure']} ({mean['choice']})",
            "",
            f"| {' | '.join(titles)} |",
            "|---|" + "---:|" * (len(titles) - 1),
        ]
        of_task = named.filter((pl.col("task") == mean["task"]) & (pl.col("measure") == mean["measure"]))
        lines += [
            f"| {_escaped(label_name(row))} | {row['count']:,} | {per_cent(row['value'])} | "
            f"{hit_by(row)} | {per_cent(row['chance'])} |" + f" {length_of(row)} |" * with_length
            for row in of_task.iter_rows(named=True)
        ]
        most, rest = "", _escaped(labels_left_out(mean))
        if measure.majority is not None:
            most = f"; the most frequent label alone: {per_cent(mean['majority'])}"
        lines += [
            f"| *weighted mean* | {mean['items']:,} | {per_cent(mean['value'])} | | "
            f"{per_cent(mean['chance'])} |" + " |" * with_length,
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


LENGTH = "mean length"
"""The title of the column with the mean length of a label's arcs, in words."""


def length_of(row: Mapping[str, Any]) -> str:
    """The mean length in a row of `best_heads`, with one decimal; empty for arcs from the root."""
    return "" if row["length"] is None else f"{row['length']:.1f}"


def per_cent(share: float | None) -> str:
    """A share in per cent, with one decimal."""
    return "" if share is None else f"{100 * share:.1f}"


def printed_best_heads(skill: pl.DataFrame) -> pl.DataFrame:
    """The best head of each label in a table `skills`, by name."""
    best = best_of_labels(skill, ("regime",)).sort("count", "label", descending=[True, False])
    best = by_catalogue(best)
    sites = sites_of(skill)
    heads = [
        head_name(Site(attention, layer), head, sites)
        for attention, layer, head in best.select(KEYS).iter_rows()
    ]
    return best.select(
        "regime", "task", "label", "count", pl.Series("best head", heads, dtype=pl.String),
        pl.col("value").alias("accuracy"), "chance", "counted",
    )  # fmt: skip


def open_heads_by_mask(table: pl.DataFrame, by: str, kept: str = "kept") -> pl.DataFrame:
    """Per mask (`by`), how many heads it keeps, how many of them it learned to keep, and their names."""
    sites = sites_of(table)
    rows = []
    for (mask,), of_mask in table.group_by(by, maintain_order=True):
        cells = of_mask.filter(kept)
        names = [
            head_name(Site(kind, layer), head, sites) for kind, layer, head in cells.select(KEYS).iter_rows()
        ]
        learned = int((of_mask[kept] & of_mask["learned"]).sum())
        rows.append((mask, cells.height, learned, " ".join(names)))
    return pl.DataFrame(
        rows, {by: pl.String, "kept": pl.Int64, "learned": pl.Int64, "heads": pl.String}, orient="row"
    )

"""The scores of heads on labels: the only definition, with chance, the root and the fewest items."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import polars as pl

from mtl.probes.measures.table import BY_NAME, SKILLS
from mtl.probes.sites import KEYS, in_order, sites_of
from mtl.probes.tables.heads_table import in_texts
from mtl.probes.tables.made_once import made_once

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


@made_once
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
    first = highest.sort(-pl.col("value"), in_order(sites_of(scores)), "layer", "head", maintain_order=True)
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

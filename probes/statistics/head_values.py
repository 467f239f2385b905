"""All measures of all heads in one table: a value per run, task, measure and head."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from jaxtyping import Float, Int

from mtl.probes.measures.groups import GROUPS
from mtl.probes.measures.table import BY_NAME, MEASURES, SKILLS
from mtl.probes.sites import KEYS
from mtl.probes.tables.heads_table import in_texts
from mtl.probes.tables.label_scores import SKILL, head_scores

ABLATION = "ablation"
SIGNIFICANT = 0.05
"""The false discovery rate at which a head's ablation counts as significant."""
PREDICTORS = {
    **{measure.name: measure.predictor for measure in MEASURES if measure.predictor},
    "skill": "probe skill",
    "log_alpha": "log alpha of the mask",
}
"""The measures that may predict the loss by ablation, and how figures print them; `log_alpha` and `skill` are
not in the table of measures."""
OF_WORTH = {
    name: [measure.name for measure in group.measures if measure.name == ABLATION or measure.predictor]
    for name, group in GROUPS.items()
    if name != "probes"
}
"""For each group, the measures that say what a head is worth to a task."""
SYNTACTIC = "syntactic"
SIGNED = (*(measure.name for measure in MEASURES if measure.signed), "log_alpha")
"""Measures drawn in two colours, above and below zero."""
USED = tuple(
    dict.fromkeys(
        name
        for measure in (ABLATION, *PREDICTORS)
        for name in (measure, f"{measure}_q", getattr(BY_NAME.get(measure), "chance", None))
        if name
    )
) + tuple(name for pair in SKILLS.items() for name in pair)
"""The measures whose rows of heads.parquet are used."""
COLUMNS = ("setup", "run", "seed", "task", "measure", *KEYS, "value", "q")


def head_values(heads: pl.DataFrame) -> pl.DataFrame:
    """One value per run, task, measure and head, with the columns `COLUMNS`.

    `heads` has the columns of heads.parquet, and `setup`, `run`, `seed`. Values are those of `head_scores`;
    `skill` is what the task's probe scores above chance. Measures that belong to no task, such as
    `syntactic`, count for each task of the run. `q` is that of a measure that was tested, else null.
    """
    there = set(heads["measure"].unique())
    names = [
        name for name in (ABLATION, *PREDICTORS) if there.intersection(SKILLS if name == SKILL else [name])
    ]
    key = ["setup", "run", "seed", "task", *KEYS]
    per_head = pl.concat(
        [head_scores(heads, name).select(*key, "value", measure=pl.lit(name)) for name in names or [ABLATION]]
    ).with_columns(task=pl.when(pl.col("measure") == SYNTACTIC).then(pl.lit("")).otherwise("task"))
    # If several tasks have arcs, a head's role is what it does best for any of them.
    per_head = per_head.group_by(*key, "measure", maintain_order=True).agg(pl.col("value").max())
    tested = [f"{name}_q" for name in names if f"{name}_q" in getattr(BY_NAME.get(name), "names", ())]
    q = (
        in_texts(heads.filter(pl.col("measure").is_in(tested)).drop_nulls("head"))
        .group_by(*key, "label", "measure", maintain_order=True)
        .last()
        .select(
            "run", "task", *KEYS, measure=pl.col("measure").str.strip_suffix("_q"), q=pl.col("value")
        )
    )  # fmt: skip
    joined = per_head.join(q, on=["run", "task", "measure", *KEYS], how="left", maintain_order="left")
    return _for_each_task(joined).select(COLUMNS)


def _for_each_task(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows, with those of no task repeated for every task of their run that has rows of its own."""
    of_task, of_none = rows.filter(pl.col("task") != ""), rows.filter(pl.col("task") == "")
    tasks = of_task.select("run", "task").unique(maintain_order=True)
    spread = of_none.drop("task").join(tasks, on="run", how="inner", maintain_order="left_right")
    return pl.concat([of_task, spread.select(of_task.columns)])


def tables_of(
    values: pl.DataFrame, by: Sequence[str]
) -> tuple[dict[tuple[str, ...], Float[np.ndarray, " head"]], Int[np.ndarray, " head"]]:
    """For each combination of values of the columns `by`, a vector over all heads of the table; and strata.

    The stratum of a head is the number of its site. All vectors have the same order of heads, and NaN where
    there is no value.
    """
    places = values.select(KEYS).unique(maintain_order=True).sort(KEYS).with_row_index("place")
    strata = (
        places.select(pl.struct("attention", "layer").rank("dense").cast(pl.Int64)).to_series().to_numpy()
    )
    vectors: dict[tuple[str, ...], Float[np.ndarray, " head"]] = {}
    placed = values.join(places, on=KEYS, how="left", maintain_order="left")
    for *key, heads, of_heads in placed.group_by(by, maintain_order=True).agg("place", "value").iter_rows():
        vector = vectors[tuple(map(str, key))] = np.full(places.height, np.nan)
        vector[heads] = np.array(of_heads, dtype=np.float64)
    return vectors, strata


def head_means(values: pl.DataFrame, measure: str) -> pl.DataFrame:
    """A measure's mean over the runs of each task and setup, per head.

    Columns: task, setup, attention, layer, head, value, runs, significant (whether `q` is at most
    `SIGNIFICANT` in more than half of the runs; null for a measure that was not tested).
    """
    tested = pl.col("q").is_not_null()
    significant = (pl.col("q") <= SIGNIFICANT).sum() > pl.len() / 2
    return (
        values.filter(pl.col("measure") == measure)
        .group_by("task", "setup", *KEYS, maintain_order=True)
        .agg(
            pl.col("value").mean(),
            runs=pl.col("run").n_unique(),
            significant=pl.when(tested.any()).then(significant),
        )
    )

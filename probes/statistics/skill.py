"""Skills of heads above chance, before training, and after training alone and jointly."""

from __future__ import annotations

import polars as pl

from probes.measures.table import SKILLS
from probes.sites import KEYS, in_order, sites_of

REGIMES = ("static", "stl", "pair", "joint")
"""How the encoder was trained: not yet, on one task, on two, on more."""
REGIME_NAMES = {"static": "static", "stl": "STL", "pair": "MTL-2", "joint": "MTL"}
"""As figures and the report print them."""


def skills(heads: pl.DataFrame) -> pl.DataFrame:
    """Per regime, task, label and head the mean over runs of value and of skill, its excess over chance.

    `heads` has the columns of heads.parquet, and `regime`, `run`, `seed`; of single-task runs only the
    task that they were trained on should be in it. Chance is the best fixed offset for attention, and for
    clustering the same head under shuffled labels. Below chance there is no skill to lose: skill is 0 there.
    Columns: regime, task, label, attention, layer, head, value, chance, skill, count, seeds. Raises
    `ValueError` for a value without a chance level.
    """
    label = ["task", "label"]
    values = heads.filter(pl.col("measure").is_in(list(SKILLS)))
    joined = with_chance(values, heads.filter(pl.col("measure").is_in(list(SKILLS.values()))))
    unknown = joined.filter(pl.col("chance").is_null())
    if unknown.height:
        row = unknown.row(0, named=True)
        raise ValueError(f"no chance level for {row['task']} {row['label']} in {row['run']}: probe it again")
    return (
        joined.with_columns(skill=(pl.col("value") - pl.col("chance")).clip(0))
        .group_by("regime", *label, *KEYS, maintain_order=True)
        .agg(
            pl.col("value", "chance", "skill").mean(), pl.col("count").max(), seeds=pl.col("seed").n_unique()
        )
        .sort("regime", *label, in_order(sites_of(values)), "layer", "head")
    )


def with_chance(values: pl.DataFrame, chance: pl.DataFrame) -> pl.DataFrame:
    """Values with a column `chance`: that of the head, else of its layer, else of the label, else null.

    Both tables have the columns of heads.parquet, and `regime`, `run`, `seed`. A chance level that holds for
    all heads has no layer and no head, one that holds for the heads of a layer no head.
    """
    label = ["regime", "run", "seed", "task", "label"]
    site = [*label, *KEYS[:-1]]
    levels = {
        "for_all": (label, chance.filter(pl.col("layer").is_null())),
        "for_layer": (site, chance.filter(pl.col("head").is_null()).drop_nulls("layer")),
        "for_head": ([*label, *KEYS], chance.drop_nulls("head")),
    }
    joined = values
    for name, (keys, level) in levels.items():
        joined = joined.join(
            level.select(*keys, pl.col("value").alias(name)),
            on=keys, how="left", nulls_equal=True, maintain_order="left",
        )  # fmt: skip
    return joined.with_columns(chance=pl.coalesce("for_head", "for_layer", "for_all")).drop(levels)


def label_values(heads: pl.DataFrame) -> pl.DataFrame:
    """Per task and label the best head's value in each regime, mean over runs; labels by falling frequency.

    The best head is chosen in each run anew. Columns: task, label, count, then the regimes that there are;
    null where a regime's runs do not have the label.
    """
    best = (
        heads.filter(pl.col("measure").is_in(list(SKILLS)))
        .group_by("regime", "run", "seed", "task", "label", maintain_order=True)
        .agg(pl.col("value").max(), pl.col("count").first())
        .group_by("regime", "task", "label", maintain_order=True)
        .agg(pl.col("value").mean(), pl.col("count").max())
    )
    counts = best.group_by("task", "label").agg(pl.col("count").max())
    wide = best.pivot("regime", index=["task", "label"], values="value", sort_columns=True)
    regimes = [regime for regime in REGIMES if regime in wide.columns]
    return (
        wide.join(counts, on=["task", "label"])
        .select("task", "label", "count", *regimes)
        .sort("task", "count", "label", descending=[False, True, False])
    )


def absent_labels(labels: pl.DataFrame) -> tuple[str, ...]:
    """Notes on labels that some regime's runs do not have, one for each task, of a `label_values` table."""
    notes = []
    for regime in [name for name in labels.columns if name in REGIMES]:
        for (task,), rows in labels.group_by("task", maintain_order=True):
            lacking = rows.filter(pl.col(regime).is_null())["label"].to_list()
            if len(lacking) == rows.height:
                notes.append(f"the {regime} runs have no probes of {task}")
            elif lacking:
                more = f" and {len(lacking) - 5} more" if len(lacking) > 5 else ""
                notes.append(f"the {regime} runs have no {task} label {', '.join(lacking[:5])}{more}")
    return tuple(notes)

"""What heads are good at beyond chance, in the encoder as it was and after training alone and jointly."""

from __future__ import annotations

import polars as pl

from probes.measures.table import SKILLS

REGIMES = ("static", "stl", "pair", "joint")
"""How the encoder was trained: not yet, on one task, on two, on more."""
REGIME_NAMES = {"static": "static", "stl": "STL", "pair": "MTL-2", "joint": "MTL"}
"""As figures and the report print them."""


def skills(heads: pl.DataFrame) -> pl.DataFrame:
    """Per regime, task, label and head the mean over runs of value and of skill, its excess over chance.

    `heads` has the columns of heads.parquet, and `regime`, `run`, `seed`; of single-task runs only the
    task that they were trained on should be in it. Chance is the best fixed offset for attention, and for
    clustering the same head under shuffled labels. Below chance there is no skill to lose: skill is 0 there.
    Columns: regime, task, label, layer, head, value, chance, skill, count, seeds.
    """
    run, of = ["regime", "run", "seed"], ["task", "label"]
    values = heads.filter(pl.col("measure").is_in(list(SKILLS)))
    chance = heads.filter(pl.col("measure").is_in(list(SKILLS.values())))
    of_label = chance.filter(pl.col("head").is_null()).select(*run, *of, for_all="value")
    of_head = chance.drop_nulls("head").select(*run, *of, "layer", "head", for_head="value")
    joined = values.join(of_label, on=[*run, *of], how="left", nulls_equal=True).join(
        of_head, on=[*run, *of, "layer", "head"], how="left", nulls_equal=True
    )
    joined = joined.with_columns(chance=pl.coalesce("for_head", "for_all"))
    unknown = joined.filter(pl.col("chance").is_null())
    if unknown.height:
        row = unknown.row(0, named=True)
        raise ValueError(f"no chance level for {row['task']} {row['label']} in {row['run']}: probe it again")
    return (
        joined.with_columns(skill=(pl.col("value") - pl.col("chance")).clip(0))
        .group_by("regime", *of, "layer", "head", maintain_order=True)
        .agg(
            pl.col("value", "chance", "skill").mean(), pl.col("count").max(), seeds=pl.col("seed").n_unique()
        )
        .sort("regime", "task", "label", "layer", "head")
    )


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
    """Notes on labels that some regime's runs do not have, of a table as `label_values` gives it."""
    regimes = [name for name in labels.columns if name in REGIMES]
    return tuple(
        f"the {regime} runs have no {row['task']} label {row['label']}"
        for row in labels.iter_rows(named=True)
        for regime in regimes
        if row[regime] is None
    )

"""Skills of heads above chance, before training, and after training alone and jointly."""

from __future__ import annotations

import polars as pl

from mtl.probes.sites import KEYS, in_order, sites_of
from mtl.probes.tables.heads_table import in_texts
from mtl.probes.tables.label_scores import best_of_labels, skill_scores
from mtl.probes.tables.made_once import made_once

REGIMES = ("static", "stl", "pair", "joint")
"""How the encoder was trained: not yet, on one task, on two, on more."""
REGIME_NAMES = {"static": "static", "stl": "STL", "pair": "MTL-2", "joint": "MTL"}
"""As figures and the report print them."""


@made_once
def skills(heads: pl.DataFrame) -> pl.DataFrame:
    """Per regime, task, label and head the mean over runs of value and of skill, its excess over chance.

    `heads` has the columns of heads.parquet, and `regime`, `run`, `seed`; of single-task runs only the
    task that they were trained on should be in it. Chance is the best fixed offset for attention, and for
    clustering the same head under shuffled labels. Below chance there is no skill to lose: skill is 0 there.
    Columns: regime, task, label, attention, layer, head, value, chance, skill, count, counted (as
    `label_scores`), seeds. Raises `ValueError` for a value without a chance level.
    """
    scores = skill_scores(heads)
    unknown = scores.filter(pl.col("chance").is_null())
    if unknown.height:
        row = unknown.row(0, named=True)
        raise ValueError(f"no chance level for {row['task']} {row['label']} in {row['run']}: probe it again")
    label = ["task", "label"]
    means = (
        scores.with_columns(skill=pl.col("above").clip(0))
        .group_by("regime", *label, *KEYS, maintain_order=True)
        .agg(
            pl.col("value", "chance", "skill").mean(), pl.col("count", "counted").max(),
            seeds=pl.col("seed").n_unique(),
        )
    )  # fmt: skip
    return in_texts(means).sort("regime", *label, in_order(sites_of(scores)), "layer", "head")


@made_once
def label_values(heads: pl.DataFrame) -> pl.DataFrame:
    """Per task and label the best head's value in each regime, mean over runs; labels by falling frequency.

    The best head is chosen in each run anew. Columns: task, label, count, then the regimes that there are
    (null where a regime's runs do not have the label), then chance (that of the best of all heads, in the
    regime where it is highest) and counted (as `label_scores`).
    """
    label = ["task", "label"]
    best = (
        best_of_labels(skill_scores(heads), ("regime", "run", "seed"))
        .group_by("regime", *label, maintain_order=True)
        .agg(pl.col("value", "chance").mean(), pl.col("count", "counted").max())
    )
    of_label = best.group_by(label).agg(pl.col("count", "chance", "counted").max())
    wide = best.pivot("regime", index=label, values="value", sort_columns=True)
    regimes = [regime for regime in REGIMES if regime in wide.columns]
    return (
        wide.join(of_label, on=label)
        .select(*label, "count", *regimes, "chance", "counted")
        .sort("task", "count", "label", descending=[False, True, False])
    )


def absent_labels(labels: pl.DataFrame) -> tuple[str, ...]:
    """Notes on labels that some regime's runs do not have, one for each task, of a `label_values` table."""
    notes = []
    for regime in [name for name in labels.columns if name in REGIMES]:
        having = f"the {REGIME_NAMES[regime]} runs have no"
        for (task,), rows in labels.group_by("task", maintain_order=True):
            lacking = rows.filter(pl.col(regime).is_null())["label"].to_list()
            if len(lacking) == rows.height:
                notes.append(f"{having} probes of {task}")
            elif lacking:
                more = f" and {len(lacking) - 5} more" if len(lacking) > 5 else ""
                notes.append(f"{having} {task} label {', '.join(lacking[:5])}{more}")
    return tuple(notes)

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
"""How figures and the report print the regimes."""


@made_once
def skills(heads: pl.DataFrame) -> pl.DataFrame:
    """Per regime, task, label and head the mean over runs of the value, and of skill: its excess over chance.

    `heads` has the columns of heads.parquet, and `regime`, `run`, `seed`; single-task runs should have only
    rows of the task that they were trained on. Chance is the best fixed offset for attention, and the same
    head under shuffled labels for clustering. Below chance there is no skill to lose, so skill is 0 there.
    Columns: regime, task, label, attention, layer, head, value, chance, skill, count, counted (as in
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
    """Per task and label the best head's value in each regime, as a mean over runs; frequent labels first.

    The best head is chosen in each run separately. Columns: task, label, count, then the regimes that occur
    (null if a regime's runs do not have the label), then chance (that of the best of all heads, in the regime
    where it is highest) and counted (as in `label_scores`).
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
    """Notes on labels that a regime's runs do not have, one for each task, from a table `label_values`."""
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

"""Skills of heads above chance, heads with a role, and what survives pruning (Voita et al. 2019)."""

from __future__ import annotations

import polars as pl

from mtl.probes.measures.groups import BY_NAME
from mtl.probes.sites import KEYS, attention_order, sites_of
from mtl.probes.tables.heads_table import computed_once, in_texts
from mtl.probes.tables.label_scores import best_of_labels, label_scores, skill_scores
from mtl.probes.tables.table_files import ColumnUnit, by_catalogue

REGIMES = ("pretrained", "stl", "pair", "joint")
"""How the encoder was trained: not yet, on one task, on two, on more."""
REGIME_NAMES = {"pretrained": "pretrained", "stl": "STL", "pair": "MTL-2", "joint": "MTL"}
"""How figures and the report print the regimes."""

SKILL_UNITS = ColumnUnit.SHARE.of("value", "accuracy", "chance", "skill")
VALUE_UNITS = ColumnUnit.SHARE.of(*REGIMES, "chance")


@computed_once
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
    return in_texts(means).sort("regime", *label, attention_order(sites_of(scores)), "layer", "head")


@computed_once
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
    rows = wide.join(of_label, on=label).select(*label, "count", *regimes, "chance", "counted")
    return by_catalogue(rows.sort("count", "label", descending=[True, False]))


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


POSITIONAL = 0.9
"""A head is positional if it looks at one relative position at least this often."""
SYNTACTIC_MARGIN = 0.1
"""A head has a syntactic role if it is this much above the best fixed offset on a relation that counts."""


def heads_of_roles(heads: pl.DataFrame) -> pl.DataFrame:
    """The heads of a tidy table that have a positional or a syntactic role, beside the chance level.

    Columns: measure, task, label, attention, layer, head, value, chance (null for positional roles); the best
    head of a role comes first.
    """
    columns = ["measure", "task", "label", *KEYS, "value", "chance"]
    positional = heads.filter(
        (pl.col("measure") == "positional") & (pl.col("value") >= POSITIONAL)
    ).with_columns(chance=pl.lit(None, dtype=pl.Float64))
    arcs = label_scores(heads, {"syntactic": BY_NAME["syntactic"].chance or ""})
    far = pl.col("value") >= pl.col("chance") + SYNTACTIC_MARGIN
    syntactic = arcs.filter(pl.col("counted") & far)
    held = pl.concat([positional.select(columns), syntactic.select(columns)])
    order = ("measure", "task", "label", -pl.col("value"), attention_order(sites_of(heads)), "layer", "head")
    return held.sort(*order)


RARE_WORDS = 0.5
"""A head looks at rare words if it attends most to the sentence's rarest word at least this often."""
ROLES = ("positional", "syntactic", "rare_words")


def heads_with_roles(heads: pl.DataFrame) -> pl.DataFrame:
    """The heads in heads.parquet that have a role, each once per role: role, attention, layer, head."""
    held = heads_of_roles(heads).select(pl.col("measure").alias("role"), *KEYS)
    rare = heads.filter((pl.col("measure") == "rare_words") & (pl.col("value") >= RARE_WORDS))
    return pl.concat([held, rare.select(pl.col("measure").alias("role"), *KEYS)]).unique(maintain_order=True)

"""What each task's best heads lose in joint training; a run is the unit."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float

from mtl.probes.statistics.corrections import holm
from mtl.probes.statistics.resampling import student
from mtl.probes.statistics.spread_of_runs import difference, seed_effect
from mtl.probes.tables.label_scores import best_of_labels, skill_scores, weighted_mean

COMPARISONS = (("joint", "stl"), ("joint", "static"), ("pair", "stl"))
SCHEMA = pl.Schema(
    {"comparison": pl.String, "task": pl.String, "labels": pl.Int64, "seeds": pl.Int64}
    | dict.fromkeys(("loss", "low", "high", "p", "p_holm", "seed_p"), pl.Float64)
    | {"worse": pl.Int64, "pairs": pl.Int64}
    | dict.fromkeys(("paired_low", "paired_high", "paired_p"), pl.Float64)
)


def task_losses(heads: pl.DataFrame, level: float = 0.95) -> pl.DataFrame:
    """Per comparison and task the mean loss, as a share, positive if joint training is worse.

    In each run, the best head's value of every label is averaged over labels that count (`label_scores`),
    weighted by their items. Only labels that all runs of both regimes have are included. Labels of one run
    are not independent of each other, so the run is the unit. `low`, `high` and `p` are those of
    `difference`, whose spread is that of the runs of all regimes; `p_holm` is corrected over the tasks of a
    comparison; `seed_p` is that of `seed_effect`.

    Other columns pair runs by seed: `worse` of `pairs` seeds have a loss, `paired_low` to `paired_high` is
    Student's interval, and `paired_p` is the two-sided p by exchanging the signs of seeds, which cannot be
    below 2 / 2^n for n seeds. The encoder before training is the same for all seeds, so against it `low`,
    `high` and `p` are the paired ones. Null: no spread is known. `heads` as `skills` takes it.
    """
    values, rows = _best(heads), []
    for regime, than in COMPARISONS:
        of_comparison = [
            _row(of_task, regime, than, level) | {"comparison": f"{regime} against {than}", "task": task}
            for (task,), of_task in values.group_by("task", maintain_order=True)
            if {regime, than} <= set(of_task["regime"])
        ]
        of_comparison = [row for row in of_comparison if row["labels"]]
        corrected = holm(np.array([row["p"] for row in of_comparison], dtype=float))
        rows += [row | {"p_holm": float(p)} for row, p in zip(of_comparison, corrected, strict=True)]
    return pl.DataFrame(rows, schema=SCHEMA).fill_nan(None)


def _row(values: pl.DataFrame, regime: str, than: str, level: float) -> dict[str, Any]:
    """One task's row of one comparison; `labels` is 0 where the two have none in common."""
    compared = values.filter(pl.col("regime").is_in([regime, than]))
    runs = compared.select("regime", "seed").n_unique()
    per_label = compared.group_by("label", maintain_order=True).agg(pl.len())
    common = per_label.filter(pl.col("len") == runs)["label"]
    of_run = (
        values.filter(pl.col("label").is_in(common.implode()))
        .group_by("regime", "seed", maintain_order=True)
        .agg(weighted_mean(pl.col("value")).alias("value"), labels=pl.len())
        .filter(pl.col("labels") == len(common))
        .sort("seed")
    )
    scores = {
        str(name): dict(table.select("seed", "value").iter_rows())
        for (name,), table in of_run.group_by("regime", maintain_order=True)
    }
    if not len(common):
        return {"labels": 0}
    ours, theirs = scores[regime], scores[than]
    if than == "static":
        [before] = theirs.values()
        losses = before - np.array([*ours.values()])
    else:
        both = of_run.filter(regime=regime).join(of_run.filter(regime=than), on="seed", suffix="_than")
        losses = (both["value_than"] - both["value"]).to_numpy()
    low, high, p = paired(losses, level)
    found: dict[str, Any] = {
        "labels": len(common),
        "worse": int((losses > 1e-12).sum()),
        "pairs": len(losses),
    }
    found |= {"paired_low": low, "paired_high": high, "paired_p": p}
    if than == "static":
        return found | {"seeds": len(ours), "loss": losses.mean(), "low": low, "high": high, "p": p}
    of_all = {name: values for name, values in scores.items() if name != "static"}
    made = difference(of_all, {than: 1.0, regime: -1.0}, level)
    own = {"loss": made.value, "low": made.low, "high": made.high, "p": made.p}
    own["seed_p"] = seed_effect(of_all).p
    return found | own | {"seeds": min(len(ours), len(theirs))}


def paired(losses: Float[np.ndarray, " seed"], level: float) -> tuple[float, float, float]:
    """Student's interval of the mean, and the two-sided p by exchanging signs; NaN for a single seed."""
    seeds = len(losses)
    if seeds < 2:
        return float("nan"), float("nan"), float("nan")
    # All 2^n exchanges up to 12 seeds, else 4,096 at random, the observed one among them.
    if seeds <= 12:
        signs = np.array(list(itertools.product((1, -1), repeat=seeds)))
    else:
        signs = np.random.default_rng(0).choice((1, -1), (4096, seeds))
        signs[0] = 1
    drawn = np.abs(signs @ losses)
    p = float((drawn >= abs(losses.sum()) - 1e-12).mean())
    return *student(losses, level), p


def _best(heads: pl.DataFrame) -> pl.DataFrame:
    """Per regime, seed, task and label that counts the best head's value, the mean over runs of one seed."""
    return (
        best_of_labels(skill_scores(heads).filter("counted"), ("regime", "run", "seed"))
        .group_by("regime", "seed", "task", "label", maintain_order=True)
        .agg(pl.col("value").mean(), pl.col("count").max())
    )

"""What each task's best heads lose in joint training: paired over seeds, since a run is the unit."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
from jaxtyping import Float

from mtl.probes.statistics.resampling import student
from mtl.probes.tables.label_scores import best_of_labels, label_scores, weighted_mean

COMPARISONS = (("joint", "stl"), ("joint", "static"), ("pair", "stl"))
SCHEMA = pl.Schema(
    {"comparison": pl.String, "task": pl.String, "labels": pl.Int64, "seeds": pl.Int64, "worse": pl.Int64}
    | dict.fromkeys(("loss", "low", "high", "p"), pl.Float64)
)


def task_losses(heads: pl.DataFrame, level: float = 0.95) -> pl.DataFrame:
    """Per comparison and task the mean loss over seeds, as a share, positive where joint training is worse.

    In each run the best head's value of every label is averaged over labels that count (`label_scores`),
    weighted by their items; only labels that both runs of a seed have. Labels of one run are not independent
    of each other, so the seeds are what is counted: `worse` of `seeds` have a loss, `low` to `high` is
    Student's interval of the mean (it takes losses to be normal), `p` the two-sided chance by exchanging the
    signs of all seeds, which with n seeds cannot be below 2 / 2^n: with fewer than six no p reaches 0.05.
    Null with a single seed.
    The encoder before training is one for all seeds. `heads` as `skills` takes it.
    """
    values, lost = _best(heads), weighted_mean(pl.col("value_than") - pl.col("value"))
    rows = []
    for regime, than in COMPARISONS:
        ours, theirs = (values.filter(pl.col("regime") == name).drop("regime") for name in (regime, than))
        by = ["task", "label"] if than == "static" else ["task", "label", "seed"]
        theirs = theirs.drop("count") if than != "static" else theirs.drop("count", "seed")
        both = ours.join(theirs, on=by, suffix="_than")
        for (task,), of_task in both.group_by("task", maintain_order=True):
            losses = of_task.group_by("seed", maintain_order=True).agg(loss=lost).sort("seed")["loss"]
            low, high, p = paired(losses.to_numpy(), level)
            rows.append(
                {
                    "comparison": f"{regime} against {than}", "task": task,
                    "labels": of_task["label"].n_unique(), "seeds": len(losses),
                    "worse": int((losses > 1e-12).sum()), "loss": losses.mean(), "low": low, "high": high,
                    "p": p,
                }
            )  # fmt: skip
    return pl.DataFrame(rows, schema=SCHEMA).fill_nan(None)


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
        best_of_labels(label_scores(heads).filter("counted"), ("regime", "run", "seed"))
        .group_by("regime", "seed", "task", "label", maintain_order=True)
        .agg(pl.col("value").mean(), pl.col("count").max())
    )

"""The stem-cell hypothesis as numbers: do heads that more tasks claim lose more skill in joint training?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from probes.statistics.masks import Masks
from probes.statistics.resampling import bootstrap_within, interval, permutations_within
from probes.statistics.skill import absent_labels, label_values, skills
from probes.statistics.stratified_tests import mean_difference, permutation_chance, spearman
from probes.statistics.task_losses import label_tests

WITHIN = " within layers"
PRIMARY = f"Spearman of claims and loss{WITHIN}"
DIFFERENCE = f"loss of contested less that of other heads{WITHIN}"

Word = Literal["supported", "not supported", "too few runs to say"]
FEWEST_SEEDS = 3
"""With fewer runs of each kind nothing is said on the hypothesis."""


@dataclass(frozen=True)
class Verdict:
    """What the runs say on the hypothesis, and why, at what level of error."""

    word: Word
    reason: str
    level: float

    def __str__(self) -> str:
        return f"{self.word}: {self.reason}"


@dataclass(frozen=True)
class Competition:
    """All figures on the hypothesis."""

    heads: pl.DataFrame
    """layer, head, claims, demand, contested, static, stl, joint (mean skill), loss."""
    head_tests: pl.DataFrame
    """test, value, low, high, p."""
    labels: pl.DataFrame
    """task, label, count, and the best head's value in static, stl and joint."""
    label_tests: pl.DataFrame
    """comparison, labels, worse, better, equal, share, p."""
    verdict: Verdict
    notes: tuple[str, ...]


def compete(
    masks: Masks, heads: pl.DataFrame, level: float = 0.05, draws: int = 2000, seed: int = 0
) -> Competition:
    """Test the hypothesis on the masks of single tasks and on what heads can do (as `skills` takes it).

    The verdict rests on one test, fixed beforehand: within layers, Spearman's correlation between the number
    of tasks that claim a head and what it loses, one-sided, by permuting heads within their layers; `level`
    is the chance, at most, of calling the hypothesis supported when claims and losses have nothing to do with
    each other. Besides, contested heads must lose on average, not only gain less. Everything
    else is there to be read beside it.
    """
    skill = skills(heads)
    table = losses(claims(masks), skill)
    labels = label_values(heads)
    tests = head_tests(table, 1 - level, draws, np.random.default_rng(seed))
    return Competition(
        table,
        tests,
        labels,
        label_tests(labels),
        verdict(masks, heads, table, tests, level),
        absent_labels(labels),
    )


def claims(masks: Masks) -> pl.DataFrame:
    """Who wants each head: `claims` counts the tasks that have it open in at least half of their seeds,
    `demand` sums the tasks' mean gates, and a head is `contested` if at least two tasks claim it."""
    claimed, demand = masks.claimed().sum(0), masks.mean().sum(0)
    layer, head = (axis.ravel() for axis in np.indices(demand.shape))
    return pl.DataFrame(
        {
            "layer": layer.astype(np.int32),
            "head": head.astype(np.int32),
            "claims": claimed.ravel(),
            "demand": demand.ravel(),
            "contested": claimed.ravel() >= 2,
        }
    )


def losses(claimed: pl.DataFrame, skill: pl.DataFrame) -> pl.DataFrame:
    """Add each head's mean skill in static, STL and joint runs, and its loss from STL to joint.

    The mean is over the labels of a task weighted by their counts, then over tasks; only labels that both
    the STL and the joint runs have are in it. Raises `ValueError` if there are none.
    """
    by, cell = ["task", "label"], ["layer", "head"]
    both = [skill.filter(pl.col("regime") == regime).select(by).unique() for regime in ("stl", "joint")]
    common = skill.join(both[0], on=by, how="semi").join(both[1], on=by, how="semi")
    if common.is_empty():
        raise ValueError("no label that was probed both in single-task and in joint runs: probe both kinds")
    weighted = (pl.col("skill") * pl.col("count")).sum() / pl.col("count").sum()
    means = (
        common.group_by("regime", "task", *cell, maintain_order=True)
        .agg(skill=weighted)
        .group_by("regime", *cell, maintain_order=True)
        .agg(pl.col("skill").mean())
        .pivot("regime", index=cell, values="skill")
    )
    if "static" not in means.columns:
        means = means.with_columns(static=pl.lit(None, dtype=pl.Float64))
    table = claimed.join(means.select(*cell, "static", "stl", "joint"), on=cell, how="left").sort(cell)
    if table["stl"].null_count() or table["joint"].null_count() or means.height != table.height:
        raise ValueError("masks and probes are of encoders of different shapes: give runs of one encoder")
    return table.with_columns(loss=pl.col("stl") - pl.col("joint"))


def head_tests(table: pl.DataFrame, level: float, draws: int, rng: np.random.Generator) -> pl.DataFrame:
    """Spearman between claims (and demand) and loss, and the contested heads' mean loss minus the others'.

    Each over all heads and within layers. `p` is one-sided, by permutation; `low` to `high` is a bootstrap
    interval over heads, so it says nothing on other seeds. Null where a figure is not defined.
    """
    loss, contested = table["loss"].to_numpy(), table["contested"].to_numpy()
    layers = table["layer"].to_numpy().astype(np.int64)
    rows: list[dict[str, str | float]] = []
    for name, strata in (("", np.zeros_like(layers)), (WITHIN, layers)):
        orders = permutations_within(strata, draws, rng)
        for column in ("claims", "demand"):
            value, p = spearman(table[column].to_numpy().astype(np.float64), loss, strata, orders)
            rows.append({"test": f"Spearman of {column} and loss{name}", "value": value, "p": p})
        weights = mean_difference(loss, contested, strata)
        picks = bootstrap_within(2 * strata + contested, draws, rng)
        low, high = interval(loss[picks] @ weights, level)
        p = permutation_chance(loss, weights, orders)
        rows.append(
            {
                "test": f"loss of contested less that of other heads{name}",
                "value": float(loss @ weights), "low": low, "high": high, "p": p,
            }
        )  # fmt: skip
    schema = {"test": pl.String} | dict.fromkeys(("value", "low", "high", "p"), pl.Float64)
    return pl.DataFrame(rows, schema=schema).fill_nan(None)


def verdict(
    masks: Masks, heads: pl.DataFrame, table: pl.DataFrame, tests: pl.DataFrame, level: float
) -> Verdict:
    """Whether the runs support the hypothesis, by the one test that was fixed beforehand."""
    lacking = _lacking(masks, heads, table, level)
    if lacking:
        return Verdict("too few runs to say", lacking, level)
    test = tests.row(by_predicate=pl.col("test") == PRIMARY, named=True)
    apart = tests.row(by_predicate=pl.col("test") == DIFFERENCE, named=True)
    means = dict(table.group_by("contested").agg(pl.col("loss").mean()).iter_rows())
    more, lost = test["p"] <= level, means[True] > 0
    said = "heads that more tasks claim do not lose reliably more of their skill"
    if more:
        said = "heads that more tasks claim " + (
            "lose more of their skill" if lost else "gain less skill, but contested ones lose none on average"
        )
    reason = (
        f"{said} from single-task to joint training (within layers Spearman {test['value']:+.2f}, one-sided "
        f"permutation p {test['p']:.3g}, level {level:g}; contested heads lose {means[True]:+.4f}"
    )
    if False in means:
        reason += f", others {means[False]:+.4f}"
    if apart["value"] is not None:
        reason += (
            f", difference within layers {apart['value']:+.4f}, {1 - level:.0%} interval {apart['low']:+.4f} "
            f"to {apart['high']:+.4f}"
        )
    return Verdict("supported" if more and lost else "not supported", reason + ")", level)


def _lacking(masks: Masks, heads: pl.DataFrame, table: pl.DataFrame, level: float) -> str:
    """What is missing for a verdict, in words; empty if nothing is."""
    if len(masks.tasks) < 2:
        return f"masks of {len(masks.tasks)} task, and competition needs two"
    runs = heads.group_by("regime", "task").agg(pl.col("seed").n_unique())
    seeds_of = {(regime, task): seeds for regime, task, seeds in runs.iter_rows()}
    least = {
        regime: min(seeds_of.get((regime, task), 0) for task in masks.tasks) for regime in ("stl", "joint")
    }
    seeds = {
        "masks": len(masks.seeds),
        "probed single-task runs": least["stl"],
        "probed joint runs": least["joint"],
    }
    few = [
        f"{name} of {count} seed{'s' * (count != 1)}" for name, count in seeds.items() if count < FEWEST_SEEDS
    ]
    if few:
        return f"{', '.join(few)}; at least {FEWEST_SEEDS} of each task are needed"
    if not table["contested"].any():
        return "no head is claimed by two tasks"
    if table["loss"].n_unique() == 1:
        return "all heads lose the same"
    # Orders of the claims within layers that differ: the smallest p there can be is one over their number.
    orders = 0.0
    for (_,), layer in table.group_by("layer"):
        orders += math.lgamma(layer.height + 1) - sum(
            math.lgamma(n + 1) for n in layer["claims"].value_counts()["count"]
        )
    if orders < -math.log(level):
        return "within layers nearly all heads are claimed by equally many tasks: little to compare"
    return ""

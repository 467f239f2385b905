"""Claims and losses: do heads that more tasks claim lose more skill in joint training?

This is a description. That the two go together does not say that tasks compete: they also go together if
every task loses on the heads that it claims itself, whoever else claims them, or if joint training keeps half
of every gain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
import polars as pl

from mtl.probes.signed_words import SignedWords
from mtl.probes.sites import KEYS, Site, sites_of
from mtl.probes.statistics.masks import Masks
from mtl.probes.statistics.resampling import permutations_within
from mtl.probes.statistics.skill import label_values, skills
from mtl.probes.statistics.stratified_tests import (
    inverted_interval,
    mean_difference,
    permutation_chance,
    spearman,
)
from mtl.probes.stem_cell.statistics.task_losses import task_losses
from mtl.probes.tables.heads_table import runs_of
from mtl.probes.tables.label_scores import FEWEST_ITEMS, weighted_mean

WITHIN = " within layers"
PRIMARY = f"Spearman of claims and loss{WITHIN}"
_DIFFERENCE = "loss of contested less that of other heads"
DIFFERENCE = f"{_DIFFERENCE}{WITHIN}"

TOGETHER: Final = "claims and loss go together"
APART: Final = "claims and loss are not seen to go together"
TOO_FEW: Final = "too few runs to say"
Word = Literal[
    "claims and loss go together", "claims and loss are not seen to go together", "too few runs to say"
]
FEWEST_SEEDS = 3
"""Seeds of masks, of STL runs and of joint runs that a verdict needs."""


@dataclass(frozen=True)
class Verdict:
    """Whether claims and losses go together, with the reason and the level of the test. It names no cause."""

    word: Word
    reason: str
    level: float

    def __str__(self) -> str:
        return f"{self.word}: {self.reason}"


@dataclass(frozen=True)
class Competition:
    """All numbers on claims and losses; a loss is a share, positive where joint training has less skill."""

    heads: pl.DataFrame
    """attention, layer, head, claims, demand, contested; static, stl and joint (mean skill); loss."""
    head_tests: pl.DataFrame
    """test, value, low, high, p, sides."""
    labels: pl.DataFrame
    """task, label, count, and the best head's value in static, stl and joint."""
    task_losses: pl.DataFrame
    """The columns of `task_losses`."""
    verdict: Verdict


def compete(
    masks: Masks, heads: pl.DataFrame, level: float = 0.05, draws: int = 2000, seed: int = 0
) -> Competition:
    """Compare the masks of single tasks with what heads lose (`heads` as `skills` takes it).

    The word rests on one test, fixed beforehand: Spearman's correlation within layers between the number of
    tasks that claim a head and what it loses, one-sided, by permuting heads within their layers. `level` is
    the greatest chance of the word "go together" if claims and losses have nothing to do with each other.
    Everything else is there to be read beside it. If a target forced heads, the reason counts them and gives
    the word by learned claims alone. Raises `ValueError` if no label was probed both in STL and in joint
    runs, or if masks and probes have different shapes.
    """
    skill = skills(heads)
    table = losses(claims(masks), skill)
    tests = head_tests(table, 1 - level, draws, np.random.default_rng(seed))
    found = verdict(masks, heads, table, tests, level)
    if masks.forced().any():
        alone = masks.learned_alone()
        of_learned = losses(claims(alone), skill)
        tests_of_learned = head_tests(of_learned, 1 - level, draws, np.random.default_rng(seed))
        other = verdict(alone, heads, of_learned, tests_of_learned, level)
        beside = beside_learned((found.word, found.reason), (other.word, other.reason))
        found = replace(found, reason=f"{masks.forced_in_words()}{found.reason}{beside}")
    return Competition(table, tests, label_values(heads), task_losses(heads), found)


def beside_learned(of_all: tuple[str, str], of_learned: tuple[str, str]) -> str:
    """What a statement adds on the claims that no target forced; both statements are word and reason."""
    if of_all == of_learned:
        return "; by learned claims alone, the same"
    word, reason = of_learned
    agree = "the same word" if of_all[0] == word else f"another word, {word}"
    return f"; by learned claims alone, {agree}: {reason}"


def claims(masks: Masks) -> pl.DataFrame:
    """Who wants each head: attention, layer, head, claims, demand, contested.

    `claims` counts the tasks that keep the head open in more than half of their seeds, `demand` sums the
    tasks' mean gates, and a head is `contested` if at least two tasks claim it.
    """
    claimed, demand = masks.claimed().sum(0), masks.mean().sum(0)
    site, head = (axis.ravel() for axis in np.indices(demand.shape))
    return pl.DataFrame(
        {
            "attention": [masks.sites[place].attention for place in site],
            "layer": np.array([masks.sites[place].layer for place in site], dtype=np.int32),
            "head": head.astype(np.int32),
            "claims": claimed.ravel(),
            "demand": demand.ravel(),
            "contested": claimed.ravel() >= 2,
        }
    )


def losses(claimed: pl.DataFrame, skill: pl.DataFrame) -> pl.DataFrame:
    """Add each head's mean skill in static, STL and joint runs, and its loss from STL to joint.

    The mean is over the labels of a task that count (`label_scores`), weighted by their items, then over
    tasks. Only labels that both the STL and the joint runs have are included. Raises `ValueError` if there
    are none, or if the heads of `claimed` and `skill` differ.
    """
    by, cell = ["task", "label"], list(KEYS)
    skill = skill.filter("counted")
    both = [skill.filter(pl.col("regime") == regime).select(by).unique() for regime in ("stl", "joint")]
    common = skill.join(both[0], on=by, how="semi").join(both[1], on=by, how="semi")
    if common.is_empty():
        raise ValueError(
            f"no label with {FEWEST_ITEMS} items was probed both in single-task and in joint runs: "
            "probe both kinds, on more sentences"
        )
    means = (
        common.group_by("regime", "task", *cell, maintain_order=True)
        .agg(skill=weighted_mean("skill"))
        .group_by("regime", *cell, maintain_order=True)
        .agg(pl.col("skill").mean())
        .pivot("regime", index=cell, values="skill")
    )
    if "static" not in means.columns:
        means = means.with_columns(static=pl.lit(None, dtype=pl.Float64))
    table = claimed.join(
        means.select(*cell, "static", "stl", "joint"), on=cell, how="left", maintain_order="left"
    )
    if table["stl"].null_count() or table["joint"].null_count() or means.height != table.height:
        raise ValueError("masks and probes are of encoders of different shapes: use runs of one encoder")
    return table.with_columns(loss=pl.col("stl") - pl.col("joint"))


def head_tests(table: pl.DataFrame, level: float, draws: int, rng: np.random.Generator) -> pl.DataFrame:
    """Spearman's correlation of claims and of demand with loss, and how much more contested heads lose.

    Each is given over all heads, and within layers of one kind of attention. `p` is from permuting heads,
    one-sided (more claims, more loss) for correlations and two-sided for differences (`sides`). `low` to
    `high` is the interval of all differences that the two-sided test accepts at `level` (such as 0.95); it is
    about these heads and says nothing about other seeds. Null: not defined, or too few orders of the heads
    for an interval of this level.
    """
    loss, contested = table["loss"].to_numpy(), table["contested"].to_numpy()
    place = {site: number for number, site in enumerate(sites_of(table))}
    layers = np.array([place[Site(*site)] for site in table.select("attention", "layer").iter_rows()])
    rows: list[dict[str, str | float | int]] = []
    for name, strata in (("", np.zeros_like(layers)), (WITHIN, layers)):
        orders = permutations_within(strata, draws, rng)
        for column in ("claims", "demand"):
            value, p = spearman(table[column].to_numpy().astype(np.float64), loss, strata, orders)
            rows.append({"test": f"Spearman of {column} and loss{name}", "value": value, "p": p, "sides": 1})
        weights = mean_difference(loss, contested, strata)
        low, high = inverted_interval(loss, contested, weights, orders, level)
        p = permutation_chance(loss, weights, orders)
        rows.append(
            {
                "test": f"{_DIFFERENCE}{name}",
                "value": float(loss @ weights), "low": low, "high": high, "p": p, "sides": 2,
            }
        )  # fmt: skip
    schema = {"test": pl.String} | dict.fromkeys(("value", "low", "high", "p"), pl.Float64)
    table = pl.DataFrame(rows, schema=schema | {"sides": pl.Int64}).fill_nan(None)
    ends = [pl.when(pl.col(end).is_finite()).then(pl.col(end)).alias(end) for end in ("low", "high")]
    return table.with_columns(ends)


def verdict(
    masks: Masks, heads: pl.DataFrame, table: pl.DataFrame, tests: pl.DataFrame, level: float
) -> Verdict:
    """Whether claims and losses go together, by the one test that was fixed beforehand; losses in points."""
    lacking = _lacking(masks, heads, table, level)
    if lacking:
        return Verdict(TOO_FEW, lacking, level)
    test = tests.row(by_predicate=pl.col("test") == PRIMARY, named=True)
    apart = tests.row(by_predicate=pl.col("test") == DIFFERENCE, named=True)
    means = dict(table.group_by("contested").agg(pl.col("loss").mean()).iter_rows())
    together, lost = test["p"] <= level, means[True] > 0
    finding = "heads that more tasks claim do not lose reliably more of their skill"
    if together:
        finding = "heads that more tasks claim " + (
            "lose more of their skill" if lost else "gain less skill; contested ones lose none on average"
        )
    reason = (
        f"{finding} from single-task to joint training (Spearman within layers {test['value']:+.2f}, "
        f"one-sided permutation p {test['p']:.3g}, level {level:g}; "
        f"contested heads: {LOST.of(means[True])}"
    )
    if False in means:
        reason += f", others: {LOST.of(means[False])}"
    if apart["value"] is not None:
        reason += f", within layers contested heads lose {MORE.of(apart['value'])} than others"
    if apart["value"] is not None and apart["low"] is not None:
        reason += f", {1 - level:.0%} interval {MORE.interval(apart['low'], apart['high'])}"
    return Verdict(TOGETHER if together else APART, reason + ")", level)


LOST = SignedWords("lost", "gained", "points", 2, 100)
MORE = SignedWords("more", "less", "points", 2, 100)
"""The wording of a loss of skill, and of the difference between two losses."""


def _lacking(masks: Masks, heads: pl.DataFrame, table: pl.DataFrame, level: float) -> str:
    """What is missing for a verdict; empty if nothing is."""
    if len(masks.tasks) < 2:
        return f"masks of {len(masks.tasks)} task, and competition needs two"
    runs = runs_of(heads).group_by("regime", "task").agg(pl.col("seed").n_unique())
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
    # The log of the number of different orders of claims within layers; the smallest p is one over it.
    log_orders = 0.0
    for _, layer in table.group_by("attention", "layer"):
        log_orders += math.lgamma(layer.height + 1) - sum(
            math.lgamma(n + 1) for n in layer["claims"].value_counts()["count"]
        )
    if log_orders < -math.log(level):
        return "within layers, nearly all heads are claimed by the same number of tasks: little to compare"
    return ""

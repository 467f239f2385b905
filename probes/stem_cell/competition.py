"""Competition: whether claims and losses go together, and whether tasks pull contested heads apart.

This is a description; the test of claims is in `contest`. That claims and losses go together does not say
that tasks compete: they also go together if every task loses on the heads that it claims itself, whoever else
claims them, or if joint training keeps half of every gain. The cosines of two tasks' gradients, by who claims
the head, say whether the tasks pull it apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
import polars as pl
from jaxtyping import Float, Int

from mtl.probes.sites import KEYS, Site, sites_of
from mtl.probes.statistics.compared_runs import deciding_intervals, difference, seed_effect
from mtl.probes.statistics.head_values import label_values, skills
from mtl.probes.statistics.masks import FEWEST_SEEDS, Masks
from mtl.probes.statistics.significance import (
    Finding,
    accepted_interval,
    holm,
    inverted_interval,
    mean_difference,
    paired,
    permutation_chance,
    permutations_within,
    spearman,
)
from mtl.probes.stem_cell.wording import SignedWords, beside_learned
from mtl.probes.tables.heads_table import FEWEST_ITEMS, best_of_labels, runs_of, skill_scores, weighted_mean
from mtl.probes.tables.table_files import CHANGE_OF_ROW, ColumnUnit, by_catalogue, types_of

CLAIMS_UNITS = (
    ColumnUnit.TEXT.of("claims")
    | ColumnUnit.COUNT.of("tasks", "seeds", "contested")
    | ColumnUnit.NUMBER.of("value")
    | ColumnUnit.P.of("p", "p_holm")
    | ColumnUnit.CHANGE.of("difference")
    | ColumnUnit.NUMBER.of("learned")
    | ColumnUnit.TEXT.of("lacking")
)
CLAIMS_SCHEMA = pl.Schema(types_of(CLAIMS_UNITS))


def by_claims(
    sets: Mapping[str, Masks], heads: pl.DataFrame, level: float = 0.05, draws: int = 2000, seed: int = 0
) -> pl.DataFrame:
    """The one test of `compete` by the claims of each of several setups, in their order.

    `value` is Spearman's correlation of claims and loss within layers, `p` is one-sided. `p_holm` is p after
    Holm over all setups that have one: at most the chance that any of them is as small if claims and losses
    have nothing to do with each other in any setup. `difference` is the loss of contested heads less that of
    others within layers, as a share. `learned` is `value` by the claims that no target forced; null if none
    is forced. `lacking` says why these claims give no verdict. Raises `ValueError` as `compete` does.
    """
    skill = skills(heads)
    rows = []
    for name, masks in sets.items():
        table = losses(claims(masks), skill)
        tests = head_tests(table, 1 - level, draws, np.random.default_rng(seed))
        test = tests.row(by_predicate=pl.col("test") == PRIMARY, named=True)
        apart = tests.row(by_predicate=pl.col("test") == DIFFERENCE, named=True)
        result = together_or_apart(masks, heads, table, tests, level)
        rows.append(
            {
                "claims": name, "tasks": len(masks.tasks), "seeds": len(masks.seeds),
                "contested": int(table["contested"].sum()), "value": test["value"], "p": test["p"],
                "difference": apart["value"], "learned": _of_learned(masks, skill, level, draws, seed),
                "lacking": result.reason if result.word == TOO_FEW else "",
            }
        )  # fmt: skip
    return _corrected(
        pl.DataFrame(rows, schema={key: kind for key, kind in CLAIMS_SCHEMA.items() if key != "p_holm"})
    )


def _of_learned(masks: Masks, skill: pl.DataFrame, level: float, draws: int, seed: int) -> float | None:
    """Spearman's correlation by learned claims alone; `None` if no head was forced."""
    if not masks.forced().any():
        return None
    table = losses(claims(masks.learned_alone()), skill)
    tests = head_tests(table, 1 - level, draws, np.random.default_rng(seed))
    value = tests.row(by_predicate=pl.col("test") == PRIMARY, named=True)["value"]
    return None if value is None else float(value)


def _corrected(table: pl.DataFrame) -> pl.DataFrame:
    """The table with `p_holm`; rows without a p do not count as tests."""
    tested = table["p"].is_not_null().to_numpy()
    corrected = np.full(table.height, np.nan)
    corrected[tested] = holm(table["p"].drop_nulls().to_numpy())
    return table.with_columns(p_holm=pl.Series(corrected, dtype=pl.Float64).fill_nan(None)).select(
        *CLAIMS_SCHEMA
    )


COMPARISONS = (("joint", "stl"), ("joint", "pretrained"), ("pair", "stl"))
LOSSES_UNITS = (
    ColumnUnit.TEXT.of("comparison", "task")
    | ColumnUnit.COUNT.of("labels", "seeds")
    | ColumnUnit.CHANGE.of("loss", "low", "high")
    | ColumnUnit.P.of("p", "p_holm")
    | ColumnUnit.TEXT.of("p_by")
    | ColumnUnit.P.of("seed_p")
    | ColumnUnit.COUNT.of("worse", "pairs")
    | ColumnUnit.CHANGE.of("paired_low", "paired_high")
    | ColumnUnit.P.of("paired_p")
)
LOSSES_SCHEMA = pl.Schema(types_of(LOSSES_UNITS))
SPREAD, SIGNS = "spread of runs", "signs of seeds"
"""What `p` of a row comes from: Student's t with the spread of the runs of all regimes, or the exchange of
the signs of seeds."""


def task_losses(heads: pl.DataFrame, level: float = 0.95) -> pl.DataFrame:
    """Per comparison and task the mean loss, as a share, positive if joint training is worse.

    In each run, the best head's value of every label is averaged over labels that count (`label_scores`),
    weighted by their items. Only labels that all runs of both regimes have are included. Labels of one run
    are not independent of each other, so the run is the unit. `p` is that of `difference`, whose spread is
    that of the runs of all regimes; `low`, `high` and `p_holm` are those of `deciding_intervals` over the
    tasks of a comparison; `seed_p` is that of `seed_effect`.

    Other columns pair runs by seed: `worse` of `pairs` seeds have a loss, `paired_low` to `paired_high` is
    Student's interval, and `paired_p` is the two-sided p by exchanging the signs of seeds, which cannot be
    below 2 / 2^n for n seeds. The encoder before training is the same for all seeds, so against it `low`,
    `high` and `p` are the paired ones (`p_by`). Null: no spread is known. `heads` as `skills` takes it.
    """
    values, rows = _best(heads), []
    for regime, than in COMPARISONS:
        of_comparison = [
            _row(of_task, regime, than, level) | {"comparison": f"{regime} against {than}", "task": task}
            for (task,), of_task in by_catalogue(values).group_by("task", maintain_order=True)
            if {regime, than} <= set(of_task["regime"])
        ]
        of_comparison = [row for row in of_comparison if row["labels"]]
        made = [row.pop("made", None) for row in of_comparison]
        known = [found for found in made if found is not None]
        if len(known) == len(made):
            for row, ((low, high), p) in zip(of_comparison, deciding_intervals(known, level), strict=True):
                rows.append(row | {"low": low, "high": high, "p_holm": p})
            continue
        corrected = holm(np.array([row["p"] for row in of_comparison], dtype=float))
        rows += [row | {"p_holm": float(p)} for row, p in zip(of_comparison, corrected, strict=True)]
    return pl.DataFrame(rows, schema=LOSSES_SCHEMA).fill_nan(None)


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
    if than == "pretrained":
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
    if than == "pretrained":
        signs = {"loss": losses.mean(), "low": low, "high": high, "p": p, "p_by": SIGNS}
        return found | signs | {"seeds": len(ours)}
    of_all = {name: values for name, values in scores.items() if name != "pretrained"}
    made = difference(of_all, {than: 1.0, regime: -1.0}, level)
    own: dict[str, Any] = {"loss": made.value, "p": made.p, "p_by": SPREAD, "made": made}
    own["seed_p"] = seed_effect(of_all).p
    return found | own | {"seeds": min(len(ours), len(theirs))}


def _best(heads: pl.DataFrame) -> pl.DataFrame:
    """Per regime, seed, task and label that counts the best head's value, the mean over runs of one seed."""
    return (
        best_of_labels(skill_scores(heads).filter("counted"), ("regime", "run", "seed"))
        .group_by("regime", "seed", "task", "label", maintain_order=True)
        .agg(pl.col("value").mean(), pl.col("count").max())
    )


WITHIN = " within layers"
PRIMARY = f"Spearman of claims and loss{WITHIN}"
_DIFFERENCE = "how much more contested heads lose than others"
DIFFERENCE = f"{_DIFFERENCE}{WITHIN}"

HEAD_UNITS = (
    ColumnUnit.NUMBER.of("demand")
    | ColumnUnit.SHARE.of("pretrained", "stl", "joint")
    | ColumnUnit.CHANGE.of("loss")
)
TEST_UNITS = (
    ColumnUnit.TEXT.of("test")
    | ColumnUnit.OF_ROW.of("value", "low", "high")
    | ColumnUnit.P.of("p")
    | ColumnUnit.COUNT.of("sides")
    | ColumnUnit.TEXT.of("unit")
)
TOGETHER: Final = "claims and loss go together"
APART: Final = "no sign that claims and loss go together"
TOO_FEW: Final = "too few runs to say"
Word = Literal[
    "claims and loss go together", "no sign that claims and loss go together", "too few runs to say"
]


@dataclass(frozen=True)
class Competition:
    """All numbers on claims and losses; a loss is a share, positive where joint training has less skill."""

    heads: pl.DataFrame
    """attention, layer, head, claims, demand, contested; pretrained, stl and joint (mean skill); loss."""
    head_tests: pl.DataFrame
    """test, value, low, high, p, sides, unit (of value, low and high)."""
    labels: pl.DataFrame
    """task, label, count, and the best head's value in pretrained, stl and joint."""
    task_losses: pl.DataFrame
    """The columns of `task_losses`."""
    verdict: Finding


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
    found = together_or_apart(masks, heads, table, tests, level)
    if masks.forced().any():
        alone = masks.learned_alone()
        of_learned = losses(claims(alone), skill)
        tests_of_learned = head_tests(of_learned, 1 - level, draws, np.random.default_rng(seed))
        other = together_or_apart(alone, heads, of_learned, tests_of_learned, level)
        beside = beside_learned((found.word, found.reason), (other.word, other.reason))
        found = replace(found, reason=f"{masks.forced_in_words()}{found.reason}{beside}")
    return Competition(table, tests, label_values(heads), task_losses(heads), found)


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
    """Add each head's mean skill in pretrained, STL and joint runs, and its loss from STL to joint.

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
    if "pretrained" not in means.columns:
        means = means.with_columns(pretrained=pl.lit(None, dtype=pl.Float64))
    table = claimed.join(
        means.select(*cell, "pretrained", "stl", "joint"), on=cell, how="left", maintain_order="left"
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
            rows.append(
                {
                    "test": f"Spearman of {column} and loss{name}",
                    "value": value,
                    "p": p,
                    "sides": 1,
                    "unit": "correlation",
                }
            )
        weights = mean_difference(loss, contested, strata)
        low, high = inverted_interval(loss, contested, weights, orders, level)
        p = permutation_chance(loss, weights, orders)
        rows.append(
            {
                "test": f"{_DIFFERENCE}{name}",
                "value": float(loss @ weights), "low": low, "high": high, "p": p, "sides": 2,
                "unit": CHANGE_OF_ROW,
            }
        )  # fmt: skip
    table = pl.DataFrame(rows, schema=types_of(TEST_UNITS)).fill_nan(None)
    ends = [pl.when(pl.col(end).is_finite()).then(pl.col(end)).alias(end) for end in ("low", "high")]
    return table.with_columns(ends)


def together_or_apart(
    masks: Masks, heads: pl.DataFrame, table: pl.DataFrame, tests: pl.DataFrame, level: float
) -> Finding:
    """Whether claims and losses go together, by the one test that was fixed beforehand; losses in points."""
    lacking = _lacking(masks, heads, table, level)
    if lacking:
        return Finding(TOO_FEW, lacking, tests)
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
    return Finding(TOGETHER if together else APART, reason + ")", tests)


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


CLASSES = ("neither", "one", "both")
CONFLICT_UNITS = ColumnUnit.NUMBER.of("cosine")


@dataclass(frozen=True)
class ConflictByClaims:
    """Mean cosines, and the difference between heads that both tasks claim and heads that one claims."""

    heads: pl.DataFrame
    """pair, attention, layer, head, claims (one of `CLASSES`), cosine (mean over seeds), seeds."""
    difference: float
    """Cosine at heads that both claim less that at heads that one claims, within pairs and layers."""
    low: float
    high: float
    p: float
    """One-sided: of a difference as low."""


def of_pairs(cosines: pl.DataFrame) -> pl.DataFrame:
    """The cosines of two different tasks."""
    return cosines.filter(pl.col("first") != pl.col("second"))


def of_twins(cosines: pl.DataFrame) -> pl.DataFrame:
    """The cosines of two decoders for one task."""
    return cosines.filter(pl.col("first") == pl.col("second"))


def conflict_by_claims(
    cosines: pl.DataFrame, claims: pl.DataFrame, level: float = 0.05, draws: int = 4999, seed: int = 0
) -> ConflictByClaims:
    """Compare, within each pair and layer, heads that both tasks claim with heads that one of them claims.

    `cosines`: first, second, seed, attention, layer, head, cosine. `claims`: task, attention, layer, head,
    claimed. Seeds are averaged first. p and interval come from permuting heads within their layer, in one
    order for all pairs, so that a head whose cosines are high in all pairs counts once. Before that, the
    difference between heads that some task claims and heads that neither claims is taken out of the cosines.
    Read the result beside the mean of twins, the cosine of two decoders for one task. `level` is the error of
    both sides of the interval together. All numbers are NaN if no layer of a pair has heads of both classes.
    Raises `ValueError` if no pair has claims, or if pairs have cosines of different heads.
    """
    of = claims.select("task", *KEYS, "claimed")
    joined = (
        cosines.group_by("first", "second", *KEYS, maintain_order=True)
        .agg(pl.col("cosine").mean(), seeds=pl.col("seed").n_unique())
        .join(of.rename({"task": "first", "claimed": "one"}), on=["first", *KEYS])
        .join(of.rename({"task": "second", "claimed": "other"}), on=["second", *KEYS])
    )
    if joined.is_empty():
        raise ValueError("no pair with recorded gradients whose tasks both have claims")
    number = pl.col("one").cast(pl.Int64) + pl.col("other").cast(pl.Int64)
    heads = joined.select(
        pl.format("{}+{}", "first", "second").alias("pair"), *KEYS,
        number.replace_strict(dict(enumerate(CLASSES)), return_dtype=pl.String).alias("claims"),
        "cosine", "seeds",
    )  # fmt: skip
    cells = heads.select(KEYS).unique().sort(KEYS)
    pairs = [of_pair.sort(KEYS) for of_pair in heads.partition_by("pair", maintain_order=True)]
    if any(not of_pair.select(KEYS).equals(cells) for of_pair in pairs):
        raise ValueError("pairs have cosines of different heads: use pairs of one encoder, measured alike")
    values = np.stack([of_pair["cosine"].to_numpy() for of_pair in pairs])
    claimed = np.stack([(of_pair["claims"] != CLASSES[0]).to_numpy() for of_pair in pairs])
    both = np.stack([(of_pair["claims"] == CLASSES[2]).to_numpy() for of_pair in pairs])
    layers = cells.select(pl.struct("attention", "layer").rank("dense").cast(pl.Int64)).to_series().to_numpy()
    strata = layers + (layers.max() + 1) * np.arange(len(pairs))[:, None]
    weights = np.zeros(values.shape)
    weights[claimed] = mean_difference(values[claimed], both[claimed], strata[claimed])
    if np.isnan(weights).any():
        nan = float("nan")
        return ConflictByClaims(heads, nan, nan, nan, nan)
    groups = 2 * strata + claimed
    rest, shift = _centred(values, groups), _centred(both.astype(np.float64), groups)
    orders = permutations_within(layers, draws, np.random.default_rng(seed))
    observed = float((values * weights).sum())
    drawn, moved = np.zeros(draws), np.zeros(draws)
    for weight, of_pair, of_shift in zip(weights, rest, shift, strict=True):
        drawn += of_pair[orders] @ weight
        moved += of_shift[orders] @ weight
    p = float((1 + (drawn <= observed + 1e-12).sum()) / (1 + draws))
    low, high = accepted_interval(observed - drawn, 1 - moved, 1.0, level)
    return ConflictByClaims(heads, observed, low, high, p)


def _centred(
    values: Float[np.ndarray, "pair head"], groups: Int[np.ndarray, "pair head"]
) -> Float[np.ndarray, "pair head"]:
    """Values less the mean of their group, scaled up for the variance that taking out the mean removes."""
    _, place = np.unique(groups, return_inverse=True)
    place = place.ravel()
    sums, counts = np.bincount(place, values.ravel()), np.bincount(place)
    kept = np.sqrt(counts / np.maximum(counts - 1, 1))
    return ((values.ravel() - (sums / counts)[place]) * kept[place]).reshape(values.shape)

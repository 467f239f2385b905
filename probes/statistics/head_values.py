"""All measures of all heads in one table: how far two tables agree, and how well they predict ablation.

Skills are scores above chance. Roles of heads, and which survive pruning, are those of Voita et al. 2019.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import polars as pl
from jaxtyping import Bool, Float, Int

from mtl.probes.measures.groups import BY_NAME, GROUPS, MEASURES, SKILLS
from mtl.probes.sites import KEYS, attention_order, sites_of
from mtl.probes.statistics.significance import (
    DRAWS,
    Estimate,
    Strata,
    Values,
    Weights,
    centred,
    centred_ranks,
    correlation,
    estimate,
    head_weights,
)
from mtl.probes.tables.heads_table import (
    SKILL,
    best_of_labels,
    computed_once,
    head_scores,
    in_texts,
    label_scores,
    skill_scores,
)
from mtl.probes.tables.table_files import ColumnUnit, by_catalogue, types_of

ABLATION = "ablation"
SIGNIFICANT = 0.05
"""The false discovery rate at which a head's ablation counts as significant."""
PREDICTORS = {
    **{measure.name: measure.predictor for measure in MEASURES if measure.predictor},
    "skill": "probe skill",
    "log_alpha": "log alpha of the mask",
}
"""The measures that may predict the loss by ablation, and how figures print them; `log_alpha` and `skill` are
not in the table of measures."""
OF_WORTH = {
    name: [measure.name for measure in group.measures if measure.name == ABLATION or measure.predictor]
    for name, group in GROUPS.items()
    if name != "probes"
}
"""For each group, the measures that say what a head is worth to a task."""
SYNTACTIC = "syntactic"
SIGNED = (*(measure.name for measure in MEASURES if measure.signed), "log_alpha")
"""Measures drawn in two colours, above and below zero."""
USED = tuple(
    dict.fromkeys(
        name
        for measure in (ABLATION, *PREDICTORS)
        for name in (measure, f"{measure}_q", getattr(BY_NAME.get(measure), "chance", None))
        if name
    )
) + tuple(name for pair in SKILLS.items() for name in pair)
"""The measures whose rows of heads.parquet are used."""
COLUMNS = ("setup", "run", "seed", "task", "measure", *KEYS, "value", "q")


def head_values(heads: pl.DataFrame) -> pl.DataFrame:
    """One value per run, task, measure and head, with the columns `COLUMNS`.

    `heads` has the columns of heads.parquet, and `setup`, `run`, `seed`. Values are those of `head_scores`;
    `skill` is what the task's probe scores above chance. Measures that belong to no task, such as
    `syntactic`, count for each task of the run. `q` is that of a measure that was tested, else null.
    """
    there = set(heads["measure"].unique())
    names = [
        name for name in (ABLATION, *PREDICTORS) if there.intersection(SKILLS if name == SKILL else [name])
    ]
    key = ["setup", "run", "seed", "task", *KEYS]
    per_head = pl.concat(
        [head_scores(heads, name).select(*key, "value", measure=pl.lit(name)) for name in names or [ABLATION]]
    ).with_columns(task=pl.when(pl.col("measure") == SYNTACTIC).then(pl.lit("")).otherwise("task"))
    # If several tasks have arcs, a head's role is what it does best for any of them.
    per_head = per_head.group_by(*key, "measure", maintain_order=True).agg(pl.col("value").max())
    tested = [f"{name}_q" for name in names if f"{name}_q" in getattr(BY_NAME.get(name), "names", ())]
    q = (
        in_texts(heads.filter(pl.col("measure").is_in(tested)).drop_nulls("head"))
        .group_by(*key, "label", "measure", maintain_order=True)
        .last()
        .select(
            "run", "task", *KEYS, measure=pl.col("measure").str.strip_suffix("_q"), q=pl.col("value")
        )
    )  # fmt: skip
    joined = per_head.join(q, on=["run", "task", "measure", *KEYS], how="left", maintain_order="left")
    return _for_each_task(joined).select(COLUMNS)


def _for_each_task(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows, with those of no task repeated for every task of their run that has rows of its own."""
    of_task, of_none = rows.filter(pl.col("task") != ""), rows.filter(pl.col("task") == "")
    tasks = of_task.select("run", "task").unique(maintain_order=True)
    spread = of_none.drop("task").join(tasks, on="run", how="inner", maintain_order="left_right")
    return pl.concat([of_task, spread.select(of_task.columns)])


def tables_of(
    values: pl.DataFrame, by: Sequence[str]
) -> tuple[dict[tuple[str, ...], Float[np.ndarray, " head"]], Int[np.ndarray, " head"]]:
    """For each combination of values of the columns `by`, a vector over all heads of the table; and strata.

    The stratum of a head is the number of its site. All vectors have the same order of heads, and NaN where
    there is no value.
    """
    places = values.select(KEYS).unique(maintain_order=True).sort(KEYS).with_row_index("place")
    strata = (
        places.select(pl.struct("attention", "layer").rank("dense").cast(pl.Int64)).to_series().to_numpy()
    )
    vectors: dict[tuple[str, ...], Float[np.ndarray, " head"]] = {}
    placed = values.join(places, on=KEYS, how="left", maintain_order="left")
    for *key, heads, of_heads in placed.group_by(by, maintain_order=True).agg("place", "value").iter_rows():
        vector = vectors[tuple(map(str, key))] = np.full(places.height, np.nan)
        vector[heads] = np.array(of_heads, dtype=np.float64)
    return vectors, strata


def head_means(values: pl.DataFrame, measure: str) -> pl.DataFrame:
    """A measure's mean over the runs of each task and setup, per head.

    Columns: task, setup, attention, layer, head, value, runs, significant (whether `q` is at most
    `SIGNIFICANT` in more than half of the runs; null for a measure that was not tested).
    """
    tested = pl.col("q").is_not_null()
    significant = (pl.col("q") <= SIGNIFICANT).sum() > pl.len() / 2
    return (
        values.filter(pl.col("measure") == measure)
        .group_by("task", "setup", *KEYS, maintain_order=True)
        .agg(
            pl.col("value").mean(),
            runs=pl.col("run").n_unique(),
            significant=pl.when(tested.any()).then(significant),
        )
    )


Pairs = list[tuple[int, int]]
"""Pairs of tables, by their numbers."""
Centring = Callable[[Values, Weights, Int[np.ndarray, " known"]], Weights]
"""From values, weights and the numbers of heads to what is correlated: ranks or values less their mean."""
CELLS = 4_000_000
"""The most numbers in an array of correlations (draw, table, table) or vectors (draw, table, head): 32 MB."""

AGREEMENT_UNITS = (
    ColumnUnit.TEXT.of("measure", "first", "second", "pairing")
    | ColumnUnit.COUNT.of("pairs", "heads")
    | ColumnUnit.NUMBER.of("spearman", "low", "high", "within_layers", "within_low", "within_high")
    | ColumnUnit.NUMBER.of("pearson", "pearson_low", "pearson_high")
)
AGREEMENT_SCHEMA = pl.Schema(types_of(AGREEMENT_UNITS))


def agreement(values: pl.DataFrame, measure: str, draws: int = DRAWS, seed: int = 0) -> pl.DataFrame:
    """Correlations over heads between groups of tables, with the columns of `SCHEMA`.

    `values` are those of `head_values`, with a column `group`: what is compared, such as a task, or a task on
    a corpus. A group is compared with itself over all pairs of its runs (`pairing` is "other runs"). Two
    groups are compared within the same run if runs have both ("same run"), else over all pairs of their runs
    ("all runs"). Each row is a mean over pairs. Intervals are at 95 %, by a bootstrap over heads within
    layers: they are about these runs. Null: not defined.
    """
    chosen = values.filter(pl.col("measure") == measure)
    groups = list(chosen["group"].unique(maintain_order=True))
    vectors, strata = tables_of(chosen, ("group", "run"))
    places: dict[str, dict[str, int]] = {}
    for place, (group, run) in enumerate(vectors):
        places.setdefault(group, {})[run] = place
    compared: list[tuple[str, str, str, Pairs]] = []
    for first, second in itertools.combinations_with_replacement(groups, 2):
        pairing, pairs = _pairs(places[first], places[second], same=first == second)
        if pairs:
            compared.append((first, second, pairing, pairs))
    if not compared:
        return pl.DataFrame(schema=AGREEMENT_SCHEMA)
    tables = np.array(list(vectors.values()))
    weights = head_weights(strata, draws, np.random.default_rng(seed))
    known = ~np.isnan(tables)
    estimates = zip(
        *(_estimates(tables, [row[-1] for row in compared], weights, way) for way in _ways(strata)),
        strict=True,
    )
    rows = []
    for (first, second, pairing, pairs), (over_all, within, linear) in zip(compared, estimates, strict=True):
        heads = max(int((known[one] & known[other]).sum()) for one, other in pairs)
        rows.append((measure, first, second, pairing, len(pairs), heads, *over_all, *within, *linear))
    return pl.DataFrame(rows, schema=AGREEMENT_SCHEMA, orient="row").fill_nan(None)


def _pairs(first: Mapping[str, int], second: Mapping[str, int], *, same: bool) -> tuple[str, Pairs]:
    """How two groups are compared, and the pairs of tables (by their numbers) that are compared."""
    if same:
        return "other runs", list(itertools.combinations(first.values(), 2))
    common = [run for run in first if run in second]
    if common:
        return "same run", [(first[run], second[run]) for run in common]
    return "all runs", list(itertools.product(first.values(), second.values()))


def _ways(strata: Strata) -> tuple[Centring, Centring, Centring]:
    """Ranks over all heads, ranks within layers, and values as they are, less their mean."""

    def ranks(layers: Strata) -> Centring:
        return lambda values, weights, heads: centred_ranks(values, weights, layers[heads])

    return ranks(np.zeros_like(strata)), ranks(strata), lambda values, weights, _: centred(values, weights)


def _estimates(
    tables: Float[np.ndarray, "table head"], compared: Sequence[Pairs], weights: Weights, way: Centring
) -> list[Estimate]:
    """Per row the mean correlation over its pairs of tables, with its interval.

    Tables are standardised once per table and not once per pair, so that pairs cost only a product of
    matrices.
    """
    draws = np.concatenate([np.ones((1, weights.shape[1])), weights])  # the heads as they are come first
    means = np.empty((len(compared), len(draws)))
    at_once = max(1, CELLS // (len(tables) * max(tables.shape)))
    for start in range(0, len(draws), at_once):
        part = slice(start, start + at_once)
        correlations = _correlations(tables, draws[part], way)
        for row, pairs in enumerate(compared):
            one, other = np.array(pairs).T
            means[row, part] = correlations[:, one, other].mean(1)
    return [estimate(float(drawn[0]), drawn[1:]) for drawn in means]


def _correlations(
    tables: Float[np.ndarray, "table head"], weights: Weights, way: Centring
) -> Float[np.ndarray, "draw table table"]:
    """The correlations of all tables with each other, over heads that both have; NaN if there are none."""
    known = ~np.isnan(tables)
    patterns, of_pattern = np.unique(known, axis=0, return_inverse=True)
    found = np.full((len(weights), len(tables), len(tables)), np.nan)
    for one, other in itertools.combinations_with_replacement(range(len(patterns)), 2):
        heads = np.flatnonzero(patterns[one] & patterns[other])
        if not len(heads):
            continue
        rows, columns = (np.flatnonzero(of_pattern == number) for number in (one, other))
        left = _standardised(tables[rows], weights, way, heads)
        right = left if one == other else _standardised(tables[columns], weights, way, heads)
        block = left @ right.transpose(0, 2, 1)
        found[:, rows[:, None], columns] = block
        found[:, columns[:, None], rows] = block.transpose(0, 2, 1)
    return found


def _standardised(
    tables: Float[np.ndarray, "table head"], weights: Weights, way: Centring, heads: Int[np.ndarray, " known"]
) -> Float[np.ndarray, "draw table known"]:
    """Vectors of length 1 in each draw, whose inner products are correlations; NaN if nothing varies."""
    drawn = weights[:, heads]
    vectors = np.stack([way(table[heads], drawn, heads) for table in tables], axis=1)
    vectors *= np.sqrt(drawn)[:, None]
    length = np.sqrt((vectors**2).sum(-1, keepdims=True))
    return vectors / np.where(length > 0, length, np.nan)


TOP = 0.1
"""The share of heads, those that are costliest to close, that a measure should find."""
RankedLosses = dict[tuple[bytes, bytes, bytes], np.ndarray]
"""Centred ranks of losses, [draw head], by losses, known heads (whose number differs) and strata."""
PREDICTION_UNITS = (
    ColumnUnit.TEXT.of("task", "setup", "measure")
    | ColumnUnit.COUNT.of("runs", "heads")
    | ColumnUnit.NUMBER.of("spearman", "low", "high", "within_layers", "within_low", "within_high")
    | ColumnUnit.SHARE.of("overlap", "overlap_chance")
)
PREDICTION_SCHEMA = pl.Schema(types_of(PREDICTION_UNITS))


def prediction(values: pl.DataFrame, draws: int = DRAWS, seed: int = 0) -> pl.DataFrame:
    """Spearman's correlation of each measure with the loss by ablation, per task and setup (`SCHEMA`).

    `values` are those of `head_values`. The correlation is taken over the heads of each run, and then
    averaged over the runs of the setup: once over all heads, and once with ranks within layers, so that
    differences between layers do not count. A run without variation does not count; null if no run has a
    correlation. Intervals are by a bootstrap over heads (within layers, the same heads in all runs, which
    start from one encoder) and over runs at once (Owen 2007). `overlap` is the share of the k most costly
    heads that are among the measure's k highest, where k is a tenth of the heads, and `overlap_chance` is
    what chance gives. If heads are tied for the last of the k places, each counts with its share of these.
    """
    vectors, strata = tables_of(values, ("measure", "task", "setup", "run"))
    rng = np.random.default_rng(seed)
    weights = head_weights(strata, draws, rng)
    order = {name: place for place, name in enumerate(PREDICTORS)}
    cells = (
        values.filter(pl.col("measure").is_in(list(PREDICTORS)))
        .select("task", "setup", "measure", "run")
        .unique(maintain_order=True)
        .group_by("task", "setup", "measure", maintain_order=True)
        .agg("run")
        .sort(
            *(_place(values, name) for name in ("task", "setup")),
            pl.col("measure").replace_strict(order, return_dtype=pl.Int64),
        )
    )
    rows = []
    ranked: RankedLosses = {}
    for task, setup, measure, runs in cells.iter_rows():
        ablated = [run for run in runs if (ABLATION, task, setup, run) in vectors]
        measures = [vectors[measure, task, setup, run] for run in ablated]
        # Scores that are equal in exact arithmetic may differ in the last digits.
        losses = [vectors[ABLATION, task, setup, run].round(9) for run in ablated]
        heads = [int(_known(*pair).sum()) for pair in zip(measures, losses, strict=True)]
        if max(heads, default=0) < 2:
            continue
        pooled, within = over_runs(measures, losses, strata, weights, rng, ranked)
        shares, chances = zip(*map(top_overlap, measures, losses), strict=True)
        overlap = float(np.mean(shares)), float(np.mean(chances))
        rows.append((task, setup, measure, len(ablated), max(heads), *pooled, *within, *overlap))
    return pl.DataFrame(rows, schema=PREDICTION_SCHEMA, orient="row").fill_nan(None)


def _place(values: pl.DataFrame, column: str) -> pl.Expr:
    """The places of a column's values in the order in which they first appear."""
    names = values[column].unique(maintain_order=True)
    return pl.col(column).replace_strict(names, list(range(len(names))), return_dtype=pl.Int64)


def over_runs(
    measures: Sequence[Values],
    losses: Sequence[Values],
    strata: Strata,
    weights: Weights,
    rng: np.random.Generator,
    ranked: RankedLosses | None = None,
) -> tuple[Estimate, Estimate]:
    """The mean over runs of Spearman's correlation over heads: of all heads, and within strata.

    A draw has each head as often as its row of `weights` says, in all runs, and runs drawn with replacement.
    Heads that are NaN in either vector of a run are left out of that run. `ranked` keeps the ranks of losses
    for the next call: all measures of a setup are compared with the same losses.
    """
    chosen = rng.integers(0, len(measures), size=(len(measures), len(weights)))
    by_head = np.concatenate([np.ones((len(strata), 1)), weights.T], axis=1)  # first the heads as they are
    in_half = by_head.astype(np.float32)  # counts are exact in it
    kept: RankedLosses = {} if ranked is None else ranked
    used: RankedLosses = {}
    estimates = []
    ranks = np.empty_like(by_head)
    for layers in (np.zeros_like(strata), strata):
        drawn = []
        for measure, loss in zip(measures, losses, strict=True):
            known = _known(measure, loss)
            counts, halves = ((of if known.all() else of[known]).T for of in (by_head, in_half))
            key = loss[known].tobytes(), known.tobytes(), layers.tobytes()
            found = used.get(key, kept.get(key))
            used[key] = centred_ranks(loss[known], halves, layers[known]) if found is None else found
            of_measure = centred_ranks(measure[known], halves, layers[known], ranks[: known.sum()])
            drawn.append(correlation(of_measure, used[key], counts))
        of_runs = np.array(drawn)
        resampled = np.take_along_axis(of_runs[:, 1:], chosen, axis=0)
        estimates.append(estimate(float(_mean(of_runs[:, :1])[0]), _mean(resampled)))
    if ranked is not None:
        ranked.clear()
        ranked |= used
    return estimates[0], estimates[1]


def _known(measure: Values, loss: Values) -> Bool[np.ndarray, " head"]:
    return ~(np.isnan(measure) | np.isnan(loss))


def _mean(values: Float[np.ndarray, "run draw"]) -> Float[np.ndarray, " draw"]:
    """The mean over runs that have a value."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.where(known, values, 0).sum(0) / known.sum(0)


def top_overlap(measure: Values, loss: Values) -> tuple[float, float]:
    """The share of the k most costly heads among the measure's k highest, and this share by chance."""
    known = _known(measure, loss)
    measure, loss = measure[known], loss[known]
    if not len(loss):
        return float("nan"), float("nan")
    k = max(1, round(TOP * len(loss)))
    return float(_top(measure, k) @ _top(loss, k) / k), k / len(loss)


def _top(values: Values, k: int) -> Float[np.ndarray, " head"]:
    """1 for each of the k highest, 0 for the others; heads tied for the last places share them."""
    last = np.sort(values)[-k]
    above, tied = values > last, values == last
    return above + tied * (k - above.sum()) / tied.sum()


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

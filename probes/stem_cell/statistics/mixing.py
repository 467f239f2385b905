"""Do heads that several tasks claim share components? Overlap of mixing vectors by who claims the heads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from jaxtyping import Bool, Float, Int

from mtl.probes.head_names import head_name
from mtl.probes.sites import KEYS, Site, in_order, sites_of
from mtl.probes.statistics.corrections import holm
from mtl.probes.statistics.resampling import permutations_within, student
from mtl.probes.statistics.stratified_tests import Orders, two_sided_chance

CLASSES = ("none", "one", "several")
"""How many tasks claim a head."""
MIXED = "mixed"
"""Two heads of different classes."""
OVERLAPS = pl.Schema(
    {
        "run": pl.String, "seed": pl.Int64, "attention": pl.String, "layer": pl.Int32, "first": pl.Int32,
        "second": pl.Int32, "overlap": pl.Float64,
    }
)  # fmt: skip
"""A row per run and pair of heads of a layer, the first with the smaller number."""
TESTS = pl.Schema(
    {"claims": pl.String, "heads": pl.Int64, "pairs": pl.Int64, "seeds": pl.Int64}
    | dict.fromkeys(("overlap", "above", "low", "high", "p", "p_holm"), pl.Float64)
)
"""A row per class of heads; see `overlap_by_claims`."""


@dataclass(frozen=True)
class MixingByClaims:
    """How much the mixing vectors of each class of heads overlap."""

    tests: pl.DataFrame
    """A row per class of heads (`TESTS`)."""
    pairs: pl.DataFrame
    """attention, layer, first, second, claims (one of `CLASSES` or `MIXED`), overlap (mean over seeds)."""

    def layers(self) -> pl.DataFrame:
        """Mean overlap per layer and class: attention, layer, claims, pairs, overlap; `all`: of all pairs."""
        keys = ["attention", "layer", "claims"]
        counted = {"pairs": pl.len().cast(pl.Int64), "overlap": pl.col("overlap").mean()}
        parts = [
            table.group_by(keys, maintain_order=True).agg(**counted)
            for table in (self.pairs.with_columns(claims=pl.lit("all")), self.pairs)
        ]
        order = in_order(sites_of(self.pairs))
        return pl.concat(parts).sort(order, "layer", maintain_order=True)


def absolute_cosines(vectors: Float[np.ndarray, "head component"]) -> Float[np.ndarray, "head head"]:
    """The absolute cosine of the mixing vectors of every two heads; 0 for a vector of zeros."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(lengths > 0, lengths, 1)
    cosines: Float[np.ndarray, "head head"] = np.abs(unit @ unit.T).clip(max=1)
    return cosines


def overlap_by_claims(
    overlaps: pl.DataFrame, claims: pl.DataFrame, level: float = 0.95, draws: int = 4999, seed: int = 0
) -> MixingByClaims:
    """Compare pairs of heads claimed by several tasks, by one, or by none, with all pairs of their layer.

    `overlaps` has the schema `OVERLAPS`, `claims` the columns task, attention, layer, head, claimed.
    `overlap` is the mean over the pairs of a class, and `above` is the mean of their overlap less that of all
    pairs of the layer; runs of one seed are averaged first. The interval is Student's over seeds. p is
    two-sided and by permutation: which heads of a layer are in the class is drawn at random. `p_holm` is
    corrected over the classes. A value that cannot be computed is null.

    Raises `ValueError` for runs with different heads, or heads without claims.
    """
    heads, values, means = _by_seed(overlaps)
    number = claims.group_by(KEYS).agg(claimants=pl.col("claimed").sum().cast(pl.Int64))
    joined = heads.join(number, on=KEYS, how="left", maintain_order="left")
    for row in joined.filter(pl.col("claimants").is_null()).iter_rows(named=True):
        name = head_name(Site(row["attention"], row["layer"]), row["head"], sites_of(heads))
        raise ValueError(f"no claims on {name}: use masks of the same encoder")
    kinds = joined["claimants"].to_numpy().clip(max=2)
    strata = heads.select(pl.struct("attention", "layer").rank("dense").cast(pl.Int64)).to_series().to_numpy()
    orders = permutations_within(strata, draws, np.random.default_rng(seed))
    rows = []
    for kind, name in enumerate(CLASSES):
        chosen = kinds == kind
        rows.append({"claims": name, **_tested(values, chosen, strata, orders, level)})
    tests = pl.DataFrame(rows, schema={key: type_ for key, type_ in TESTS.items() if key != "p_holm"})
    known = tests["p"].is_not_null().to_numpy()
    corrected = np.full(tests.height, np.nan)
    corrected[known] = holm(tests["p"].drop_nulls().to_numpy())
    tests = tests.with_columns(p_holm=pl.Series(corrected)).fill_nan(None).select(*TESTS)
    return MixingByClaims(tests, _pairs(means, heads.with_columns(kind=kinds)))


def above_layer_means(
    values: Float[np.ndarray, "*many head head"], strata: Int[np.ndarray, " head"]
) -> Float[np.ndarray, "*many head head"]:
    """Overlap less the mean of all pairs of the layer; 0 between layers and of a head with itself."""
    centred = np.zeros_like(values)
    for layer in np.unique(strata):
        [inside] = np.nonzero(strata == layer)
        block = np.ix_(inside, inside)
        apart = ~np.eye(len(inside), dtype=bool)
        if apart.any():
            of_layer = values[..., block[0], block[1]]
            mean = of_layer[..., apart].mean(-1)[..., None, None]
            centred[..., block[0], block[1]] = np.where(apart, of_layer - mean, 0)
    return centred


def class_means(
    centred: Float[np.ndarray, "head head"],
    chosen: Bool[np.ndarray, " head"],
    strata: Int[np.ndarray, " head"],
    orders: Orders,
) -> Float[np.ndarray, " draw"]:
    """The mean over pairs of chosen heads of the same layer, for each reordering of which heads are chosen.

    NaN if no layer has two of them.
    """
    _, inverse = np.unique(strata, return_inverse=True)
    per_layer = np.bincount(inverse, chosen)
    pairs = (per_layer * (per_layer - 1) / 2).sum()
    drawn = chosen.astype(np.float64)[orders]
    sums = ((drawn @ centred) * drawn).sum(1) / 2
    return sums / pairs if pairs else np.full(len(orders), np.nan)


def _tested(
    values: Float[np.ndarray, "seed head head"],
    chosen: Bool[np.ndarray, " head"],
    strata: Int[np.ndarray, " head"],
    orders: Orders,
    level: float,
) -> dict[str, object]:
    same = strata[:, None] == strata
    paired = np.triu(chosen[:, None] & chosen & same, 1)
    row: dict[str, object] = {
        "heads": int(chosen.sum()), "pairs": int(paired.sum()), "seeds": len(values),
        "overlap": None, "above": None, "low": None, "high": None, "p": None,
    }  # fmt: skip
    if not paired.any():
        return row
    centred = above_layer_means(values, strata)
    above = centred[:, paired].mean(1)
    low, high = student(above, level)
    observed, mean = float(above.mean()), centred.mean(0)
    drawn = class_means(mean, chosen, strata, orders)
    p = two_sided_chance(drawn, observed, float(np.abs(mean).max()))
    return row | {
        "overlap": float(values[:, paired].mean()), "above": observed, "low": low, "high": high, "p": p,
    }  # fmt: skip


def _by_seed(
    overlaps: pl.DataFrame,
) -> tuple[pl.DataFrame, Float[np.ndarray, "seed head head"], pl.DataFrame]:
    """The heads in order; the overlaps between them for each seed, 0 between layers; the same as rows."""
    sites = sites_of(overlaps)
    heads = (
        pl.concat([overlaps.select(*KEYS[:2], head=end) for end in ("first", "second")])
        .unique()
        .sort(in_order(sites), "layer", "head")
    )
    place = {key: number for number, key in enumerate(heads.rows())}
    means = overlaps.group_by("seed", "attention", "layer", "first", "second", maintain_order=True).agg(
        pl.col("overlap").mean(), runs=pl.len()
    )
    seeds = {seed: number for number, seed in enumerate(sorted(set(means["seed"])))}
    counts = means.group_by("seed").agg(pl.len(), fewest=pl.col("runs").min(), most=pl.col("runs").max())
    pairs = means.select("attention", "layer", "first", "second").n_unique()
    if (counts["len"] != pairs).any() or (counts["fewest"] != counts["most"]).any():
        raise ValueError("the runs have different heads: use runs of one encoder of which none is cut")
    values = np.zeros((len(seeds), len(place), len(place)))
    for seed, kind, layer, first, second, overlap, _ in means.iter_rows():
        one, other = place[kind, layer, first], place[kind, layer, second]
        values[seeds[seed], one, other] = values[seeds[seed], other, one] = overlap
    return heads, values, means


def _pairs(of_seed: pl.DataFrame, heads: pl.DataFrame) -> pl.DataFrame:
    """Each pair of heads, its class, and its mean over seeds."""
    keys = ["attention", "layer", "first", "second"]
    means = of_seed.group_by(keys, maintain_order=True).agg(pl.col("overlap").mean())
    for end in ("first", "second"):
        named = heads.select(*KEYS[:2], pl.col("head").alias(end), pl.col("kind").alias(f"of_{end}"))
        means = means.join(named, on=[*KEYS[:2], end], how="left", maintain_order="left")
    names = pl.col("of_first").replace_strict(dict(enumerate(CLASSES)), return_dtype=pl.String)
    same = pl.col("of_first") == pl.col("of_second")
    return means.select(*keys, "overlap", claims=pl.when(same).then(names).otherwise(pl.lit(MIXED))).select(
        *keys, "claims", "overlap"
    )

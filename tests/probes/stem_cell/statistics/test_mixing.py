"""Overlap of mixing vectors by claims: planted answers, and permutations that are counted one by one."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
import pytest
from scipy import stats

from mtl.probes.figures.style import render
from mtl.probes.stem_cell.figures.mixing import mixing_figure
from mtl.probes.stem_cell.statistics.mixing import (
    CLASSES,
    OVERLAPS,
    above_layer_means,
    absolute_cosines,
    class_means,
    overlap_by_claims,
)

LAYERS, HEADS = 4, 6
CLAIMED = {"pos": (0, 1, 2, 3), "dep": (0, 1, 2, 4)}
"""Heads 0 to 2 are claimed by both, 3 and 4 by one, 5 by none."""


def claims(of=CLAIMED, layers=LAYERS, heads=HEADS):
    rows = [
        (task, "self", layer, head, head in claimed)
        for task, claimed in of.items()
        for layer in range(layers)
        for head in range(heads)
    ]
    schema = {"task": pl.String, "attention": pl.String, "layer": pl.Int32, "head": pl.Int32}
    return pl.DataFrame(rows, schema=schema | {"claimed": pl.Boolean}, orient="row")


def overlaps(value, seeds=(1, 2, 3), layers=LAYERS, heads=HEADS):
    """A table whose overlaps are `value(seed, layer, first, second)`."""
    rows = [
        (f"run{seed}", seed, "self", layer, one, other, value(seed, layer, one, other))
        for seed in seeds
        for layer in range(layers)
        for one, other in itertools.combinations(range(heads), 2)
    ]
    return pl.DataFrame(rows, schema=OVERLAPS, orient="row")


def planted(seed, layer, one, other):
    """0.1 a layer, 0.3 more between heads that both tasks claim, and a hundredth per seed on top of that."""
    return 0.1 * (layer + 1) + (0.3 + 0.01 * seed if other <= 2 else 0.0)


def test_cosines_know_no_sign_and_no_length():
    vectors = np.array([[1.0, 0.0], [-2.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    half = 0.5**0.5
    expected = [[1, 1, half, 0], [1, 1, half, 0], [half, half, 1, 0], [0, 0, 0, 0]]
    assert absolute_cosines(vectors) == pytest.approx(np.array(expected))


def test_a_planted_overlap_is_found():
    result = overlap_by_claims(overlaps(planted), claims())
    tests = {row["claims"]: row for row in result.tests.iter_rows(named=True)}
    assert list(tests) == list(CLASSES)
    several = tests["several"]
    assert (several["heads"], several["pairs"], several["seeds"]) == (3 * LAYERS, 3 * LAYERS, 3)
    assert several["overlap"] == pytest.approx(0.25 + 0.32)
    # 3 of a layer's 15 pairs have it: what is above the layer's mean is four fifths of it.
    by_seed = 0.8 * (0.3 + 0.01 * np.array([1, 2, 3]))
    assert several["above"] == pytest.approx(by_seed.mean())
    reach = stats.t.ppf(0.975, 2) * by_seed.std(ddof=1) / 3**0.5
    assert (several["low"], several["high"]) == pytest.approx(
        (by_seed.mean() - reach, by_seed.mean() + reach)
    )
    # Of 20 choices of three heads in each of four layers one is the highest.
    assert several["p"] < 0.001
    assert several["p_holm"] == pytest.approx(2 * several["p"])
    assert tests["one"]["above"] == pytest.approx(-0.2 * 0.32)
    assert tests["none"]["heads"] == LAYERS
    assert all(tests["none"][key] is None for key in ("overlap", "above", "low", "p", "p_holm"))


def test_nothing_planted_is_nothing_found():
    random = np.random.default_rng(3)
    drawn = random.random((4, LAYERS, HEADS, HEADS))
    result = overlap_by_claims(overlaps(lambda *place: drawn[place]), claims())
    assert (result.tests["p_holm"].drop_nulls() > 0.05).all()


def test_the_chance_is_that_of_all_permutations():
    random = np.random.default_rng(0)
    drawn = random.random((2, 4, 4))
    table = overlaps(lambda seed, *place: drawn[place], seeds=(1,), layers=2, heads=4)
    given = claims({"pos": (0, 1), "dep": (0, 1)}, layers=2, heads=4)
    strata = np.repeat([0, 1], 4)
    values = np.zeros((8, 8))
    for layer in range(2):
        block = np.triu(drawn[layer], 1)
        values[4 * layer : 4 * layer + 4, 4 * layer : 4 * layer + 4] = block + block.T
    # All choices of two heads in each of two layers, from the pairs' own values.
    sums = []
    for one, other in itertools.product(itertools.combinations(range(4), 2), repeat=2):
        means = [drawn[layer][np.triu_indices(4, 1)].mean() for layer in range(2)]
        sums.append((drawn[0][one] - means[0] + drawn[1][other] - means[1]) / 2)
    observed = sums[0]
    exact = min(1, 2 * min(np.mean(np.array(sums) >= observed), np.mean(np.array(sums) <= observed)))
    centred = above_layer_means(values, strata)
    chosen = np.tile([True, True, False, False], 2)
    orders = np.array(
        [
            [*first, *(4 + place for place in second)]
            for first, second in itertools.product(itertools.permutations(range(4)), repeat=2)
        ]
    )
    counted = class_means(centred, chosen, strata, orders)
    assert np.unique(counted.round(12)) == pytest.approx(np.unique(np.round(sums, 12)))
    several = overlap_by_claims(table, given, draws=19_999).tests.row(
        by_predicate=pl.col("claims") == "several", named=True
    )
    assert several["above"] == pytest.approx(observed)
    assert several["p"] == pytest.approx(exact, abs=0.015)
    assert several["low"] is None


def test_layers_have_means_of_their_own():
    result = overlap_by_claims(overlaps(planted), claims())
    layers = result.layers()
    rows = layers.filter(layer=2).rows_by_key("claims", named=True, unique=True)
    assert rows["all"]["overlap"] == pytest.approx(0.3 + 0.2 * 0.32)
    assert rows["several"]["overlap"] == pytest.approx(0.3 + 0.32)
    assert (rows["one"]["pairs"], rows["mixed"]["pairs"], rows["all"]["pairs"]) == (1, 11, 15)
    stacked = [
        table.select(pl.lit("joint").alias("models"), *table.columns) for table in (result.tests, layers)
    ]
    figure = mixing_figure(*stacked, "joint")
    curve = next(line for line in figure.axes[0].lines if line.get_label() == "claimed by several tasks")
    assert list(curve.get_ydata()) == pytest.approx([0.1 * layer + 0.32 for layer in range(1, 5)])
    [mean] = [line.get_ydata()[0] for line in figure.axes[1].lines if list(line.get_xdata()) == [2.0]]
    assert mean == pytest.approx(0.8 * 0.32)
    assert render(figure, "png")[:4] == b"\x89PNG"


def test_other_heads_are_refused():
    with pytest.raises(ValueError, match="no claims on L0H5"):
        overlap_by_claims(overlaps(planted), claims(heads=5))
    cut = overlaps(planted).filter((pl.col("seed") != 2) | (pl.col("second") < 5))
    with pytest.raises(ValueError, match="the runs have different heads"):
        overlap_by_claims(cut, claims())

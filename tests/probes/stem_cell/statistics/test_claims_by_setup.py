"""Competition by the claims of several setups: each its own test."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from scipy.stats import binom

from mtl.probes.statistics.masks import final_masks
from mtl.probes.stem_cell.statistics.claims_by_setup import by_claims
from mtl.probes.stem_cell.statistics.competition import PRIMARY, compete
from tests.probes import worlds
from tests.probes.closed_testing import closed


def several(rng: np.random.Generator, effect: float, sets: int = 3):
    """The masks of the planted effect, others that know nothing of it, and the probes."""
    gates, heads = worlds.competition(rng, effect)
    masks = {"planted": final_masks(gates)[0]}
    for place in range(1, sets):
        masks[f"other {place}"] = final_masks(worlds.gates(worlds.random_gates(rng)))[0]
    return masks, heads


def test_each_setup_has_the_p_of_its_own_test():
    masks, heads = several(np.random.default_rng(1), 0.1)
    table = by_claims(masks, heads, draws=500)
    assert table["claims"].to_list() == list(masks)
    for row in table.iter_rows(named=True):
        own = compete(masks[row["claims"]], heads, draws=500)
        test = own.head_tests.row(by_predicate=pl.col("test") == PRIMARY, named=True)
        assert (row["value"], row["p"]) == (test["value"], test["p"])
        assert row["contested"] == own.heads["contested"].sum()
    assert table["p_holm"].to_list() == pytest.approx(closed(table["p"].to_numpy()).tolist())
    assert table["p"][0] == pytest.approx(1 / 501)
    assert table["p_holm"][0] == pytest.approx(3 / 501)
    assert table["lacking"].to_list() == ["", "", ""]


def test_what_has_no_p_is_no_test_and_what_is_lacking_is_said():
    masks, heads = several(np.random.default_rng(1), 0.1)
    gate = worlds.random_gates(np.random.default_rng(2))
    masks["all open"] = final_masks(worlds.gates(np.ones_like(gate)))[0]
    masks["two seeds"] = final_masks(worlds.gates(gate[:, :2], seeds=(1, 2)))[0]
    table = by_claims(masks, heads, draws=500)
    alone, two = table.row(3, named=True), table.row(4, named=True)
    assert (alone["p"], alone["p_holm"]) == (None, None)
    assert "nearly all heads" in alone["lacking"]
    assert "masks of 2 seeds" in two["lacking"]
    assert table["p_holm"][0] == pytest.approx(4 / 501)


@pytest.mark.slow
def test_the_level_holds_over_all_setups_together():
    """Without an effect no more than the level of such tables have a corrected p below it."""
    draws = 100
    found = 0
    for draw in range(draws):
        masks, heads = several(np.random.default_rng([11, draw]), 0.0, sets=4)
        found += by_claims(masks, heads, draws=300)["p_holm"].min() <= 0.05
    assert found <= binom.ppf(0.999, draws, 0.05)


def test_no_setups_no_rows():
    _, heads = several(np.random.default_rng(1), 0.1)
    assert by_claims({}, heads).is_empty()

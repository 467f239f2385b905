from __future__ import annotations

import polars as pl

from mtl.runs.compare.setups import missing_seeds


def test_seeds_are_missed_among_setups_that_share_some() -> None:
    seeds = {"A": [1, 2, 3], "B": [1, 3], "claims": [11, 12], "more": [12, 13], "C": [3, 4]}
    table = pl.DataFrame(
        [{"setup": setup, "seed": seed} for setup, own in seeds.items() for seed in own],
        schema={"setup": pl.String, "seed": pl.Int64},
    )
    assert missing_seeds(table, "setup") == [
        (("A",), (4,)), (("B",), (2, 4)), (("claims",), (13,)), (("more",), (11,)), (("C",), (1, 2)),
    ]  # fmt: skip
    apart = table.filter(pl.col("setup").is_in(["A", "claims"]))
    assert missing_seeds(apart, "setup") == []

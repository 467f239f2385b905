"""An answer's record for programs."""

from __future__ import annotations

import json

import polars as pl

from mtl.probes.report.answer import CANNOT_TELL, Answer, estimates_in


def test_estimates_are_the_rows_of_a_table_and_what_is_not_known_is_null():
    table = pl.DataFrame(
        {
            "setup": ["all", "pair"], "task": ["dep", ""], "loss": [1.5, float("nan")],
            "low": [0.5, float("-inf")], "high": [2.5, None], "p": [0.01, None], "runs": [3, None],
        }
    )  # fmt: skip
    found = estimates_in("sharing", table, ("setup", "task"), "loss", "points", "runs", n_of="seeds")
    answer = Answer("Does it?", CANNOT_TELL, "why", "limit", estimates=found)
    record = json.loads(json.dumps(answer.record(), allow_nan=False))
    same = {"level": 0.95, "unit": "points", "word": "", "n_of": "seeds", "source": "sharing"}
    assert record["question"] == "Does it?"
    assert record["estimates"] == [
        {"what": "all, dep", "estimate": 1.5, "low": 0.5, "high": 2.5, "p": 0.01, "n": 3} | same,
        {"what": "pair", "estimate": None, "low": None, "high": None, "p": None, "n": None} | same,
    ]
    (bare,) = estimates_in("wanted", table[:1].drop("low", "high", "p"), ("task",), "loss", "index", "runs")
    assert (bare.low, bare.high, bare.level, bare.p, bare.n_of) == (None, None, None, None, "runs")

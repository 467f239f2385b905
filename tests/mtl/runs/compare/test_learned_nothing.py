"""Which scores say that nothing was learned: below the best same answer, at it, and above."""

from __future__ import annotations

import pytest

from mtl.runs.compare.scores import learned_nothing
from tests.probes.statistics.test_words_at_thresholds import around

BELOW, AT, ABOVE = 89.0, 90.0, 90.1


@pytest.mark.parametrize(
    ("dev", "test", "nothing"),
    [
        (BELOW, BELOW, True), (AT, AT, True), (ABOVE, AT, False), (AT, ABOVE, False), (ABOVE, ABOVE, False),
        (None, AT, True), (None, ABOVE, False),
    ],
)  # fmt: skip
def test_a_task_with_a_same_answer(dev, test, nothing):
    splits = {"dev": dev, "test": test}
    metrics = {
        split: {"acts": {"accuracy": value, "majority": AT, "chance": 82.0}}
        for split, value in splits.items()
        if value is not None
    }
    found = learned_nothing(metrics, {"acts": "accuracy", "pos": "accuracy"})
    assert set(found) == ({"acts"} if nothing else set())
    if dev == test == AT:
        assert found["acts"] == (
            "acts: nothing was learned: accuracy 90.00 on dev, 90.00 on test, where one label for all items "
            "scores 90.00, 90.00"
        )


@pytest.mark.parametrize(
    ("value", "nothing"), list(zip((*around(0.0)[:2], 0.01), (True, True, False), strict=True))
)
def test_a_task_without_one(value, nothing):
    found = learned_nothing({"test": {"ner": {"f1": value}}}, {"ner": "f1"})
    assert bool(found) == nothing
    if nothing:
        assert found["ner"].endswith("on test, where 0 is the least possible")

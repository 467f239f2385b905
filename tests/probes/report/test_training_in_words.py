"""What a report says of the training of its runs."""

from __future__ import annotations

import polars as pl

from mtl.probes.report.data import HISTORY
from mtl.probes.report.page_part import (
    FACTS,
    told_columns,
    trained_in_words,
    undertrained,
    undertrained_in_words,
)

RUN = ("data/toy", "200 + 30 + 80", "3", "8", "0.0003, 0.002")


def runs(*rows: tuple[str, ...]) -> pl.DataFrame:
    named = [
        dict(zip(FACTS, row, strict=True)) | {"run": f"runs/{n}", "versions": ""}
        for n, row in enumerate(rows)
    ]
    return pl.DataFrame(named)


def test_corpus_sizes_epochs_and_rates_are_named() -> None:
    assert trained_in_words(runs(RUN, RUN)) == (
        "trained on data/toy, 200 + 30 + 80 sentences (train + dev + test), 3 epochs, batches of 8, "
        "learning rates 0.0003, 0.002 (encoder, decoders)"
    )
    longer = (*RUN[:2], "30", *RUN[3:])
    assert "3 or 30 epochs" in trained_in_words(runs(RUN, longer))
    several = [(f"data/{n}", RUN[1], str(n), *RUN[3:]) for n in range(9, 13)]
    assert "trained on 4 sets of files, 200 + 30 + 80 sentences" in trained_in_words(runs(*several))
    assert "9 to 12 epochs" in trained_in_words(runs(*several))


def test_what_is_not_known_is_not_named() -> None:
    assert trained_in_words(runs(("", "", "3", "", ""))) == "3 epochs"
    assert trained_in_words(runs(("", "", "1", "", ""))) == "1 epoch"
    assert trained_in_words(pl.DataFrame({"run": ["a"]})) == ""


def test_the_table_of_runs_has_the_facts_in_which_they_differ() -> None:
    assert told_columns(runs(RUN, RUN)) == ["run"]
    assert told_columns(runs(RUN, ("data/other", *RUN[1:]))) == ["data", "run"]


def test_runs_whose_scores_still_rise_are_undertrained() -> None:
    curves = {
        ("STL", "ner"): ([40.0, 60.0, 68.0], [44.0, 60.0, 64.0]),  # +6 as a mean
        ("STL", "pos"): ([90.0, 96.0, 96.5], [91.0, 96.0, 97.0]),  # below a point
        ("MTL-2", "ner"): ([10.0, 50.0, 49.0], [10.0, 50.0, 52.5]),  # falls with one seed
        ("MTL-2", "dep"): ([80.0], [81.0]),  # one evaluation
    }
    rows = [
        (setup, task, seed, f"{setup} {task} {seed}", 25 * place, score)
        for (setup, task), of_seeds in curves.items()
        for seed, scores in enumerate(of_seeds)
        for place, score in reversed(list(enumerate(scores)))
    ]
    found = undertrained(pl.DataFrame(rows, schema=HISTORY, orient="row"))
    assert found.rows() == [("STL", "ner", 6.0)]
    assert undertrained_in_words(found) == "STL (ner +6.0)"
    assert undertrained(pl.DataFrame(schema=HISTORY)).is_empty()


def test_draws_of_one_seed_are_runs_of_their_own() -> None:
    """The second draw is lower throughout; neither rises."""
    rows = [
        ("STL", "control", 1, f"draw {draw}", update, score)
        for update in (10, 20)
        for draw, score in ((0, 50.0), (1, 40.0))
    ]
    history = pl.DataFrame(rows, schema=HISTORY, orient="row")
    assert undertrained(history).is_empty()
    risen = history.with_columns(pl.col("score") + pl.col("update") / 5)
    assert undertrained(risen).rows() == [("STL", "control", 2.0)]

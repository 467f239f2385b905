"""What runs were trained on, for how long, and whether that was long enough."""

from __future__ import annotations

import polars as pl

from mtl.probes.report.number_format import signed

RISING = 1.0
"""Runs that gain more points on dev than this between their last two evaluations are undertrained."""
FACTS = ("data", "sentences", "epochs", "batch", "rates")
"""The columns of `ReportData.runs` that say on what and how runs were trained."""
_NAMED = 3
"""The most different values that a sentence names."""


def trained_in_words(runs: pl.DataFrame) -> str:
    """Corpora, sizes, epochs, batches and learning rates of all runs (`ReportData.runs`), if known."""
    known = {name: _values(runs, name) for name in FACTS}
    words = {
        "data": "trained on {}",
        "sentences": "{} sentences (train + dev + test)",
        "epochs": "{} epochs",
        "batch": "batches of {}",
        "rates": "learning rates {} (encoder, decoders)",
    }
    return ", ".join(text.format(known[name]) for name, text in words.items() if known[name])


def told_columns(runs: pl.DataFrame) -> list[str]:
    """The columns of the table of runs that the page shows: facts of training only if runs differ in them."""
    left_out = {"versions", *(name for name in FACTS if name in runs.columns and runs[name].n_unique() == 1)}
    return [name for name in runs.columns if name not in left_out]


def _values(runs: pl.DataFrame, column: str) -> str:
    if column not in runs.columns:
        return ""
    values = [value for value in runs[column].unique(maintain_order=True).drop_nulls().to_list() if value]
    if len(values) <= _NAMED:
        return " or ".join(values)
    if all(value.isdigit() for value in values):
        return f"{min(map(int, values))} to {max(map(int, values))}"
    return f"{values[0]} or {len(values) - 1} others"


def undertrained(history: pl.DataFrame) -> pl.DataFrame:
    """The setups and tasks whose scores on dev still rise by more than `RISING`: setup, task, rise.

    `history` is `ReportData.history`. The rise is that between the last two evaluations, in points, as a mean
    over seeds; runs with one evaluation do not count.
    """
    run = ["setup", "task", "run"]
    last = (
        history.sort("update", maintain_order=True)
        .group_by(run, maintain_order=True)
        .agg(rise=pl.col("score").diff().last())
    )
    means = last.drop_nulls("rise").group_by("setup", "task", maintain_order=True).agg(pl.col("rise").mean())
    return means.filter(pl.col("rise") > RISING)


def undertrained_in_words(rising: pl.DataFrame) -> str:
    """The table in words: `STL (ner +8.2, dep +5.1); MTL-3 (dep +4.0)`."""
    by_setup: dict[str, list[str]] = {}
    for setup, task, rise in rising.iter_rows():
        by_setup.setdefault(setup, []).append(f"{task} {signed(rise)}")
    return "; ".join(f"{setup} ({', '.join(tasks)})" for setup, tasks in by_setup.items())

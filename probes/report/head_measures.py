"""The measures that the head explorer lists for a head, as numbers; report.js puts them in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import polars as pl

from mtl.probes.measures.groups import Measure
from mtl.probes.measures.table import MEASURES
from mtl.probes.sites import KEYS, Site
from mtl.probes.statistics.skill import REGIMES
from mtl.probes.tables.heads_table import in_texts
from mtl.probes.tables.label_scores import label_scores

TOP_LABELS = 3
"""Labels of a measure and task that are listed for a head: those farthest above chance, or from zero."""
_LABEL = ("regime", "run", "seed", "task", "label")


def head_measures(
    heads: pl.DataFrame, sites: Sequence[Site], per_site: int, measures: Sequence[Measure] = MEASURES
) -> list[dict[str, Any]]:
    """Every measure with rows, other than skill, and its values for each head, rounded as they are shown.

    `heads` has the columns of heads.parquet, and `regime`, `run`, `seed`. A measure has a `title`, the `unit`
    of `Measure`, its `regimes`, the names of the numbers `beside` a value (chance, the ends of an interval,
    probabilities) and the `rows` of its heads (task and label). For each of the `heads` it has a list of
    rows: the number of one of `rows`, and per regime `None`, a value, or a list of a value and the numbers
    beside it. Shares and points are in per cent.

    A value is the mean over the runs of a regime. If a measure has companions, every seed has a row of its
    own, since an interval belongs to one run. If several runs of a regime have the same seed, the row is
    their mean without an interval. If a run has rows of several choices (such as epochs), the last one is
    shown.
    """
    listed = []
    for measure in measures:
        if measure.skill:
            continue
        rows = _rows(heads, measure)
        if rows.height:
            listed.append(_listed(measure, rows, sites, per_site))
    return listed


def skill_titles(heads: pl.DataFrame, measures: Sequence[Measure] = MEASURES) -> list[str]:
    """The tasks, the title and the chance level of each measure of skill that has rows."""
    tasks = dict(
        heads.group_by("measure", maintain_order=True)
        .agg(pl.col("task").unique(maintain_order=True))
        .iter_rows()
    )
    return [
        f"{', '.join(tasks[measure.name])}: {measure.title}; chance: {measure.chance_title}"
        for measure in measures
        if measure.skill and measure.name in tasks
    ]


def _rounded(measure: Measure, name: str, value: float | None) -> float | None:
    """A number with the digits that are shown; shares and points are rounded to a tenth of a per cent."""
    if value is None or not math.isfinite(value):
        return None
    if name in ("p", "q"):
        return round(value, 3) if value >= 0.001 else float(f"{value:.0e}")
    if measure.unit == "number":
        return float(f"{value:.3g}")
    return round(100 * value if measure.unit == "share" else value, 1) + 0.0


def _rows(heads: pl.DataFrame, measure: Measure) -> pl.DataFrame:
    """A measure's rows, beside chance and companions: the last row of each run, task, label and head.

    If the measure has a chance level, only labels that count are included (`label_scores`).
    """
    cell = [*_LABEL, *KEYS]

    def of(name: str | None) -> pl.DataFrame:
        rows = heads.filter(pl.col("measure").is_in([name] if name else []))
        return rows.group_by(cell, maintain_order=True).last()

    rows = of(measure.name).drop_nulls("head")
    if measure.chance is None:
        rows = rows.with_columns(chance=pl.lit(None, dtype=pl.Float64))
    else:
        scores = label_scores(pl.concat([rows, of(measure.chance)]), {measure.name: measure.chance})
        rows = scores.filter("counted").drop("above", "counted")
    for name in measure.companions:
        companion = of(name).drop_nulls("head").select(*cell, pl.col("value").alias(name))
        rows = rows.join(companion, on=cell, how="left", maintain_order="left")
    return rows


def _listed(measure: Measure, rows: pl.DataFrame, sites: Sequence[Site], per_site: int) -> dict[str, Any]:
    cell = ["task", "label", *KEYS]
    if measure.companions:
        # Runs of several setups may have one seed; a mean over them has no interval of its own.
        alone = pl.when(pl.len() == 1).then(pl.col(measure.companions).first())
        rows = rows.group_by("regime", "seed", *cell, maintain_order=True).agg(
            pl.col("value", "chance").mean(), alone
        )
    else:
        rows = (
            rows.group_by("regime", *cell, maintain_order=True)
            .agg(pl.col("value", "chance").mean())
            .with_columns(seed=pl.lit(None, dtype=pl.Int64))
        )
    rows = in_texts(rows)
    above = pl.col("value") - pl.col("chance") if measure.chance else pl.col("value").abs()
    of_label = rows.group_by(cell, maintain_order=True).agg(above=above.fill_nan(None).max())
    rank = pl.col("above").rank("ordinal", descending=True).over("task", *KEYS)
    top = of_label.filter(rank <= TOP_LABELS).sort("above", descending=True, maintain_order=True)
    rows = top.join(rows, on=cell, how="left", maintain_order="left")
    present = set(rows["regime"].unique())
    regimes = [regime for regime in REGIMES if regime in present]
    place = {site: number for number, site in enumerate(sites)}
    beside = {name: name.removeprefix(f"{measure.name}_") for name in measure.companions}
    if measure.chance:
        beside = {"chance": "chance", **beside}
    listed: dict[tuple[str, str], int] = {}
    of_heads: list[dict[int, list[Any]]] = [{} for _ in range(len(sites) * per_site)]
    for row in rows.sort(pl.col("task").rank("dense"), maintain_order=True).iter_rows(named=True):
        seed = () if row["seed"] is None else (f"seed {row['seed']}",)
        key = row["task"], ", ".join(filter(None, (row["label"], *seed)))
        values = [_rounded(measure, beside.get(name, name), row[name]) for name in ("value", *beside)]
        known = values if any(value is not None for value in values[1:]) else values[0]
        of_head = of_heads[place[Site(row["attention"], row["layer"])] * per_site + row["head"]]
        of_regime = of_head.setdefault(listed.setdefault(key, len(listed)), [None] * len(regimes))
        of_regime[regimes.index(row["regime"])] = known
    return {
        "title": measure.title + (f"; in parentheses: {measure.chance_title}" if measure.chance else ""),
        "unit": measure.unit,
        "regimes": regimes,
        "beside": list(beside.values()),
        "rows": [list(key) for key in listed],
        "heads": [[[number, *values] for number, values in of_head.items()] for of_head in of_heads],
    }

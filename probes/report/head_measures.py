"""The measures of the table that the head explorer lists for a head, as texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from mtl.probes.label_scores import label_scores
from mtl.probes.measures.table import MEASURES, Measure
from mtl.probes.report import number_format
from mtl.probes.sites import KEYS, Site
from mtl.probes.statistics.skill import REGIMES

TOP_LABELS = 3
"""Labels of a measure and task that are listed for a head: those farthest above chance, or from zero."""
_LABEL = ("regime", "run", "seed", "task", "label")


def head_measures(
    heads: pl.DataFrame, sites: Sequence[Site], per_site: int, measures: Sequence[Measure] = MEASURES
) -> list[dict[str, Any]]:
    """Every measure that has rows and is no skill: its title, regimes and rows for each head.

    `heads` has the columns of heads.parquet, and `regime`, `run`, `seed`. A row is a task, a label and a text
    per regime: the mean over its runs beside chance. Of a measure with companions every seed has a row of
    its own, since an interval is of one run; where several runs of a regime have the same seed, the row is
    their mean without an interval. Where a run has rows of several choices (such as epochs), the last one is
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
    """What the measures of skill are, with their tasks and chance levels, as far as there are rows."""
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


def value_text(measure: Measure, value: float | None, companions: Mapping[str, float | None]) -> str:
    """A value in its unit with its companions, by name: `2.1 points [0.4, 3.9], q 0.010`."""
    parts = {name.removeprefix(f"{measure.name}_"): number for name, number in companions.items()}
    low, high = (_in_unit(measure, parts.pop(end, None)) for end in ("low", "high"))
    unit = {"share": " %", "points": " points", "number": ""}[measure.unit]
    text = _in_unit(measure, value)
    text += unit if text != number_format.NONE else ""
    if number_format.NONE not in (low, high):
        text += f" [{low}, {high}]"
    for name, number in parts.items():
        text += (
            f", {name} {number_format.chance(number) if name in ('p', 'q') else _in_unit(measure, number)}"
        )
    return text


def _in_unit(measure: Measure, value: float | None) -> str:
    if measure.unit == "number":
        return number_format.significant(value)
    return number_format.number(value, 1, 100 if measure.unit == "share" else 1)


def _rows(heads: pl.DataFrame, measure: Measure) -> pl.DataFrame:
    """A measure's rows: of each run, task, label and head the last one, beside chance and companions.

    Of measures with a chance level only labels that count (`label_scores`).
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
    above = pl.col("value") - pl.col("chance") if measure.chance else pl.col("value").abs()
    of_label = rows.group_by(cell, maintain_order=True).agg(above=above.fill_nan(None).max())
    rank = pl.col("above").rank("ordinal", descending=True).over("task", *KEYS)
    top = of_label.filter(rank <= TOP_LABELS).sort("above", descending=True, maintain_order=True)
    rows = top.join(rows, on=cell, how="left", maintain_order="left")
    regimes = [regime for regime in REGIMES if regime in set(rows["regime"])]
    place = {site: number for number, site in enumerate(sites)}
    tasks = list(dict.fromkeys(rows["task"].sort()))
    texts: list[dict[tuple[str, str, int | None], dict[str, str]]] = [
        {} for _ in range(len(sites) * per_site)
    ]
    for row in rows.iter_rows(named=True):
        known = {name: row[name] for name in measure.companions if row[name] is not None}
        text = value_text(measure, row["value"], known)
        if row["chance"] is not None:
            text += f" ({_in_unit(measure, row['chance'])})"
        number = place[Site(row["attention"], row["layer"])] * per_site + row["head"]
        texts[number].setdefault((row["task"], row["label"], row["seed"]), {})[row["regime"]] = text
    return {
        "title": measure.title + (f"; in parentheses: {measure.chance_title}" if measure.chance else ""),
        "regimes": regimes,
        "heads": [
            [
                [task, ", ".join([*filter(None, [label]), *([] if seed is None else [f"seed {seed}"])])]
                + [of_regime.get(regime, "") for regime in regimes]
                for (task, label, seed), of_regime in sorted(
                    of_head.items(), key=lambda item: tasks.index(item[0][0])
                )
            ]
            for of_head in texts
        ],
    }

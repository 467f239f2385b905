"""Numbers and findings as a reader wants them."""

from __future__ import annotations

import math

import polars as pl

from probes.statistics.skill import REGIMES

NONE = "–"
LEVEL = 0.05
"""Of both sides together."""


def number(value: float | int | None, decimals: int = 1, scale: float | int = 1) -> str:
    """So many decimals, a true minus, a dash for what is not defined."""
    if value is None or not math.isfinite(value):
        return NONE
    text = f"{scale * value:,.{decimals}f}"
    return text.lstrip("-") if not text.strip("-0.") else text.replace("-", "\N{MINUS SIGN}")


def signed(value: float | int | None, decimals: int = 1, scale: float | int = 1) -> str:
    """The same with its sign; what rounds to zero has none."""
    text = number(value, decimals, scale)
    return text if text == NONE or text[0] == "\N{MINUS SIGN}" or not text.strip("0.") else f"+{text}"


def value_text(value: float | str | None) -> str:
    """A number with four digits that count, a text as it is, a dash for what is not known."""
    if value is None:
        return NONE
    return f"{value:.4g}".replace("-", "\N{MINUS SIGN}") if isinstance(value, float) else str(value)


def chance(value: float | None) -> str:
    """A probability: three decimals, or its order of magnitude."""
    if value is None or not math.isfinite(value):
        return NONE
    if value >= 0.001:
        return f"{value:.3f}"
    return "<1e-12" if value < 1e-12 else f"{value:.0e}".replace("e-0", "e-")


def head(cell: int, heads: int) -> str:
    """The name of a head, from 1 as in figures."""
    return f"L{cell // heads + 1} H{cell % heads + 1}"


def reading(more: float | None, fewer: float | None) -> str:
    """What corrected one-sided chances of more and of fewer common heads say, at `LEVEL` in both."""
    if more is not None and more <= LEVEL / 2:
        return "more than chance"
    if fewer is not None and fewer <= LEVEL / 2:
        return "fewer than chance"
    return "as by chance"


def absent(labels: pl.DataFrame) -> tuple[str, ...]:
    """Notes on labels that some regime's runs do not have, one for each task; of a table of best values."""
    notes = []
    for regime in [name for name in labels.columns if name in REGIMES]:
        for (task,), rows in labels.group_by("task", maintain_order=True):
            lacking = rows.filter(pl.col(regime).is_null())["label"].to_list()
            if len(lacking) == rows.height:
                notes.append(f"the {regime} runs have no probes of {task}")
            elif lacking:
                more = f" and {len(lacking) - 5} more" if len(lacking) > 5 else ""
                notes.append(f"the {regime} runs have no {task} label {', '.join(lacking[:5])}{more}")
    return tuple(notes)

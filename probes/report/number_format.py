"""Numbers as texts for people."""

from __future__ import annotations

import math

NONE = "–"


def number(value: float | int | None, decimals: int = 1, scale: float | int = 1) -> str:
    """A number with these decimals and a true minus sign; a dash if it is not defined."""
    if value is None or not math.isfinite(value):
        return NONE
    text = f"{scale * value:,.{decimals}f}"
    return text.lstrip("-") if not text.strip("-0.") else text.replace("-", "\N{MINUS SIGN}")


def signed(value: float | int | None, decimals: int = 1, scale: float | int = 1) -> str:
    """As `number`, also with a plus sign; a number that rounds to zero has no sign."""
    text = number(value, decimals, scale)
    return text if text == NONE or text[0] == "\N{MINUS SIGN}" or not text.strip("0.") else f"+{text}"


def sort_key(value: float | int | str | None) -> str:
    """What a table is sorted by: a number with six digits, a text unchanged, nothing if not known."""
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def value_text(value: float | str | None) -> str:
    """A number with four significant digits, a text unchanged, a dash if not known."""
    if value is None:
        return NONE
    return f"{value:.4g}".replace("-", "\N{MINUS SIGN}") if isinstance(value, float) else str(value)


def chance(value: float | None) -> str:
    """A probability with three decimals, or its order of magnitude."""
    if value is None or not math.isfinite(value):
        return NONE
    if value >= 0.001:
        return f"{value:.3f}"
    return "<1e-12" if value < 1e-12 else f"{value:.0e}".replace("e-0", "e-")

"""Values of a sweep file's keys, and what is said of bad ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mtl.errors import InputError, did_you_mean


def known(given: Mapping[str, Any], names: Sequence[str], place: str = "") -> None:
    """Raise `InputError`, with the nearest name, for a key that is none of these."""
    for name in given:
        if name not in names:
            raise InputError(
                f"{f'{place}: ' if place else ''}unknown '{name}'{did_you_mean(str(name), names)}"
            )


def count(given: Mapping[str, Any], key: str, place: str = "") -> int | None:
    """A whole number above 0, if given."""
    value = given.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{place}{key}: '{value}' is no whole number above 0")
    return value


def text(given: Mapping[str, Any], key: str) -> str | None:
    """A text that is not empty, if given."""
    value = given.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{key}: '{value}' is no text: put it in quotes, or leave {key} out")
    return value

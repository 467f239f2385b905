"""Numbers and values in messages: 1 run and 2 runs; null and true instead of Python's None and True."""

from __future__ import annotations

import json
from typing import Any


def counted(number: int, one: str, more: str | None = None) -> str:
    """A number with what it counts: 1 run, 12 runs, 1,200 runs; `more` is the plural if it is no added s."""
    return f"{number:,} {one}" if number == 1 else f"{number:,} {f'{one}s' if more is None else more}"


def as_json(value: Any, most: int = 60) -> str:
    """A value on one line, spelt as in JSON and YAML; only the first `most` characters.

    A text is in single quotes, as in all messages.
    """
    text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= most else f"{text[:most]}…"


def as_text(value: Any, most: int = 60) -> str:
    """As `as_json`, but a text has no quotes."""
    if not isinstance(value, str):
        return as_json(value, most)
    return value if len(value) <= most else f"{value[:most]}…"


def first_line(error: BaseException, most: int = 200) -> str:
    """The first line of what an error says, cut to `most` characters; its type where it says nothing."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0] if len(lines[0]) <= most else f"{lines[0][:most]}…"

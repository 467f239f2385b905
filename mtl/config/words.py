"""Configuration keys and values as words of a command line."""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_origin

from mtl.config.keys import (
    choices_of,
    hints_of,
    item_of,
    mapping_of,
    without_null,
)
from mtl.config.yaml_file import value_of

PRINT = "--print_config"


def switches_of(kind: Any) -> frozenset[str]:
    """The keys that are true or false, and need no value to be true."""
    return frozenset(name for name, hint in hints_of(kind).items() if hint is bool)


def joined(
    words: Sequence[str],
    switches: Collection[str] = (),
    lists: Collection[str] = (),
    only: Collection[str] | None = None,
) -> Iterator[str]:
    """Every option and its value as one word; with `only`, options of other names stay as they are.

    An option of `lists` takes all words up to the next option (`--against runs/*`), and comes once for each.
    """
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name = word[2:].replace("-", "_")
        alone = "=" in word or word in ("-h", "--help", PRINT) or (only is not None and name not in only)
        if not word.startswith("--") or alone:
            yield word
        elif name in switches:
            yield f"{word}={rest.pop(0) if rest and rest[0] in ('true', 'false') else 'true'}"
        elif not rest or rest[0].startswith("--"):
            yield word
        else:
            yield f"{word}={rest.pop(0)}"
            while name in lists and rest and not rest[0].startswith("--"):
                yield f"{word}={rest.pop(0)}"


def spelt(text: str, hint: Any) -> Any:
    """A value as the command line spells it: lists need no brackets but commas, Python's None is null."""
    text = as_yaml(text)
    kind, optional = without_null(hint)
    item = item_of(kind)
    if optional and text == "null":
        return None
    if (item in (str, int, float, Path) or choices_of(item)) and not text.startswith(("[", "{")):
        parts = [part.strip() for part in text.split(",")]
        return [value_of(part) for part in parts] if item in (int, float) else parts
    mapping = get_origin(hint) is dict or mapping_of(hint) is not None
    if item is not None or is_dataclass(kind) or mapping or kind in (int, float, bool):
        return value_of(text) if text.strip() else text
    return text


def as_yaml(text: str) -> str:
    """A value that Python has spelt (`None`, `{'lr': None}`), as W&B's agent does, in YAML's spelling."""
    if "None" in text:
        with suppress(ValueError, SyntaxError, TypeError):  # else it is a text with such a word in it
            return json.dumps(ast.literal_eval(text))
    return text

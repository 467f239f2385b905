"""Read a sweep file and the values of its keys; reject what YAML accepts silently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from mtl.errors import InputError, did_you_mean

_TAG = "tag:yaml.org,2002:"
_PLAIN = ("str", "int", "float", "bool", "null", "map", "seq", "merge", "value")
"""What JSON, and so W&B, has too."""


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping that a file holds.

    Raises `InputError` for an unreadable file, for a key that is given twice (YAML takes the last), for a key
    that is no text, and for dates, which W&B does not know.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; give a sweep file such as configs/sweep/penalty.yaml")
    try:
        text = path.read_text(encoding="utf-8")
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        if tree is not None:
            _check(tree, ())
        given = yaml.safe_load(text)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{path}: no YAML: {' '.join(str(error).split())}") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    if not isinstance(given, dict):
        what = "is empty" if given is None else "is no mapping"
        raise InputError(f"{path} {what}: a sweep file needs method, metric and parameters")
    return given


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


def _check(node: yaml.Node, above: tuple[yaml.Node, ...]) -> None:
    line = f"line {node.start_mark.line + 1}"
    if node in above:
        raise InputError(f"{line}: an alias contains itself")
    kind = node.tag.removeprefix(_TAG)
    if kind not in _PLAIN:
        shown = node.value if isinstance(node, yaml.ScalarNode) else "what starts here"
        raise InputError(f"{line}: YAML reads {shown} as {kind}: put it in quotes if it is a text")
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check(item, (*above, node))
    if not isinstance(node, yaml.MappingNode):
        return
    seen: set[str] = set()
    for key, value in node.value:
        line = f"line {key.start_mark.line + 1}"
        kind = key.tag.removeprefix(_TAG)
        if kind not in ("str", "merge", "value"):
            shown = f"the key {key.value}" if isinstance(key, yaml.ScalarNode) else "a key"
            raise InputError(f"{line}: YAML reads {shown} as {kind}: put it in quotes")
        if key.value in seen:
            raise InputError(f"{line}: {key.value} is given twice, of which only the last would count")
        seen.add(key.value)
        _check(value, (*above, node))

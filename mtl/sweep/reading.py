"""A sweep file's YAML, and what YAML would pass over in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from mtl.errors import InputError

_TAG = "tag:yaml.org,2002:"
_PLAIN = ("str", "int", "float", "bool", "null", "map", "seq", "merge", "value")
"""What JSON, and so W&B, has too."""


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping that a file holds.

    Raises `InputError` for an unreadable file, and for what YAML takes otherwise than it looks: a key that
    stands twice (the last would count), a key that is no text, and dates, which W&B does not know.
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


def _check(node: yaml.Node, above: tuple[yaml.Node, ...]) -> None:
    line = f"line {node.start_mark.line + 1}"
    if node in above:
        raise InputError(f"{line}: it holds itself, by an alias")
    kind = node.tag.removeprefix(_TAG)
    if kind not in _PLAIN:
        said = node.value if isinstance(node, yaml.ScalarNode) else "what begins here"
        raise InputError(f"{line}: YAML reads {said} as {kind}: put it in quotes if it is a text")
    if isinstance(node, yaml.SequenceNode):
        for each in node.value:
            _check(each, (*above, node))
    if not isinstance(node, yaml.MappingNode):
        return
    seen: set[str] = set()
    for key, value in node.value:
        line = f"line {key.start_mark.line + 1}"
        kind = key.tag.removeprefix(_TAG)
        if kind not in ("str", "merge", "value"):
            said = f"the key {key.value}" if isinstance(key, yaml.ScalarNode) else "a key"
            raise InputError(f"{line}: YAML reads {said} as {kind}: put it in quotes")
        if key.value in seen:
            raise InputError(f"{line}: {key.value} stands there twice, of which only the last would count")
        seen.add(key.value)
        _check(value, (*above, node))

"""Read a YAML file; refuse what YAML accepts silently, and what would never end.

YAML takes the last of two equal keys, and an alias may repeat what it names: ten lines of aliases to aliases
stand for 10^9 values. Both are looked for among the parser's events, before any value is made.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mtl.errors import InputError

DEEPEST = 50
"""Maximum depth of nested mappings and lists."""
LARGEST = 100_000
"""Maximum number of values in a file; every alias counts as what it repeats."""


SHIPPED = Path(__file__).parents[1] / "configs"
"""The configurations that come with the package: the folder `configs` at the top of the repository."""


def shipped(path: Path, command: str) -> Path:
    """The file that comes with the package for a name (`joint`) or a path (`configs/joint.yaml`) of one.

    Names for a command are those of the folder that has its name (`study`, `sweep`), else of the top folder.
    A file or folder of this path goes before. Without either, the path is returned as it is.
    """
    if path.exists() or path.is_absolute():
        return path
    inside = Path(*path.parts[1:]) if path.parts[:1] == ("configs",) else _folder(command) / f"{path}.yaml"
    return SHIPPED / inside if (SHIPPED / inside).is_file() else path


def _folder(command: str) -> Path:
    return Path(command if (SHIPPED / command).is_dir() else "")


def read_mapping(path: Path, command: str | None = None) -> dict[str, Any]:
    """The mapping in a YAML file; raises `InputError` with file and line for anything else.

    For a command, the path may be the name of a configuration that comes with the package (`shipped`).
    """
    if command is not None:
        path = shipped(path, command)
    if path.is_dir():
        raise InputError(f"{path} is a folder: give a YAML file")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        names = sorted(file.stem for file in (SHIPPED / _folder(command)).glob("*.yaml")) if command else []
        known = f"; configurations that come with mtl are {', '.join(names)}" if names else ""
        raise InputError(f"{path}: no such file{known}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no UTF-8 text (byte {error.start}): save it as UTF-8") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    try:
        check_text(text)
        values = yaml.load(text, _Loader)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        fault = "is empty" if values is None else "holds no keys"
        raise InputError(f"{path} {fault}: write a line KEY: VALUE for every setting")
    return values


def value_of(text: str) -> Any:
    """The value of a piece of YAML; the text itself if it is no YAML."""
    try:
        check_text(text)
        return yaml.load(text, _Loader)
    except InputError:
        raise
    except (yaml.YAMLError, ValueError):
        return text


class _Loader(yaml.SafeLoader):
    """YAML's plain values, with numbers as YAML 1.2 has them (1e-3; 030 is thirty), and without dates."""


class _Dumper(yaml.SafeDumper):
    """Puts texts into quotes that `_Loader` or YAML 1.1 would take for something else."""


_Loader.yaml_implicit_resolvers = {
    start: [
        (tag, pattern) for tag, pattern in resolvers if not tag.endswith((":timestamp", ":float", ":int"))
    ]
    for start, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_NUMBERS = {
    "tag:yaml.org,2002:float": re.compile(
        r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9]+|[0-9][0-9_]*(?=[eE]))(?:[eE][-+]?[0-9]+)?$"
        r"|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$"
    ),
    "tag:yaml.org,2002:int": re.compile(r"[-+]?[0-9][0-9_]*$|[-+]?0x[0-9a-fA-F_]+$"),
}
for _tag, _pattern in _NUMBERS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_tag, _pattern, list("-+0123456789."))


def _whole_number(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = node.value.replace("_", "")
    return int(text, 16 if "x" in text else 10)


_Loader.add_constructor("tag:yaml.org,2002:int", _whole_number)


def dump(values: Any) -> str:
    """Plain values as YAML, which `read_mapping` gives back."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


@dataclass
class _Open:
    """A mapping or list whose end has not come yet."""

    is_mapping: bool
    anchor: str | None
    size: int = 1
    keys: set[str] = field(default_factory=set)
    at_key: bool = True


def check_text(text: str) -> None:
    """Raise `InputError`, with the line, for a key given twice, deep nesting, and a large expansion."""
    stack: list[_Open] = [_Open(False, None)]
    sizes: dict[str, int] = {}
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = f"line {event.start_mark.line + 1 if event.start_mark else '?'}"
        if isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            stack.append(_Open(isinstance(event, yaml.MappingStartEvent), event.anchor))
            if len(stack) > DEEPEST + 1:
                raise InputError(f"{line}: more than {DEEPEST} mappings and lists inside each other")
            continue
        if isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            ended = stack.pop()
            size, anchor = ended.size, ended.anchor
        elif isinstance(event, yaml.ScalarEvent):
            size, anchor = 1, event.anchor
            _note_key(stack[-1], event.value, line)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise InputError(f"{line}: *{event.anchor} names nothing above it, or holds itself")
            size, anchor = sizes[event.anchor], None
        else:
            continue
        inner = stack[-1]
        inner.size += size
        inner.at_key = not inner.at_key
        if anchor is not None:
            sizes[anchor] = size
        if inner.size > LARGEST:
            raise InputError(f"{line}: with its aliases, the file has more than {LARGEST:,} values")


def _note_key(inner: _Open, key: str, line: str) -> None:
    if not (inner.is_mapping and inner.at_key):
        return
    if key in inner.keys:
        raise InputError(f"{line}: the key {key} is given twice, of which only the last would count")
    inner.keys.add(key)

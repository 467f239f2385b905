"""Read a YAML file; refuse what YAML accepts silently, and what would never end.

YAML takes the last of two equal keys, and an alias may repeat what it names: ten lines of aliases to aliases
stand for 10^9 values. Both are looked for while nodes are composed, before any value is made.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from mtl.config.keys import Key
from mtl.errors import InputError

DEEPEST = 50
"""Maximum depth of nested mappings and lists."""
LARGEST = 100_000
"""Maximum number of values in a file; every alias counts as what it repeats."""
_DIGITS = 1_000
"""Maximum number of digits of a whole number; Python refuses to write one of more than 4,300."""
SHIPPED = Path(__file__).parent / "shipped"
"""The configurations that come with the package: the folder `configs` at the top of the repository."""


def shipped(path: Path, command: str) -> Path:
    """The file that comes with the package for a name (`joint`) or a path (`configs/joint.yaml`) of one.

    Names for a command are those of the folder that has its name (`study`, `sweep`), else of the top folder.
    A file or folder at this path takes precedence. Without either, the path is returned as it is.
    """
    if path.exists() or path.is_absolute():
        return path
    inside = Path(*path.parts[1:]) if path.parts[:1] == ("configs",) else _folder(command) / f"{path}.yaml"
    return SHIPPED / inside if (SHIPPED / inside).is_file() else path


def _folder(command: str) -> Path:
    return Path(command if (SHIPPED / command).is_dir() else "")


def read_mapping(path: Path, command: str | None = None, with_places: bool = False) -> dict[str, Any]:
    """The mapping in a YAML file; raises `InputError` with file and line for anything else.

    For a command, the path may be the name of a configuration that comes with the package (`shipped`).
    `with_places` makes each key a `Key` with file and line.
    """
    if command is not None:
        path = shipped(path, command)
    if path.is_dir():
        raise InputError(f"{path} is a folder: use a YAML file")
    try:
        text = path.read_text(encoding="utf-8-sig")
        values = _loaded(text, f"{path}: " if with_places else None)
    except FileNotFoundError:
        names = sorted(file.stem for file in (SHIPPED / _folder(command)).glob("*.yaml")) if command else []
        known = f"; configurations that come with mtl are {', '.join(names)}" if names else ""
        raise InputError(f"{path}: no such file{known}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no UTF-8 text (byte {error.start}): save it as UTF-8") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
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
        return _loaded(text)
    except InputError:
        raise
    except (yaml.YAMLError, ValueError):
        return text


def _loaded(text: str, place: str | None = None) -> Any:
    loader = _Loader(text, place)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    """YAML's plain values, with numbers as YAML 1.2 has them (1e-3; 030 is thirty), and without dates.

    Raises `InputError`, with the line, for a key given twice, deep nesting, and a large expansion.
    """

    def __init__(self, text: str, place: str | None = None) -> None:
        super().__init__(text)
        self._place = place
        self._sizes: dict[int, int] = {}
        self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """A node as PyYAML composes it from the parser's events; no value has been made yet."""
        event: Any = self.peek_event()
        line = f"line {event.start_mark.line + 1}"
        if isinstance(event, yaml.AliasEvent):
            if id(self.anchors.get(event.anchor)) not in self._sizes:
                raise InputError(f"{line}: *{event.anchor} names nothing above it, or holds itself")
            return super().compose_node(parent, index)
        if self._depth == DEEPEST and not isinstance(event, yaml.ScalarEvent):
            raise InputError(f"{line}: more than {DEEPEST} mappings and lists inside each other")
        self._depth += 1
        node: Any = super().compose_node(parent, index)
        self._depth -= 1
        inner = [] if isinstance(node, yaml.ScalarNode) else node.value
        if isinstance(node, yaml.MappingNode):
            self._read_keys([name for name, _ in inner if isinstance(name, yaml.ScalarNode)])
            inner = [part for pair in inner for part in pair]
        self._sizes[id(node)] = 1 + sum(self._sizes[id(part)] for part in inner)
        if self._sizes[id(node)] > LARGEST:
            raise InputError(f"{line}: with its aliases, the file has more than {LARGEST:,} values")
        return node

    def _read_keys(self, names: Sequence[yaml.ScalarNode]) -> None:
        known: set[str] = set()
        for name in names:
            line = name.start_mark.line + 1
            if name.value in known:
                raise InputError(
                    f"line {line}: the key {name.value} is given twice, of which only the last would count"
                )
            known.add(name.value)
            if self._place is not None:
                name.value = Key(name.value).placed(f"{self._place}line {line}: ")


class _Dumper(yaml.SafeDumper):
    """Quotes texts that `_Loader` or YAML 1.1 would take for something else."""


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
    if len(text) > _DIGITS:
        line = node.start_mark.line + 1
        raise ValueError(f"line {line}: a number longer than {_DIGITS:,} digits")
    return int(text, 16 if "x" in text else 10)


_Dumper.add_representer(Key, yaml.SafeDumper.represent_str)
_Loader.add_constructor("tag:yaml.org,2002:int", _whole_number)


def dump(values: Any) -> str:
    """Plain values as YAML, which `read_mapping` gives back."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)

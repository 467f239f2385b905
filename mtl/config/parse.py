"""Configuration files and dotted keys, made into typed values; YAML that is refused.

pydantic checks each value against the type of its key. Its messages name classes and are not shown: a refused
value is described here by its key and type.

YAML takes the last of two equal keys, and an alias may repeat what it names: ten lines of aliases to aliases
stand for 10^9 values. Both are looked for while nodes are composed, before any value is made.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Generic, Literal, TypeVar, Union, cast, get_args, get_origin

import yaml

from mtl.config.effective import plain
from mtl.config.instances import completed, in_place, whole_of, without_short_form
from mtl.config.keys import (
    Key,
    KeyFault,
    NotEmpty,
    at,
    below,
    group_of,
    hint_of,
    hints_of,
    item_of,
    known_keys_of,
    literal_values,
    mapping_types,
    marks_of,
    remembered,
    unknown,
    without_null,
)
from mtl.config.schema import ALIASES, TrainConfig
from mtl.errors import InputError, did_you_mean
from mtl.tasks.in_words import as_text, counted
from mtl.tasks.task import Range

PRINT = "--print_config"


T = TypeVar("T")


def configured(program: str, kind: type[T], words: Sequence[str], options: Collection[str] = ()) -> T:
    """A configuration object from YAML files and dotted keys (`Words`)."""
    return Words(program, kind, list(joined_options(words, switches_of(kind))), options).configured()


@dataclass(frozen=True)
class Words(Generic[T]):
    """YAML files and dotted keys on a command line, which make a configuration; later ones win over earlier
    ones."""

    program: str
    kind: type[T]
    words: Sequence[str]
    """Each a file, or a key with its value."""
    options: Collection[str] = ()
    """The command's other options, with which a misspelt key is compared, too."""

    @property
    def files(self) -> list[str]:
        """The files, with or without `--config`."""
        return [word.removeprefix("--config=") for word in self.words if _is_file(word)]

    def configured(self) -> T:
        """The configuration."""
        return self.as_given()[0]

    def as_given(self) -> tuple[T, dict[str, Any]]:
        """The configuration, and the values that files and keys give, without defaults.

        `--print_config` prints the configuration and ends the program.
        """
        values = self._read()
        made = in_range(object_of(self.kind, values), values)
        if isinstance(made, TrainConfig):
            _require_trained(made, self.words)
        if PRINT in self.words:
            settings = plain(asdict(cast(Any, made)))  # `kind` is a dataclass, which `type[T]` does not say
            print(dump(settings), end="")
            raise SystemExit(0)
        return made, values

    def _read(self) -> dict[str, Any]:
        """The given values; keys from files have their places (`Key`)."""
        values: dict[str, Any] = {}
        for word in self.words:
            key, is_given, text = word.lstrip("-").partition("=")
            if word == PRINT:
                continue
            if _is_file(word):
                path, command = Path(word.removeprefix("--config=")), self.program.removeprefix("mtl ")
                values = _over(values, _file(self.kind, path, command), self.kind)
                continue
            key = full_key(self.kind, ALIASES.get(key, key))
            hint = hint_of(self.kind, key, self.options)
            if not word.startswith("--") or not is_given:
                raise InputError(
                    f"{word} is no option with a value: write --{key}=VALUE; see {self.program} --help"
                )
            *above, last = key.split(".")
            new = _at([*above, Key(last)], spelt(text, hint))
            values = _listed(self.kind, _over(values, new, self.kind))
        return values


def _is_file(word: str) -> bool:
    return not word.startswith("-") or word.startswith("--config=")


def _require_trained(config: TrainConfig, words: Sequence[str]) -> None:
    """Raise `InputError` for a key `--tasks.NAME.…` if neither the task nor a half of it is trained."""
    trained = {*config.tasks, *map(whole_of, config.tasks)}
    for word in words:
        first, *rest = word.partition("=")[0].split(".")
        if first == "--tasks" and rest and rest[0] not in trained:
            every = ",".join([*config.tasks, rest[0]])
            raise InputError(f"{word}: {rest[0]} is not trained: name the tasks, as in --tasks=[{every}]")


def full_key(kind: type, key: str) -> str:
    """The dotted key that a key of the short form of tasks stands for; any other key as it is."""
    prefix = section_of(kind)
    if prefix is None or not key.startswith(prefix):
        return key
    return prefix + in_place(key.removeprefix(prefix))


def _file(kind: type, path: Path, command: str | None = None) -> dict[str, Any]:
    """The values in a YAML file; keys have their places. For a section that is a training's configuration,
    the file may name another one, as `mtl train` takes it."""
    values = read_mapping(path, command, with_places=True)
    section = (section_of(kind) or "").removesuffix(".")
    if isinstance(named := values.get(section), str):
        values[section] = read_mapping(Path(named), "train", with_places=True)
    return _listed(kind, values)


def _listed(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    """The values with tasks as a list of names, in a training's configuration or a section that is one."""

    def short(section: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return without_short_form(section)
        except KeyFault as fault:
            raise refused([fault], section) from fault

    return by_section(kind, values, short)


class _Path(dict[str, Any]):
    """A value at a dotted key; a mapping that it is laid over keeps its other keys."""


def _at(path: Sequence[str], value: Any) -> Any:
    for name in reversed(path):
        value = _Path({name: value})
    return value


def _over(old: Any, new: Any, hint: Any) -> Any:
    """A value over the one that is there; a group of keys keeps those that the new one lacks."""
    added = isinstance(new, _Path) or (isinstance(new, Mapping) and group_of(hint))
    if not (added and isinstance(old, Mapping)):
        return new
    kept = {name: value for name, value in old.items() if name not in new}  # a new value brings its own key
    return kept | {name: _over(old.get(name), value, below(hint, name)) for name, value in new.items()}


def changed(kind: type[T], values: Mapping[str, Any], changes: Mapping[str, Any], where: str) -> T:
    """An object of a dataclass from nested plain values, with others at dotted keys.

    A group keeps the keys that its new value lacks. Raises `InputError`, which starts with `where`, for
    unknown keys and values of other types.
    """
    for key, value in changes.items():
        try:
            key = full_key(kind, key)
            hint_of(kind, key)
            values = _over(values, _at(key.split("."), plain(value)), kind)
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
    return object_of(kind, values, f"{where}: ")


def read_configuration(kind: type[T], path: Path) -> T:
    """A configuration object from a YAML file that holds all of it."""
    return object_of(kind, _file(kind, path), f"{path}: ")


@remembered
def switches_of(kind: Any) -> frozenset[str]:
    """The dotted keys that are true or false, and need no value to be true."""
    return frozenset(key for key in known_keys_of(kind) if hint_of(kind, key) is bool)


_BOOLEANS = ("true", "false", "yes", "no", "on", "off")


def joined_options(
    words: Sequence[str],
    switches: Collection[str] = (),
    lists: Collection[str] = (),
) -> Iterator[str]:
    """Every option and its value as one word.

    An option of `lists` takes all words up to the next option (`--against runs/*`), and is repeated for each.
    """
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name = word[2:].replace("-", "_").replace("tasks.", "")  # the short form: tasks.dep.projective
        if not word.startswith("--") or "=" in word or word == PRINT:
            yield word
        elif name in switches:
            yield f"{word}={rest.pop(0) if rest and rest[0].lower() in _BOOLEANS else 'true'}"
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
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if any(get_origin(each) is Literal and text in get_args(each) for each in kinds):
        return text
    if item is not None and not is_dataclass(item) and not text.startswith(("[", "{")):
        parts = [part.strip() for part in text.split(",")]
        return [value_of(part) for part in parts] if item in (int, float) else parts
    as_it_is = kind in (str, Path) or (item is None and literal_values(kind)) or not text.strip()
    return text if as_it_is else value_of(text)


def as_yaml(text: str) -> str:
    """A value that Python has spelt (`None`, `{'lr': None}`), as W&B's agent does, in YAML's spelling."""
    if "None" in text:
        with suppress(ValueError, SyntaxError, TypeError):  # else it is a text that contains the word
            return json.dumps(ast.literal_eval(text))
    return text


Change = Callable[[Mapping[str, Any]], dict[str, Any]]


def configuration_from(kind: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """An object of a dataclass from nested plain values, with numbers in their ranges; an error message
    starts with `where`."""
    where = f"{where}: " if where else ""
    return in_range(object_of(kind, values, where), values, where)


def in_range(made: T, values: Mapping[str, Any], where: str = "") -> T:
    """Return the object made from the values; raise `InputError` for numbers out of their ranges."""
    faults = [KeyFault(line.partition("=")[0], line) for line in out_of_range(made)]
    if faults:
        raise refused(faults, values, where)
    return made


def range_of(kind: Any, name: str) -> Range | None:
    """The range of a dataclass's field; `None`: any finite number."""
    return next((mark for mark in marks_of(kind)[name] if isinstance(mark, Range)), None)


def out_of_range(settings: Any, prefix: str = "") -> Iterator[str]:
    """A line for each number of a dataclass's object that is out of its range; the dotted key comes first."""
    for name in marks_of(type(settings)):
        value, allowed = getattr(settings, name), range_of(type(settings), name)
        inner: dict[str, Any] = {"": value}
        if isinstance(value, Mapping):
            inner = {f".{key}": each for key, each in value.items()}
        elif isinstance(value, list | tuple):
            inner = {f"[{number}]": each for number, each in enumerate(value)}
        for place, each in inner.items():
            key = f"{prefix}{name}{place}"
            if is_dataclass(each):
                yield from out_of_range(each, f"{key}.")
            elif each == "" and any(isinstance(mark, NotEmpty) for mark in marks_of(type(settings))[name]):
                yield f"{key}= is empty: name a folder, or leave it out"
            elif not isinstance(each, int | float) or isinstance(each, bool):
                continue
            elif allowed is not None and each not in allowed:
                yield f"{key}={_short(each)}: use {allowed.wanted()}"
            elif isinstance(each, float) and not math.isfinite(each):
                yield f"{key}={each}: use a finite number"


def _short(value: int | float) -> str:
    """A number in at most 20 characters."""
    text = str(value)
    return text if len(text) <= 20 else f"{text[:12]}… ({counted(len(text), 'digit')})"


def object_of(kind: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """An object of a dataclass; a message starts with the place of its key (`Key`), or with `where`."""
    from pydantic import ValidationError

    values = by_section(kind, values, completed)
    try:
        return cast(T, _validator(kind).validate_python(values, extra="forbid"))
    except ValidationError as error:
        faults = [_fault(kind, values, each) for each in error.errors(include_url=False)]
        raise refused(faults, values, where) from error


def refused(faults: Sequence[KeyFault], values: Mapping[str, Any], where: str = "") -> InputError:
    """The error for the first fault of values; it starts with the place of its key, or with `where`.

    Faults of tasks with names of their own come last, since their values may be those of other keys (of
    `dep~a` those of `dep`).
    """
    fault = min(faults, key=lambda each: each.key.startswith("instances."))
    return InputError(f"{_place_of(fault.key, values) or where}{fault}")


def _place_of(key: str, values: Any) -> str:
    """The place of a dotted key of values, or of the group that it is in; empty without one."""
    place = ""
    for part in key.replace("[", ".").replace("]", "").split("."):
        names = {str(name): name for name in values} if isinstance(values, Mapping) else {}
        if part in names:
            place = getattr(names[part], "place", place)
            values = values[names[part]]
        elif isinstance(values, list) and part.isdigit():
            values = values[int(part)]
    return place


def section_of(kind: type) -> str | None:
    """The prefix of a training's keys in a configuration of this type; `None`: it holds no training."""
    groups = (f"{name}." for name, hint in hints_of(kind).items() if hint is TrainConfig)
    return "" if kind is TrainConfig else next(groups, None)


def by_section(kind: type, values: Mapping[str, Any], change: Change) -> dict[str, Any]:
    """The values, with the training's configuration among them changed."""
    prefix = section_of(kind)
    section = values.get(prefix[:-1]) if prefix else values
    if prefix is None or not isinstance(section, Mapping):
        return dict(values)
    made = change(section)
    return {**values, prefix[:-1]: made} if prefix else made


@remembered
def _validator(kind: Any) -> Any:
    """pydantic's validator of a dataclass, which refuses unknown keys and converts no value to another type,
    except quoted numbers, and whole numbers where any number is wanted."""
    from pydantic import TypeAdapter
    from pydantic_core import SchemaValidator
    from pydantic_core.core_schema import no_info_before_validator_function

    def strict(part: Any) -> Any:
        if isinstance(part, list | tuple):
            return type(part)(map(strict, part))
        if not isinstance(part, dict):
            return part
        kept = ("default", "serialization", "metadata")
        made: Any = {key: value if key in kept else strict(value) for key, value in part.items()}
        if made.get("type") not in ("int", "float", "bool", "str"):
            return made
        made["strict"] = True
        return made if made["type"] == "str" else no_info_before_validator_function(_unquoted, made)

    return SchemaValidator(strict(TypeAdapter(kind).core_schema))


def _unquoted(value: Any) -> Any:
    return value_of(value) if isinstance(value, str) and value.strip() else value


def _fault(kind: Any, value: Any, error: Mapping[str, Any]) -> KeyFault:
    """What is wrong with a value, from one of pydantic's errors."""
    key, hint = "", kind
    for part in error["loc"]:
        if group_of(hint) is None:
            break
        group = key
        key = f"{key}[{part}]" if isinstance(part, int) else f"{key}.{part}".lstrip(".")
        known = known_keys_of(group_of(hint))
        hint = below(hint, part)
        if hint is None:
            return unknown(key, [f"{group}.{name}".lstrip(".") for name in known], "; see --help")
        value = value.get(part) if isinstance(value, Mapping) else value[part]
    if error["type"] == "missing":
        return at(key, " is missing")
    if error["type"] == "value_error":  # of a dataclass that checks its own values
        cause = error["ctx"]["error"]
        key = f"{key}.{cause.key}".lstrip(".") if isinstance(cause, KeyFault) else key
        return KeyFault(key, f"{key}: {cause}" if key and not isinstance(cause, InputError) else str(cause))
    return KeyFault(".".join(map(str, error["loc"])), refusal(key, hint, value))


def refusal(key: str, kind: Any, value: Any) -> str:
    """The message on a value that does not fit its key's type."""
    hint, optional = without_null(kind)
    shown, item, choices = as_text(value), item_of(hint), literal_values(hint)
    names = literal_values((mapping_types(hint) or (None,))[0])
    if value is None:
        message = " cannot be null: set a value, or leave it out"
    elif is_dataclass(hint):
        message = f" holds other keys, and cannot be '{shown}'; set {key}.KEY"
    elif isinstance(value, Mapping) and names and (odd := [name for name in value if name not in names]):
        return str(unknown(f"{key}.{odd[0]}", [f"{key}.{name}" for name in names]))
    elif item is not None and not isinstance(value, list | tuple):
        message = f": expected a list, for instance --{key}=[{shown.strip('[]')}], not {shown}"
    elif choices:
        odd = [value] if item is None else [name for name in value if name not in choices]
        choose = f": choose from {', '.join(choices)}"
        message = f": unknown '{as_text(odd[0])}'{did_you_mean(str(odd[0]), choices, choose)}"
    else:
        expected = _described(hint)
        null = (", or null" if ", or " in expected else " or null") if optional else ""
        given = f"[{', '.join(map(as_text, value))}]" if isinstance(value, list | tuple) else repr(shown)
        message = f": expected {expected}{null}, not {given}"
    return f"{key}{message}"


_TYPES: dict[Any, str] = {
    int: "a whole number", float: "a number", bool: "true or false", str: "a text (in quotes)",
    Path: "a path",
}  # fmt: skip


def _described(hint: Any) -> str:
    """A type in words."""
    if get_origin(hint) is Literal:
        return " or ".join(map(str, get_args(hint)))
    if get_origin(hint) in (dict, list, tuple):
        what = "KEY: VALUE pairs, each value" if get_origin(hint) is dict else "a list, each"
        return f"{what} {_described(item_of(hint) or get_args(hint)[1])}"
    if get_origin(hint) in (Union, UnionType):
        return ", or ".join(_described(part) for part in get_args(hint) if part is not type(None))
    return _TYPES.get(hint, str(hint))


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

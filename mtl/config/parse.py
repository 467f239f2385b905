"""Configuration files and dotted keys, made into typed values by pydantic.

pydantic checks each value against the type of its key. Its messages are in its own terms, so that they are
not shown: a refused value is described here by its key and type.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_origin

from mtl.config.effective import plain, with_older_defaults
from mtl.config.instances import in_place, listed, whole_of
from mtl.config.keys import (
    KeyFault,
    choices_of,
    hint_of,
    hints_of,
    item_of,
    known_keys_of,
    mapping_of,
    remembered,
    without_null,
)
from mtl.config.presets import completed
from mtl.config.ranges import out_of_range
from mtl.config.schema import ALIASES, TrainConfig
from mtl.config.yaml_file import dump, read_located, value_of
from mtl.errors import InputError, did_you_mean
from mtl.registries import names
from mtl.tasks.in_words import as_text

T = TypeVar("T")

_PRINT = "--print_config"


def configured(program: str, kind: type[T], words: Sequence[str], options: type | None = None) -> T:
    """A configuration object from YAML files and dotted keys; later ones win over earlier ones.

    The names of the command's other `options` are known, too, when a misspelt key is looked up. With
    `--print_config` the configuration is printed, and the program ends.
    """
    values, places = _read(program, kind, words, options)
    made = _made(kind, values, places)
    for fault in sorted(out_of_range(made), key=_is_derived):
        raise InputError(f"{_place(fault.partition('=')[0], places)}{_as_written(fault)}")
    if isinstance(made, TrainConfig):
        _require_trained(made, words)
    if _PRINT in words:
        settings = plain(asdict(cast(Any, made)))  # `kind` is a dataclass, which `type[T]` does not say
        print(dump(settings), end="")
        raise SystemExit(0)
    return made


def _require_trained(config: TrainConfig, words: Iterable[str]) -> None:
    """Raise `InputError` for a key `--tasks.NAME.…` of a task of which nothing is trained."""
    trained = {*config.tasks, *map(whole_of, config.tasks)}
    for word in words:
        first, *rest = word.lstrip("-").partition("=")[0].split(".")
        if first == "tasks" and rest and rest[0] not in trained:
            every = ",".join([*config.tasks, rest[0]])
            raise InputError(f"{word}: {rest[0]} is not trained: name the tasks, as in --tasks=[{every}]")


def given_values(
    program: str, kind: type[T], words: Sequence[str], options: type | None = None
) -> dict[str, Any]:
    """The values that YAML files and dotted keys give, nested and unchecked; defaults are not among them."""
    return _read(program, kind, words, options)[0]


def _read(
    program: str, kind: type, words: Sequence[str], options: type | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """The values that are given, and by dotted key the file and line of those from files."""
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    others = [field.name for field in fields(options)] if options else []
    for word in joined(words, switches_of(kind)):
        key, is_given, text = word.lstrip("-").partition("=")
        if word == _PRINT:
            continue
        if not word.startswith("-") or word.startswith("--config="):
            path = text if word.startswith("-") else word
            given, located = _file(kind, Path(path), program.removeprefix("mtl "))
            values = _over(values, given, kind)
            places |= located
            continue
        key = placed(kind, ALIASES.get(key, key))
        hint = hint_of(kind, key, others)
        if not word.startswith("--") or not is_given:
            raise InputError(f"{word} is no option with a value: write --{key}=VALUE; see {program} --help")
        values = _listed(kind, _with(values, key.split("."), spelt(text, hint), hint), {})
        places = {other: place for other, place in places.items() if not f"{other}.".startswith(f"{key}.")}
        places[key] = ""
    return values, places


def placed(kind: type, key: str) -> str:
    """The dotted key that one of the short form of tasks stands for, also in a section; others stay."""
    for prefix in _sections(kind):
        if key.startswith(prefix):
            return prefix + in_place(key.removeprefix(prefix))
    return key


def _sections(kind: type) -> list[str]:
    """What keys of a training's configuration begin with in a configuration of this type."""
    if kind is TrainConfig:
        return [""]
    return [f"{name}." for name, hint in hints_of(kind).items() if hint is TrainConfig]


def _file(kind: type, path: Path, command: str | None = None) -> tuple[dict[str, Any], dict[str, str]]:
    """The values in a YAML file, and by dotted key the file and line of each."""
    given, lines = read_located(path, command)
    places = {key: f"{path}: line {line}: " for key, line in lines.items()}
    presets = tuple(f"{prefix}{name}." for prefix in _sections(kind) for name in names("presets"))
    places |= {placed(kind, key): place for key, place in places.items() if key.startswith(presets)}
    return _listed(kind, given, places), places


def _listed(kind: type, values: dict[str, Any], places: dict[str, str]) -> dict[str, Any]:
    """The values with tasks as a list of names, in a training's configuration and in one inside of another.

    The places of the short form's keys are added under the keys that they are moved to.
    """
    for prefix in _sections(kind):
        section = values.get(prefix[:-1]) if prefix else values
        if not isinstance(section, Mapping):
            continue
        try:
            made, moved = listed(section)
        except KeyFault as fault:
            raise InputError(f"{_place(f'{prefix}{fault.key}', places)}{fault}") from fault
        values = {**values, prefix[:-1]: made} if prefix else made
        for old, new in moved.items():
            before, after = f"{prefix}{old}", f"{prefix}{new}"
            under = [key for key in places if f"{key}.".startswith(f"{before}.")]
            places.update({after + key.removeprefix(before): places[key] for key in under})
    return values


def _over(old: Any, new: Any, hint: Any) -> Any:
    """A value over the one that is there; a group of keys keeps those that the new one lacks."""
    group, _ = without_null(hint)
    named = mapping_of(group)
    inner = None if named is None or not is_dataclass(named[1]) else named[1]
    if not ((inner or is_dataclass(group)) and isinstance(old, Mapping) and isinstance(new, Mapping)):
        return new
    hints = hints_of(group)
    return {
        **old,
        **{name: _over(old.get(name), value, inner or hints.get(name)) for name, value in new.items()},
    }


def _with(old: Any, path: Sequence[str], value: Any, hint: Any) -> Any:
    """The nested values with another one at a path, whose type is `hint`."""
    if not path:
        return _over(old, value, hint)
    inner = old if isinstance(old, Mapping) else {}
    return {**inner, path[0]: _with(inner.get(path[0]), path[1:], value, hint)}


def changed(kind: type[T], values: Mapping[str, Any], changes: Mapping[str, Any], where: str) -> T:
    """An object of a dataclass from nested plain values, with others at dotted keys.

    A group keeps the keys that its new value lacks. Raises `InputError`, which starts with `where`, for
    unknown keys and values of other types.
    """
    for key, value in changes.items():
        try:
            key = placed(kind, key)
            values = _with(values, key.split("."), plain(value), hint_of(kind, key))
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
    return configuration_from(kind, values, where)


def read_configuration(kind: type[T], path: Path) -> T:
    """A configuration object from a YAML file that holds all of it, perhaps written by an older version."""
    values, places = _file(kind, path)
    places = {"": f"{path}: "} | places
    return _made(kind, with_older_defaults(values) if kind is TrainConfig else values, places)


def configuration_from(kind: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """An object of a dataclass from nested plain values; an error message starts with `where`."""
    return _made(kind, values, {"": f"{where}: " if where else ""})


def _made(kind: type[T], values: Mapping[str, Any], places: Mapping[str, str]) -> T:
    """An object of a dataclass; a message starts with the place of its key, or of the group that it is in."""
    from pydantic import ValidationError

    for prefix in _sections(kind):
        section = values.get(prefix[:-1]) if prefix else values
        if isinstance(section, Mapping):
            values = {**values, prefix[:-1]: completed(section)} if prefix else completed(section)
    values = getattr(kind, "renamed", dict)(values)
    try:
        return cast(T, _validator(kind).validate_python(values))
    except ValidationError as error:
        errors = sorted(
            error.errors(include_url=False), key=lambda each: _is_derived(".".join(map(str, each["loc"])))
        )
        fault = _fault(kind, values, errors[0])
        raise InputError(f"{_place(fault.key, places)}{_as_written(str(fault))}") from error


_OF_INSTANCES = "instances."


def _is_derived(key: str) -> bool:
    """Whether the value at a dotted key may come from another key, as that of `dep~a` from `dep`."""
    return key.startswith(_OF_INSTANCES)


def _as_written(message: str) -> str:
    """A message on a task's key, with the key of the short form: `tasks.NAME.KEY`."""
    return f"tasks.{message.removeprefix(_OF_INSTANCES)}" if _is_derived(message) else message


def _place(key: str, places: Mapping[str, str]) -> str:
    """The place of a dotted key, or of the group that it is in."""
    while key and key not in places:
        key = key.rpartition("[" if key.endswith("]") else ".")[0]
    return places.get(key, "")


@remembered
def _validator(kind: Any) -> Any:
    """pydantic's validator of a dataclass: unknown keys are refused, and no value becomes one of another type
    but a quoted number, and a whole number where any number is wanted."""
    from pydantic import TypeAdapter
    from pydantic_core import SchemaValidator
    from pydantic_core.core_schema import no_info_before_validator_function

    def strict(schema: Any) -> None:
        for key, inner in schema.items() if isinstance(schema, dict) else enumerate(schema):
            if isinstance(inner, dict | list | tuple) and key not in ("default", "serialization", "metadata"):
                strict(inner)
        if not isinstance(schema, dict):
            return
        if schema.get("type") == "dataclass-args":
            schema["extra_behavior"] = "forbid"
        if schema.get("type") in ("int", "float", "bool", "str"):
            exact = {**schema, "strict": True}
            number = no_info_before_validator_function(_unquoted, cast(Any, exact))
            schema.update(exact if schema["type"] == "str" else number)

    schema = TypeAdapter(kind).core_schema
    strict(schema)
    return SchemaValidator(schema)


def _unquoted(value: Any) -> Any:
    return value_of(value) if isinstance(value, str) and value.strip() else value


def _fault(kind: Any, value: Any, error: Mapping[str, Any]) -> KeyFault:
    """What is wrong with a value, from the first of pydantic's errors."""
    key, hint = "", kind
    for part in error["loc"]:
        group, _ = without_null(hint)
        item = item_of(group)
        named = mapping_of(group)
        if named is not None and is_dataclass(named[1]):
            key, hint = f"{key}.{part}", named[1]
        elif is_dataclass(group):
            known = [f"{key}.{name}".lstrip(".") for name in known_keys_of(group)]
            key = f"{key}.{part}".lstrip(".")
            if part not in hints_of(group):
                return KeyFault(key, f"unknown key '{key}'{did_you_mean(key, known, '; see --help')}")
            hint = hints_of(group)[part]
        elif is_dataclass(item):
            key, hint = f"{key}[{part}]", item
        else:
            break
        if error["type"] == "missing" and part == error["loc"][-1]:
            return KeyFault(key, f"{key} is missing")
        value = value[part]
    if error["type"] == "value_error":  # of a dataclass that checks its own values
        cause = error["ctx"]["error"]
        key = f"{key}.{cause.key}".lstrip(".") if isinstance(cause, KeyFault) else key
        return KeyFault(key, f"{key}: {cause}" if key and not isinstance(cause, InputError) else str(cause))
    return KeyFault(key, refusal(key, hint, value))


def refusal(key: str, kind: Any, value: Any) -> str:
    """The message on a value that does not fit its key's type."""
    hint, optional = without_null(kind)
    shown = as_text(value)
    item, choices = item_of(hint), choices_of(hint)
    if value is None:
        return f"{key} cannot be null: set a value, or leave it out"
    if is_dataclass(hint):
        return f"{key} holds other keys, and cannot be '{shown}'; set {key}.KEY"
    if isinstance(value, Mapping) and (names := choices_of((mapping_of(hint) or (str,))[0])):
        odd = next((name for name in value if name not in names), None)
        if odd is not None:
            known = [f"{key}.{name}" for name in names]
            return f"unknown key '{key}.{odd}'{did_you_mean(f'{key}.{odd}', known)}"
    if item is not None and not isinstance(value, list | tuple):
        return f"{key}: expected a list, for instance --{key}=[{shown}], not {shown}"
    if choices:
        odd = value if item is None else next((name for name in value if name not in choices), value)
        choose = f": choose from {', '.join(choices)}"
        return f"{key}: unknown '{shown if item is None else odd}'{did_you_mean(str(odd), choices, choose)}"
    expected = f"a list, each {_TYPES.get(item, 'as its type says')}" if item else _described(hint)
    null = ", or null" if ", or " in expected else " or null"
    given = f"[{', '.join(map(as_text, value))}]" if isinstance(value, list | tuple) else repr(shown)
    return f"{key}: expected {expected}{null if optional else ''}, not {given}"


_TYPES: dict[Any, str] = {
    int: "a whole number", float: "a number", bool: "true or false", str: "a text (in quotes)",
    Path: "a path",
}  # fmt: skip


def _described(hint: Any) -> str:
    """A type in words."""
    if get_origin(hint) is dict:
        return f"KEY: VALUE pairs, each value {_TYPES.get(get_args(hint)[1], 'as its type says')}"
    if mapping_of(hint):
        return ", or ".join(_described(part) for part in get_args(hint) if part is not type(None))
    return _TYPES.get(hint, str(hint))


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
        alone = "=" in word or word in ("-h", "--help", _PRINT) or (only is not None and name not in only)
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

"""Configuration files and dotted keys, made into typed values by pydantic.

pydantic checks each value against the type of its key. Its messages are in its own terms, so that they are
not shown: a refused value is described here by its key and type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, cast

from mtl.config.effective import plain, with_older_defaults
from mtl.config.instances import in_place, listed, whole_of
from mtl.config.keys import (
    KeyFault,
    hint_of,
    hints_of,
    mapping_of,
    without_null,
)
from mtl.config.ranges import out_of_range
from mtl.config.schema import ALIASES, TrainConfig
from mtl.config.typed import T, as_written, configuration_from, is_derived, object_of, place_of, sections_of
from mtl.config.words import PRINT, joined, spelt, switches_of
from mtl.config.yaml_file import dump, read_located
from mtl.errors import InputError
from mtl.registries import names


def configured(program: str, kind: type[T], words: Sequence[str], options: type | None = None) -> T:
    """A configuration object from YAML files and dotted keys; later ones win over earlier ones.

    The names of the command's other `options` are known, too, when a misspelt key is looked up. With
    `--print_config` the configuration is printed, and the program ends.
    """
    values, places = _read(program, kind, words, options)
    made = object_of(kind, values, places)
    for fault in sorted(out_of_range(made), key=is_derived):
        raise InputError(f"{place_of(fault.partition('=')[0], places)}{as_written(fault)}")
    if isinstance(made, TrainConfig):
        _require_trained(made, words)
    if PRINT in words:
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
        if word == PRINT:
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
    for prefix in sections_of(kind):
        if key.startswith(prefix):
            return prefix + in_place(key.removeprefix(prefix))
    return key


def _file(kind: type, path: Path, command: str | None = None) -> tuple[dict[str, Any], dict[str, str]]:
    """The values in a YAML file, and by dotted key the file and line of each."""
    given, lines = read_located(path, command)
    places = {key: f"{path}: line {line}: " for key, line in lines.items()}
    presets = tuple(f"{prefix}{name}." for prefix in sections_of(kind) for name in names("presets"))
    places |= {placed(kind, key): place for key, place in places.items() if key.startswith(presets)}
    return _listed(kind, given, places), places


def _listed(kind: type, values: dict[str, Any], places: dict[str, str]) -> dict[str, Any]:
    """The values with tasks as a list of names, in a training's configuration and in one inside of another.

    The places of the short form's keys are added under the keys that they are moved to.
    """
    for prefix in sections_of(kind):
        section = values.get(prefix[:-1]) if prefix else values
        if not isinstance(section, Mapping):
            continue
        try:
            made, moved = listed(section)
        except KeyFault as fault:
            raise InputError(f"{place_of(f'{prefix}{fault.key}', places)}{fault}") from fault
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
    return object_of(kind, with_older_defaults(values) if kind is TrainConfig else values, places)

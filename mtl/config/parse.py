"""Configuration files and dotted keys, made into typed values."""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, cast

from mtl.config.effective import plain, with_older_defaults
from mtl.config.instances import in_place, listed, whole_of
from mtl.config.keys import (
    Key,
    KeyFault,
    below,
    choices_of,
    group_of,
    hint_of,
    hints_of,
    item_of,
    without_null,
)
from mtl.config.schema import ALIASES, TrainConfig
from mtl.config.typed import T, by_section, in_range, object_of, refused, section_of
from mtl.config.yaml_file import dump, read_mapping, value_of
from mtl.errors import InputError

PRINT = "--print_config"


def configured(program: str, kind: type[T], words: Sequence[str], options: type | None = None) -> T:
    """A configuration object from YAML files and dotted keys; later ones win over earlier ones.

    A misspelt key is compared with the names of the command's other `options`, too. `--print_config` prints
    the configuration and ends the program.
    """
    return configured_as_given(program, kind, words, options)[0]


def configured_as_given(
    program: str, kind: type[T], words: Sequence[str], options: type | None = None
) -> tuple[T, dict[str, Any]]:
    """As `configured`, and the values that files and keys give, without defaults."""
    values = _read(program, kind, words, options)
    made = in_range(object_of(kind, values), values)
    if isinstance(made, TrainConfig):
        _require_trained(made, words)
    if PRINT in words:
        settings = plain(asdict(cast(Any, made)))  # `kind` is a dataclass, which `type[T]` does not say
        print(dump(settings), end="")
        raise SystemExit(0)
    return made, values


def _require_trained(config: TrainConfig, words: Sequence[str]) -> None:
    """Raise `InputError` for a key `--tasks.NAME.…` if neither the task nor a half of it is trained."""
    trained = {*config.tasks, *map(whole_of, config.tasks)}
    for word in words:
        first, *rest = word.lstrip("-").partition("=")[0].split(".")
        if first == "tasks" and rest and rest[0] not in trained:
            every = ",".join([*config.tasks, rest[0]])
            raise InputError(f"{word}: {rest[0]} is not trained: name the tasks, as in --tasks=[{every}]")


def _read(program: str, kind: type, words: Sequence[str], options: type | None) -> dict[str, Any]:
    """The given values; keys from files have their places (`Key`)."""
    values: dict[str, Any] = {}
    for word in joined(words, switches_of(kind)):
        key, is_given, text = word.lstrip("-").partition("=")
        if word == PRINT:
            continue
        if not word.startswith("-") or word.startswith("--config="):
            path = text if word.startswith("-") else word
            values = _over(values, _file(kind, Path(path), program.removeprefix("mtl ")), kind)
            continue
        key = placed(kind, ALIASES.get(key, key))
        hint = hint_of(kind, key, hints_of(options))
        if not word.startswith("--") or not is_given:
            raise InputError(f"{word} is no option with a value: write --{key}=VALUE; see {program} --help")
        *above, last = key.split(".")
        values = _listed(kind, _over(values, _at([*above, Key(last)], spelt(text, hint)), kind))
    return values


def placed(kind: type, key: str) -> str:
    """The dotted key that a key of the short form of tasks stands for; any other key as it is."""
    prefix = section_of(kind)
    if prefix is None or not key.startswith(prefix):
        return key
    return prefix + in_place(key.removeprefix(prefix))


def _file(kind: type, path: Path, command: str | None = None) -> dict[str, Any]:
    """The values in a YAML file; keys have their places."""
    return _listed(kind, read_mapping(path, command, with_places=True))


def _listed(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    """The values with tasks as a list of names, in a training's configuration or a section that is one."""

    def short(section: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return listed(section)
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
            key = placed(kind, key)
            hint_of(kind, key)
            values = _over(values, _at(key.split("."), plain(value)), kind)
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
    return object_of(kind, values, f"{where}: ")


def read_configuration(kind: type[T], path: Path) -> T:
    """A configuration object from a YAML file that holds all of it, perhaps written by an older version."""
    values = _file(kind, path)
    return object_of(kind, with_older_defaults(values) if kind is TrainConfig else values, f"{path}: ")


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

    An option of `lists` takes all words up to the next option (`--against runs/*`), and is repeated for each.
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
    if item is not None and not is_dataclass(item) and not text.startswith(("[", "{")):
        parts = [part.strip() for part in text.split(",")]
        return [value_of(part) for part in parts] if item in (int, float) else parts
    as_it_is = kind in (str, Path) or (item is None and choices_of(kind)) or not text.strip()
    return text if as_it_is else value_of(text)


def as_yaml(text: str) -> str:
    """A value that Python has spelt (`None`, `{'lr': None}`), as W&B's agent does, in YAML's spelling."""
    if "None" in text:
        with suppress(ValueError, SyntaxError, TypeError):  # else it is a text that contains the word
            return json.dumps(ast.literal_eval(text))
    return text

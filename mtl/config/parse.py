"""Configuration files and dotted keys, made into typed values by jsonargparse.

jsonargparse checks each value against the type of its key. Its messages are long and in its own terms, so
that they are not shown: a refused value is described here by its key and type.
"""

from __future__ import annotations

import ast
import json
from argparse import ArgumentError, ArgumentTypeError
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args, get_origin

from mtl.config.effective import plain, with_older_defaults
from mtl.config.keys import (
    choices_of,
    hints_of,
    item_of,
    known_keys_of,
    mapping_of,
    switches_of,
    without_null,
)
from mtl.config.schema import ALIASES, TrainConfig
from mtl.config.yaml_file import dump, read_mapping, value_of
from mtl.errors import InputError, as_input_error, did_you_mean

T = TypeVar("T")

_PRINT = "--print_config"


def configured(program: str, kind: type[T], words: Sequence[str], options: type | None = None) -> T:
    """A configuration object from YAML files and dotted keys; later ones win over earlier ones.

    The names of the command's other `options` are known, too, when a misspelt key is looked up. With
    `--print_config` the configuration is printed, and the program ends.
    """
    try:
        made = configuration_from(kind, given_values(program, kind, words, options))
    except InputError as error:
        raise InputError(f"{_file_at_fault(program, kind, words, str(error))}{error}") from error
    if _PRINT in words:
        settings = plain(asdict(cast(Any, made)))  # `kind` is a dataclass, which `type[T]` does not say
        print(dump(settings), end="")
        raise SystemExit(0)
    return made


def given_values(
    program: str, kind: type[T], words: Sequence[str], options: type | None = None
) -> dict[str, Any]:
    """The values that YAML files and dotted keys give, nested and unchecked; defaults are not among them."""
    values: dict[str, Any] = {}
    others = [] if options is None else [option.name for option in fields(options)]
    command = program.removeprefix("mtl ")
    for word in joined(words, switches_of(kind)):
        if word == _PRINT:
            continue
        if not word.startswith("-"):
            _lay_over(values, read_mapping(Path(word), command), kind)
        elif word.startswith("--config="):
            _lay_over(values, read_mapping(Path(word.removeprefix("--config=")), command), kind)
        elif not word.startswith("--") or "=" not in word:
            key = word.lstrip("-").partition("=")[0]
            _hint_of(kind, ALIASES.get(key, key), others)
            raise InputError(f"{word} is no option with a value: write --{key}=VALUE; see {program} --help")
        else:
            key, text = word[2:].split("=", 1)
            _put(values, kind, ALIASES.get(key, key), text, others)
    return values


def _file_at_fault(program: str, kind: type, words: Sequence[str], fault: str) -> str:
    """The YAML file that has this fault by itself, too, as the beginning of the message.

    It is empty where the fault is on the command line, and where the message has a file already.
    """
    for word in joined(words, switches_of(kind)):
        if word.startswith("-") and not word.startswith("--config="):
            continue
        path = str(Path(word.removeprefix("--config=")))
        try:
            configuration_from(kind, given_values(program, kind, [word]))
        except InputError as error:
            if str(error) == fault and not fault.startswith(path):
                return f"{path}: "
    return ""


def read_configuration(kind: type[T], path: Path) -> T:
    """A configuration object from a YAML file that holds all of it, perhaps written by an older version."""
    values = read_mapping(path)
    return configuration_from(kind, with_older_defaults(values) if kind is TrainConfig else values, str(path))


def configuration_from(kind: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """An object of a dataclass from nested plain values; an error message starts with `where`."""
    try:
        return _built(kind, values, "")
    except InputError as error:
        raise InputError(f"{where}: {error}" if where else str(error)) from error


def _built(kind: type[T], values: Mapping[str, Any], prefix: str) -> T:
    """The object of a dataclass; `prefix` is the dotted key that holds it, with a dot."""
    hints = hints_of(kind)
    fields_given: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if name not in hints:
            known = [f"{prefix}{dotted}" for dotted in known_keys_of(kind)]
            raise InputError(f"unknown key '{key}'{did_you_mean(key, known, '; see --help')}")
        hint, optional = without_null(hints[name])
        item = item_of(hint)
        if value is None:
            if not optional:
                raise InputError(f"{key} cannot be null: give a value, or leave it out")
            fields_given[name] = None
        elif is_dataclass(hint):
            fields_given[name] = _group(hint, value, key)
        elif is_dataclass(item) and isinstance(value, list | tuple):
            groups = [_group(item, inner, f"{key}[{number}]") for number, inner in enumerate(value)]
            fields_given[name] = get_origin(hint)(groups)
        else:
            fields_given[name] = _judged(key, hints[name], value)
    with as_input_error(prefix.rstrip(".")):  # of a dataclass that checks its own values
        return kind(**fields_given)


def _group(kind: Any, value: Any, key: str) -> Any:
    """The object of a dataclass that a key holds."""
    if isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        raise InputError(f"{key} holds other keys, and cannot be '{value}'; set {key}.KEY")
    return _built(kind, value, f"{key}.")


def _judged(key: str, hint: Any, value: Any) -> Any:
    """A value as jsonargparse converts it to its type; raises `InputError` if it does not fit."""
    kind, optional = without_null(hint)
    if kind is str and isinstance(value, str):
        return value  # which jsonargparse would read once more: "null" is a text here
    given = plain(value)
    # A study's plan is hundreds of configurations, nearly all of whose values are the same.
    single = given is None or isinstance(given, str | int | float)
    cacheable = single and item_of(kind) is None and mapping_of(kind) is None
    try:
        parsed = (_parsed_once if cacheable else _parsed)(hint, given)
    except (ArgumentError, ArgumentTypeError) as error:
        raise InputError(_wrong(key, hint, value)) from error
    if (parsed is None and not optional) or (kind is Path and given == ""):
        raise InputError(_wrong(key, hint, value))
    if isinstance(parsed, Mapping):  # whose keys jsonargparse does not look at
        allowed = choices_of((mapping_of(kind) or (str,))[0])
        for name in parsed if allowed else ():
            if name not in allowed:
                raise InputError(f"unknown key '{key}.{name}'{did_you_mean(name, allowed)}")
    return tuple(parsed) if get_origin(kind) is tuple else parsed


def _parsed(hint: Any, value: Any) -> Any:
    return _parser(hint).parse_object({"value": value}).value


_parsed_once = lru_cache(maxsize=4096, typed=True)(_parsed)
"""For single values of types that do not change; what is refused is not remembered."""


@lru_cache(maxsize=256)
def _parser(hint: Any) -> Any:
    """A parser of one value. Whole dataclasses are not given to jsonargparse: to find their types, it would
    execute what their modules import for type checkers alone, torch among them."""
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--value", type=hint | None)  # with None, so that types are checked and not called
    return parser


def _wrong(key: str, kind: Any, value: Any) -> str:
    """The message on a value that does not fit its key's type."""
    hint, optional = without_null(kind)
    shown = str(value) if len(str(value)) <= 60 else f"{str(value)[:60]}…"
    item, choices = item_of(hint), choices_of(hint)
    choose = f": choose from {', '.join(choices)}"
    if choices and item is None:
        return f"{key}: unknown '{shown}'{did_you_mean(str(value), choices, choose)}"
    if item is not None and not isinstance(value, list | tuple):
        return f"{key}: expected a list, for instance --{key}=[{shown}], not {shown}"
    if item is not None and choices:
        odd = next((name for name in value if name not in choices), value)
        return f"{key}: unknown '{odd}'{did_you_mean(str(odd), choices, choose)}"
    expected = f"a list, each {_TYPES.get(item, 'as its type says')}" if item else _described(hint)
    null = ", or null" if ", or " in expected else " or null"
    given = f"[{', '.join(map(str, value))}]" if isinstance(value, list | tuple) else repr(shown)
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


def joined(words: Sequence[str], switches: frozenset[str] = frozenset()) -> Iterator[str]:
    """Every option and its value as one word."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        alone = "=" in word or word in ("-h", "--help", _PRINT)
        if word[2:] in switches and word.startswith("--"):
            value = rest.pop(0) if rest and rest[0] in ("true", "false") else "true"
            word = f"{word}={value}"
        elif word.startswith("-") and not alone and rest and not rest[0].startswith("--"):
            word = f"{word}={rest.pop(0)}"
        yield word


def _lay_over(values: dict[str, Any], given: Mapping[str, Any], kind: Any) -> None:
    """Put a file's values over those that are there; a group of keys keeps those that the file lacks."""
    for name, value in given.items():
        hint, _ = without_null(hints_of(kind).get(name))
        if is_dataclass(hint) and isinstance(value, Mapping) and isinstance(values.get(name), dict):
            _lay_over(values[name], value, hint)
        else:
            values[name] = value


def _hint_of(kind: Any, dotted: str, others: Sequence[str]) -> Any:
    """The type of a dotted key; raises `InputError` for an unknown one, perhaps meant for one of `others`."""
    depth_of_last = dotted.count(".")
    hint: Any = kind
    whole: Any = kind  # with null, if the key may be null
    for depth, name in enumerate(dotted.split(".")):
        whole = hints_of(hint).get(name) if is_dataclass(hint) else None
        hint, _ = without_null(whole)
        mapping = mapping_of(hint)
        if mapping is not None and depth == depth_of_last - 1:  # such as balancer.weights.dep
            return mapping[1]
        if hint is None:
            known = [*others, *known_keys_of(kind)]
            raise InputError(f"unknown key '{dotted}'{did_you_mean(dotted, known, '; see --help')}")
    return whole


def _put(values: dict[str, Any], kind: Any, dotted: str, text: str, others: Sequence[str]) -> None:
    """Put one key's value, as the command line spells it, over those that are there."""
    hint = _hint_of(kind, dotted, others)
    *above, last = dotted.split(".")
    inner = values
    for name in above:
        if not isinstance(inner.get(name), dict):
            inner[name] = {}
        inner = inner[name]
    value = spelt(text, hint)
    group, _ = without_null(hint)
    if is_dataclass(group) and isinstance(value, Mapping):
        _lay_over(inner.setdefault(last, {}), value, group)
    else:
        inner[last] = value


def spelt(text: str, hint: Any) -> Any:
    """A value as the command line spells it: lists need no brackets but commas, Python's None is null."""
    text = as_yaml(text)
    kind, optional = without_null(hint)
    item = item_of(kind)
    plain_item = item in (str, int, float, Path) or get_origin(item) is Literal
    if plain_item and not text.startswith("[") and not (optional and text == "null"):
        parts = [part.strip() for part in text.split(",")]
        return [value_of(part) for part in parts] if item in (int, float) else parts
    mapping = get_origin(hint) is dict or (text.startswith("{") and mapping_of(hint) is not None)
    structured = item is not None or is_dataclass(kind) or mapping
    if structured or kind in (int, float, bool) or mapping_of(hint) is not None:
        return value_of(text) if text.strip() else text
    return None if optional and text == "null" else text


def as_yaml(text: str) -> str:
    """A value that Python has spelt (`None`, `{'lr': None}`), as W&B's agent does, in YAML's spelling."""
    if "None" in text:
        with suppress(ValueError, SyntaxError, TypeError):  # else it is a text with such a word in it
            return json.dumps(ast.literal_eval(text))
    return text

"""Arguments and configuration files, parsed into typed values with jsonargparse."""

from __future__ import annotations

import difflib
import importlib
import re
from argparse import ArgumentError, ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from inspect import Parameter, signature
from json import dumps
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import yaml

from mtl.config.effective import with_older_defaults
from mtl.config.schema import TrainConfig
from mtl.config.spelling import as_yaml
from mtl.errors import InputError

T = TypeVar("T")


def arguments_of(program: str, function: Callable[..., Any], words: Sequence[str]) -> dict[str, Any]:
    """The arguments of a function whose signature is the command line.

    Parameters without a default may be given by place or by name, in the manner of Python; a list takes
    several words, a boolean option needs no value.
    """
    parser = _parser(program, function)
    parser.usage = _usage(program, function)
    parser.add_function_arguments(function, as_positional=False)
    return dict(parser.instantiate(_parse(parser, _as_options(function, words))))


def _as_options(function: Callable[..., Any], words: Sequence[str]) -> list[str]:
    """Every argument as `--name=value`."""
    kinds = {name: kind for name, kind in get_type_hints(function).items() if name != "return"}
    lists = [name for name, kind in kinds.items() if get_origin(kind) is list]
    places = _places(function)
    options: list[str] = []
    gathered: dict[str, list[str]] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in ("-h", "--help"):
            options.append(word)
            continue
        if not word.startswith("--"):
            free = [name for name in places if name in lists or name not in gathered]
            if not free:
                raise InputError(f"'{word}' is one argument too many; usage: {_usage('', function).strip()}")
            name, value = free[0], word
        elif "=" in word:
            name, value = word[2:].split("=", 1)
        elif kinds.get(word[2:]) is bool and (not rest or rest[0] not in ("true", "false")):
            name, value = word[2:], "true"
        elif rest:
            name, value = word[2:], rest.pop(0)
        else:
            raise InputError(f"{word} needs a value: {word}=VALUE")
        if name in lists and value.startswith("["):
            options.append(f"--{name}={value}")
        else:
            gathered.setdefault(name, []).append(value)
    for name, values in gathered.items():
        options += (
            [f"--{name}={dumps(values)}"] if name in lists else [f"--{name}={value}" for value in values]
        )
    return options


def _places(function: Callable[..., Any]) -> list[str]:
    """The parameters that may be given by place, in order."""
    return [
        name
        for name, parameter in signature(function).parameters.items()
        if parameter.default is Parameter.empty and parameter.kind is not Parameter.KEYWORD_ONLY
    ]


def _usage(program: str, function: Callable[..., Any]) -> str:
    parts = [program, *(name.upper() for name in _places(function))]
    for name, parameter in signature(function).parameters.items():
        if name not in _places(function):
            required = parameter.default is Parameter.empty
            parts.append(f"--{name}={name.upper()}" if required else f"[--{name}={name.upper()}]")
    return " ".join(parts)


def configuration(program: str, function: Callable[..., Any], words: Sequence[str]) -> dict[str, Any]:
    """The argument of a function that takes one configuration object, from YAML files and dotted keys."""
    [(name, kind)] = [item for item in get_type_hints(function).items() if item[0] != "return"]
    return {name: configured(program, kind, words, function)}


def configured(
    program: str,
    kind: type[T],
    words: Sequence[str],
    function: Callable[..., Any] | None = None,
    options: type | None = None,
) -> T:
    """A configuration object from YAML files and dotted keys.

    `function` says what it is for; the command's `options` are known when a misspelt word is looked up.
    """
    parser = _parser(program, function or kind)
    parser.add_argument("--config", action="config", help="a YAML file; '--config' may be left out")
    parser.add_class_arguments(kind, None)
    also = [] if options is None else [each.name for each in fields(options)]
    parsed = _parse(parser, [_as_option(word) for word in joined(words)], also)
    return _made(parser, kind, parsed)


def split_options(program: str, kind: type[T], words: Sequence[str]) -> tuple[T, list[str]]:
    """The options of a command, whose fields `kind` lists, and all other words."""
    hints = get_type_hints(kind)
    own: list[str] = []
    others: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name = word[2:].split("=", 1)[0].replace("-", "_") if word.startswith("--") else ""
        if name not in hints:
            others.append(word)
            continue
        if "=" in word:
            value = word.split("=", 1)[1]
        elif hints[name] is bool:
            value = rest.pop(0) if rest and rest[0] in ("true", "false") else "true"
        elif rest:
            value = rest.pop(0)
        else:
            raise InputError(f"{word} needs a value: {word}=VALUE")
        own.append(f"--{name}={value}")
    parser = _parser(program, kind)
    parser.add_class_arguments(kind, None)
    if {"-h", "--help"} & set(others):  # the configuration's own help comes after it
        parser.print_help()
        print()
    return kind(**dict(parser.instantiate(_parse(parser, own)))), others


def read_configuration(kind: type[T], path: Path) -> T:
    """A configuration object from a YAML file that holds all of it, perhaps written by an older version."""
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    return configuration_from(kind, with_older_defaults(values) if kind is TrainConfig else values, str(path))


def configuration_from(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """A configuration object from nested plain values; `where` begins the message if they are wrong."""
    parser = _parser(where, kind)
    parser.add_class_arguments(kind, None)
    try:
        parsed = parser.parse_object(dict(values))
    except (ArgumentError, ArgumentTypeError) as error:
        raise InputError(f"{where}: {one_line(str(error), known_keys(parser))}") from error
    return _made(parser, kind, parsed, f"{where}: ")


def _made(parser: Any, kind: type[T], parsed: Any, where: str = "") -> T:
    """The configuration object of parsed values; raises `InputError` for what the parser lets pass."""
    values = parsed.as_dict() if hasattr(parsed, "as_dict") else dict(parsed)
    values = {key: value for key, value in values.items() if key != "config"}
    for said in _misfits(kind, values):
        raise InputError(where + said)
    made = {key: value for key, value in dict(parser.instantiate(parsed)).items() if key != "config"}
    return kind(**made)


def _misfits(kind: Any, values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """What of nested values does not fit: the parser takes `null` for "not given", anywhere."""
    hints = get_type_hints(kind)
    for name, value in values.items():
        if name not in hints:
            continue
        optional = type(None) in get_args(hints[name])
        own = [each for each in (get_args(hints[name]) if optional else [hints[name]]) if is_dataclass(each)]
        if value is None:
            if not optional:
                yield f"{prefix}{name} cannot be null: give a value, or leave it out"
        elif own and isinstance(value, Mapping):
            yield from _misfits(own[0], value, f"{prefix}{name}.")
        elif own and not is_dataclass(value):
            yield f"{prefix}{name} holds other keys, and cannot be '{value}'; set {prefix}{name}.KEY"


@lru_cache
def known_keys_of(kind: type) -> tuple[str, ...]:
    """All dotted keys of a configuration."""
    parser = _parser("", kind)
    parser.add_class_arguments(kind, None)
    return tuple(known_keys(parser))


def joined(words: Sequence[str]) -> Iterator[str]:
    """Every option and its value as one word."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        alone = "=" in word or word in ("-h", "--help") or word.startswith("--print_config")
        if word.startswith("-") and not alone and rest and not rest[0].startswith("--"):
            word = f"{word}={rest.pop(0)}"
        yield word


def _as_option(word: str) -> str:
    """Spell an argument as the parser wants it: a bare file name, `--from`, a list without brackets."""
    if not word.startswith("-"):
        return f"--config={word}"
    if "=" in word:
        key, value = word.split("=", 1)
        word = f"{key}={as_yaml(value)}"
    if word.startswith("--from="):
        return word.replace("--from", "--init_from", 1)
    tasks = re.fullmatch(r"--tasks=([a-z]+(?:,[a-z]+)*)", word)
    return f"--tasks=[{tasks.group(1)}]" if tasks else word


def _parser(program: str, function: Callable[..., Any]) -> Any:
    from jsonargparse import ArgumentParser, set_parsing_settings

    # Tasks have an abstract base, but a slot holds its own task and no other.
    set_parsing_settings(docstring_parse_attribute_docstrings=True, subclasses_disabled=[is_dataclass])
    return ArgumentParser(
        prog=program, description=_first_line(function), exit_on_error=False, allow_abbrev=False
    )


def _parse(parser: Any, words: Sequence[str], also: Sequence[str] = ()) -> Any:
    try:
        return parser.parse_args(list(words))
    except (ArgumentError, ArgumentTypeError) as error:
        raise InputError(one_line(str(error), [*also, *known_keys(parser)])) from error


_UNKNOWN_KEY = (
    r"[Uu]nrecognized arguments: --([\w.]+)",
    r"does not accept option '([\w.]+)'",
    r"[Kk]ey '([\w.]+)' is not expected",
)


def known_keys(parser: Any) -> list[str]:
    """All dotted keys of a parser."""
    return [action.dest for action in parser._actions if action.dest not in ("help", "==SUPPRESS==")]


def one_line(message: str, keys: Sequence[str]) -> str:
    """A parser's message in one line, with the nearest key where one was misspelt."""
    line = re.sub(r"\s+", " ", message).strip()
    for pattern in _UNKNOWN_KEY:
        found = re.search(pattern, line)
        if found:
            close = difflib.get_close_matches(found.group(1), keys, n=1, cutoff=0.4)
            nearest = f": did you mean '{close[0]}'?" if close else "; see --help"
            return f"unknown key '{found.group(1)}'{nearest}"
    found = re.search(r"class_path '([\w.]+)': Option '([\w.]+)' is not accepted", line)
    if found:
        module, name = found.group(1).rsplit(".", 1)
        own = [each.name for each in fields(getattr(importlib.import_module(module), name))]
        return one_line(f"Key '{found.group(2)}' is not expected", own)
    found = re.search(
        r"[Kk]ey \"([\w.]+)\":.*?Expected a (?:typing\.)?Literal\[(.*?)\]\. Got value: (.*)$", line
    )
    if found:
        key, choices, given = found.group(1), re.findall(r"'([^']*)'", found.group(2)), found.group(3)
        close = difflib.get_close_matches(given, choices, n=1, cutoff=0.4)
        nearest = f"did you mean '{close[0]}'?" if close else f"choose from {', '.join(choices)}"
        return f"{key}: unknown '{given}': {nearest}"
    found = re.search(
        r"[Kk]ey \"([\w.]+)\":.*?Expected a <class '(?:tuple|list)'>\. Got value: ([^\[].*)$", line
    )
    if found:
        key, given = found.groups()
        return f"{key}: expected a list, for instance --{key}=[{given}], not {given}"
    return line if len(line) < 400 else line[:400] + " …"


def _first_line(function: Callable[..., Any]) -> str:
    return (function.__doc__ or "").strip().split("\n")[0]

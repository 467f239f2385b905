"""Reading a function's arguments and a command's options from the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, make_dataclass
from functools import lru_cache
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, TypeVar, get_origin, get_type_hints

from mtl.config.keys import hints_of, unknown, without_null
from mtl.config.parse import joined, spelt, switches_of
from mtl.config.typed import in_range, object_of, refusal
from mtl.errors import InputError

T = TypeVar("T")


def arguments_of(program: str, function: Callable[..., Any], words: Sequence[str]) -> dict[str, Any]:
    """The arguments of a function whose signature defines the command line.

    Parameters without a default may be given by place or by name, as in Python. A list takes several words;
    as an option, it takes those up to the next option (`--against runs/a runs/b`). A boolean option needs no
    value. Raises `InputError` with the usage for missing, unknown and superfluous arguments.
    """
    kind, places = parameters_of(function), places_of(function)
    hints, usage = hints_of(kind), f"; usage: {usage_of(program, function)}"
    lists = [name for name, hint in hints.items() if get_origin(hint) is list]
    values: dict[str, Any] = {}
    for word in joined(words, switches_of(kind), lists):
        name, text = _option(word)
        if not word.startswith("--"):
            free = [name for name in places if name not in values or name in lists]
            if not free:
                raise InputError(f"'{word}' is one argument too many{usage}")
            name, text = free[0], word
        if name not in hints:
            raise unknown(name, hints, f"; see {program} --help")
        if name in places and text == "":  # an unset variable of a shell; as a path it would be this folder
            raise InputError(f"{name.upper()} is empty{usage}")
        value = _value(name, word, text, hints[name])
        values[name] = [*values.get(name, []), *value] if name in lists else value
    missing = [name for name in required_of(function) if name not in values]
    if missing:
        spelling = missing[0].upper() if missing[0] in places else f"--{missing[0]}={missing[0].upper()}"
        raise InputError(f"{spelling} is missing{usage}")
    made: Any = _made(kind, values)
    return {name: getattr(made, name) for name in hints}


def split_options(program: str, kind: type[T], words: Sequence[str]) -> tuple[T, list[str]]:
    """The options of a command, which are the fields of `kind`, and all other words."""
    values: dict[str, Any] = {}
    others: list[str] = []
    hints = hints_of(kind)
    for word in joined(words, switches_of(kind), only=hints):
        name, text = _option(word)
        if word.startswith("--") and name in hints:
            values[name] = _value(name, word, text, hints[name])
        else:
            others.append(word)
    return _made(kind, values), others


def _made(kind: type[T], values: dict[str, Any]) -> T:
    return in_range(object_of(kind, values), values, "--")


def _option(word: str) -> tuple[str, str | None]:
    """The name of an option, and its text if it has one."""
    name, is_given, text = word[2:].partition("=")
    return name.replace("-", "_"), text if is_given else None


def _value(name: str, word: str, text: str | None, hint: Any) -> Any:
    if text is None:
        raise InputError(f"{word} needs a value: {word}=VALUE")
    if not text and without_null(hint)[0] is Path:
        raise InputError(refusal(name, hint, text))
    one_of_list = get_origin(hint) is list and not text.startswith("[")
    return [text] if one_of_list else spelt(text, hint)


@lru_cache
def parameters_of(function: Callable[..., Any]) -> type:
    """A dataclass with a field for each of a function's parameters, and with the function's docstring."""
    hints = get_type_hints(function, include_extras=True)

    def field_of(default: Any) -> Any:
        if isinstance(default, list):
            return field(default_factory=lambda: list(default))
        return field() if default is Parameter.empty else field(default=default)

    parameters = signature(function).parameters.items()
    rows = [(name, hints[name], field_of(parameter.default)) for name, parameter in parameters]
    made = make_dataclass(function.__name__, rows, kw_only=True)
    made.__doc__ = function.__doc__
    return made


def places_of(function: Callable[..., Any]) -> list[str]:
    """The parameters that may be given by place, in order; a list takes its own place and all later ones.

    They are the parameters before `*` or, without a `*`, those that have no default.
    """
    parameters = signature(function).parameters.values()
    by_place = [one for one in parameters if one.kind is not Parameter.KEYWORD_ONLY]
    if len(by_place) == len(parameters):
        by_place = [one for one in parameters if one.default is Parameter.empty]
    hints, names = hints_of(parameters_of(function)), [one.name for one in by_place]
    end = next((place for place, name in enumerate(names, 1) if get_origin(hints[name]) is list), None)
    return names[:end]


def required_of(function: Callable[..., Any]) -> list[str]:
    """The parameters without a default."""
    return [name for name, given in signature(function).parameters.items() if given.default is given.empty]


def usage_of(program: str, function: Callable[..., Any]) -> str:
    """One line: arguments given by place, those that must be given by name, and whether there are options."""
    places, required = places_of(function), required_of(function)
    hints = hints_of(parameters_of(function))
    parts = [f"{name.upper()} …" if get_origin(hints[name]) is list else name.upper() for name in places]
    parts = [part if name in required else f"[{part}]" for name, part in zip(places, parts, strict=True)]
    parts += [f"--{name}={name.upper()}" for name in required if name not in places]
    options = len({*required, *places}) < len(hints)
    return " ".join([program, *parts, *(["[--OPTION=VALUE …]"] if options else [])])

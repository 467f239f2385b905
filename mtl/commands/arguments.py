"""A function's arguments and a command's options, read from the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, make_dataclass
from functools import lru_cache
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, TypeVar, get_origin, get_type_hints

from mtl.config.keys import hints_of, switches_of
from mtl.config.parse import configuration_from, spelt
from mtl.errors import InputError, did_you_mean
from mtl.files import check_folder_place

T = TypeVar("T")


def arguments_of(program: str, function: Callable[..., Any], words: Sequence[str]) -> dict[str, Any]:
    """The arguments of a function whose signature is the command line.

    Parameters without a default may be given by place or by name, as in Python. A list takes several words;
    as an option those up to the next option (`--against runs/a runs/b`). A boolean option needs no value.
    """
    kind = parameters_of(function)
    hints, places = hints_of(kind), places_of(function)
    values: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("--"):
            name = _option_name(word)
            if name not in hints:
                raise InputError(
                    f"unknown key '{name}'{did_you_mean(name, hints, f'; see {program} --help')}"
                )
            text = _option_value(word, rest, kind)
            if _is_list(hints[name]) and "=" not in word:
                # A shell writes several words for `--against runs/*`.
                while rest and not rest[0].startswith("--"):
                    values[name] = [*values.get(name, []), text]
                    text = rest.pop(0)
        else:
            free = [name for name in places if name not in values or _is_list(hints[name])]
            if not free:
                raise InputError(f"'{word}' is one argument too many; usage: {usage_of(program, function)}")
            name, text = free[0], word
        value = [text] if _is_list(hints[name]) and not text.startswith("[") else spelt(text, hints[name])
        values[name] = [*values.get(name, []), *value] if _is_list(hints[name]) else value
    missing = [name for name in required_of(function) if name not in values]
    if missing:
        raise InputError(f"{_spelling(missing[0], places)} is missing; usage: {usage_of(program, function)}")
    made: Any = configuration_from(kind, values)
    return {name: getattr(made, name) for name in hints}


def split_options(program: str, kind: type[T], words: Sequence[str]) -> tuple[T, list[str]]:
    """The options of a command, whose fields `kind` lists, and all other words."""
    values: dict[str, Any] = {}
    others: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name = _option_name(word) if word.startswith("--") else ""
        if name in hints_of(kind):
            values[name] = spelt(_option_value(word, rest, kind), hints_of(kind)[name])
        else:
            others.append(word)
    return configuration_from(kind, values), others


@lru_cache
def parameters_of(function: Callable[..., Any]) -> type:
    """A dataclass with a field for each of a function's parameters."""
    hints = get_type_hints(function)

    def field_of(default: Any) -> Any:
        if isinstance(default, list):
            return field(default_factory=lambda: list(default))
        return field(default=None if default is Parameter.empty else default)

    parameters = signature(function).parameters.items()
    return make_dataclass(
        function.__name__,
        [(name, hints[name], field_of(parameter.default)) for name, parameter in parameters],
    )


def places_of(function: Callable[..., Any]) -> list[str]:
    """The parameters that may be given by place, in order; a list takes all places from its own on.

    They are those without a default or, if some are by name only (after `*`), all before those.
    """
    hints = get_type_hints(function)
    parameters = signature(function).parameters
    divided = any(parameter.kind is Parameter.KEYWORD_ONLY for parameter in parameters.values())
    places = []
    for name, parameter in parameters.items():
        if parameter.kind is not Parameter.KEYWORD_ONLY and (divided or parameter.default is Parameter.empty):
            places.append(name)
            if _is_list(hints[name]):
                break
    return places


def required_of(function: Callable[..., Any]) -> list[str]:
    """The parameters without a default."""
    parameters = signature(function).parameters.items()
    return [name for name, parameter in parameters if parameter.default is Parameter.empty]


def usage_of(program: str, function: Callable[..., Any]) -> str:
    """One line: first what is given by place, then what must be given by name, then that options exist."""
    places, required = places_of(function), required_of(function)
    hints = get_type_hints(function)
    parts = [f"{name.upper()} …" if _is_list(hints[name]) else name.upper() for name in places]
    parts = [part if name in required else f"[{part}]" for name, part in zip(places, parts, strict=True)]
    parts += [f"--{name}={name.upper()}" for name in required if name not in places]
    options = len({*required, *places}) < len(signature(function).parameters)
    return " ".join([program, *parts, *(["[--OPTION=VALUE …]"] if options else [])])


def _option_name(word: str) -> str:
    return word[2:].split("=", 1)[0].replace("-", "_")


def _option_value(word: str, rest: list[str], kind: type) -> str:
    """An option's value, which may be the next word, and is then taken from the rest."""
    if "=" in word:
        return word.split("=", 1)[1]
    if _option_name(word) in switches_of(kind):
        return rest.pop(0) if rest and rest[0] in ("true", "false") else "true"
    if not rest:
        raise InputError(f"{word} needs a value: {word}=VALUE")
    return rest.pop(0)


def _spelling(name: str, places: Sequence[str]) -> str:
    return name.upper() if name in places else f"--{name}={name.upper()}"


def _is_list(hint: Any) -> bool:
    return get_origin(hint) is list


def check_seed(seed: int) -> None:
    """Raise `InputError` for a number that is no seed of numpy's and torch's generators."""
    if not 0 <= seed < 2**32:
        raise InputError(f"seed={seed}: give a number from 0 to {2**32 - 1:,}")


def check_new_folder(out: Path) -> None:
    """Raise `InputError` for an `--out` that is there already, and is no empty folder.

    Raises `OSError` where no folder can be made.
    """
    if out.exists() and not (out.is_dir() and next(out.iterdir(), None) is None):
        raise InputError(f"{out} exists, and is no empty folder: give another --out")
    check_folder_place(out.parent)

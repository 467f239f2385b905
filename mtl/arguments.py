"""Arguments and configuration files, parsed into typed values with jsonargparse."""

from __future__ import annotations

import difflib
import re
from argparse import ArgumentError, ArgumentTypeError
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from mtl.errors import InputError

T = TypeVar("T")


def arguments_of(program: str, function: Callable[..., Any], words: Sequence[str]) -> dict[str, Any]:
    """The arguments of a function whose signature is the command line."""
    parser = _parser(program, function)
    parser.add_function_arguments(function, as_positional=True)
    return dict(parser.instantiate(_parse(parser, words)))


def configuration(program: str, function: Callable[..., Any], words: Sequence[str]) -> dict[str, Any]:
    """The argument of a function that takes one configuration object, from YAML files and dotted keys."""
    [(name, kind)] = [item for item in get_type_hints(function).items() if item[0] != "return"]
    parser = _parser(program, function)
    parser.add_argument("--config", action="config", help="a YAML file; '--config' may be left out")
    parser.add_class_arguments(kind, None)
    values = parser.instantiate(_parse(parser, [_as_option(word) for word in words]))
    return {name: kind(**{key: value for key, value in dict(values).items() if key != "config"})}


def read_configuration(kind: type[T], path: Path) -> T:
    """A configuration object from a YAML file that holds it whole."""
    parser = _parser(str(path), kind)
    parser.add_argument("--config", action="config")
    parser.add_class_arguments(kind, None)
    values = dict(parser.instantiate(_parse(parser, [f"--config={path}"])))
    return kind(**{key: value for key, value in values.items() if key != "config"})


def _as_option(word: str) -> str:
    """Spell an argument as the parser wants it: a bare file name, `--from`, a list without brackets."""
    if not word.startswith("-"):
        return f"--config={word}"
    if word == "--from" or word.startswith("--from="):
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


def _parse(parser: Any, words: Sequence[str]) -> Any:
    try:
        return parser.parse_args(list(words))
    except (ArgumentError, ArgumentTypeError) as error:
        raise InputError(one_line(str(error), known_keys(parser))) from error


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
    return line if len(line) < 400 else line[:400] + " …"


def _first_line(function: Callable[..., Any]) -> str:
    return (function.__doc__ or "").strip().split("\n")[0]

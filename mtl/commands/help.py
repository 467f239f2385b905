"""The help of a command, its arguments, and how much it prints.

The level of Python's root logger holds the choice: at ERROR progress bars are off, and at INFO or below
nothing that libraries log is silenced.
"""

from __future__ import annotations

import ast
import logging
import os
import resource
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import MISSING, field, fields, is_dataclass, make_dataclass
from functools import cache, lru_cache
from inspect import Parameter, getsource, signature
from itertools import pairwise
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple, TypeVar, get_origin, get_type_hints

from mtl.commands.command_table import COMMANDS
from mtl.config.keys import hints_of, literal_values, unknown, without_null
from mtl.config.parse import in_range, joined_options, object_of, refusal, spelt, switches_of
from mtl.config.schema import ALIASES
from mtl.errors import InputError, did_you_mean
from mtl.features import Command
from mtl.tasks.in_words import counted

_WIDTH = 100
_COLUMN = 34
"""The column in which descriptions start."""


class _Key(NamedTuple):
    """A line of the help."""

    name: str
    spelling: str
    text: str


def overview(names: Sequence[str] = tuple(COMMANDS)) -> str:
    """The help of the whole program, or of a group of commands."""
    width = max(map(len, names))
    lines = [f"  mtl {name:<{width}}  {COMMANDS[name].summary}" for name in names]
    usage = "usage: mtl COMMAND [ARGUMENTS]   (mtl COMMAND --help lists them)"
    return "\n".join([usage, "", *lines, "", HELP])


def help_of(name: str, group: str | None = None) -> str:
    """The help of a command: with `group`, of a group of its keys or of `all`.

    Raises `InputError`, with the nearest name, for a group that the command does not have.
    """
    command = COMMANDS[name]
    function = resolve_name(command.function)
    usage = f"mtl {name} {command.file} [--KEY=VALUE …]"
    if command.takes == "signature":
        usage = usage_of(f"mtl {name}", function)
    title = f"usage: {usage}\n\n{(function.__doc__ or '').strip().splitlines()[0]}\n"
    if command.configuration is None:
        listing = {} if command.listing is None else resolve_name(command.listing)
        below = [_Key(name, name, summary) for name, summary in listing.items()]
        return "\n".join([title, *_lines(_parameters(function)), *([""] if below else []), *_lines(below)])
    options = [] if command.options is None else _fields(resolve_name(command.options))
    keys = {key.name: key._replace(spelling=key.spelling.replace("_", "-")) for key in options}
    keys |= {key.name: key for key in _fields(resolve_name(command.configuration)) if key.name not in keys}
    above = dict.fromkeys(name.rpartition(".")[0] for name in keys)
    groups = [key for key in above if key not in ("", *keys)]
    shown, rest = list(keys.values()), list[str]()
    if group is None:
        more = f"These are the main ones of {counted(len(keys), 'key')}. --help=all shows all, "
        more += "--help=GROUP one group of"
        listed = textwrap.wrap(", ".join(groups), _WIDTH, initial_indent="  ", subsequent_indent="  ")
        shown, rest = [keys[first] for first in command.first], ["", more, *listed]
    elif group != "all":
        shown = [key for name, key in keys.items() if f"{name}.".startswith(f"{group}.")]
    if not shown:
        raise InputError(f"no group of keys '{group}'{did_you_mean(str(group), ['all', *groups])}")
    end = "A key is written --KEY=VALUE, or in a file as YAML; --print_config prints the whole configuration."
    return "\n".join([title, *_lines(shown), *rest, "", end])


def _parameters(function: Callable[..., Any]) -> Iterator[_Key]:
    """The parameters given by place, then those that must be given by name, then the others."""
    keys = {key.name: key for key in _fields(parameters_of(function))}
    places, required = placed_parameters(function), required_of(function)
    for name in dict.fromkeys([*places, *required, *keys]):
        given = name.upper() if name in places else f"--{name}={name.upper()}"
        yield keys[name]._replace(spelling=given) if name in [*places, *required] else keys[name]


def _fields(kind: Any, prefix: str = "") -> Iterator[_Key]:
    """The keys of a dataclass; those of nested dataclasses come last."""
    texts: dict[str, str | None] = {}
    for base in reversed(kind.__mro__):
        texts |= _texts(base)
    inner = []
    for each in fields(kind):
        hint, optional = without_null(hints_of(kind)[each.name])
        key = f"{prefix}{each.name}"
        if is_dataclass(hint):
            inner.append((hint, f"{key}."))
        if not is_dataclass(hint) or optional:
            default = each.default if each.default_factory is MISSING else each.default_factory()
            name = next((alias for alias, meant in ALIASES.items() if meant == key), key)
            text, choices = " ".join((texts.get(each.name) or "").split()), literal_values(hint)
            listed = f" ({', '.join(choices)})" if not all(name in text for name in choices) else ""
            yield _Key(key, _spelling(name, default), f"{text}{listed}")
    for hint, dotted in inner:
        yield from _fields(hint, dotted)


@cache
def _texts(kind: type) -> dict[str, str | None]:
    """What a dataclass says of its own fields: in its docstring, or in strings below them."""
    import docstring_parser

    if not is_dataclass(kind):
        return {}
    node = _classes(kind.__module__).get(kind.__qualname__)
    if node is None:
        return {each.arg_name: each.description for each in docstring_parser.parse_from_object(kind).params}
    texts = {each.arg_name: each.description for each in docstring_parser.parse(kind.__doc__ or "").params}
    for statement, after in pairwise(node.body):
        match statement, after:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                texts.setdefault(name, text)
    return texts


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    """The classes at the top of a module, whose source is read once; empty if there is no source."""
    try:
        tree = ast.parse(getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError):
        return {}
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _spelling(name: str, default: Any) -> str:
    """The key as it is written on the command line, with its default as the value."""
    if default is False:
        return f"--{name}"
    if isinstance(default, tuple | list):
        default = None if any(map(is_dataclass, default)) else ",".join(map(str, default))
    shown = "true" if default is True else default
    return f"--{name}=…" if shown in (None, "", {}) or is_dataclass(default) else f"--{name}={shown}"


def _lines(keys: Iterable[_Key]) -> Iterator[str]:
    for key in keys:
        start, indent = f"  {key.spelling}", " " * _COLUMN
        text = textwrap.wrap(key.text, _WIDTH - _COLUMN) or [""]
        if len(start) >= _COLUMN:
            yield start
            start = ""
        yield f"{start:<{_COLUMN}}{text[0]}".rstrip()
        yield from (f"{indent}{line}" for line in text[1:])


T = TypeVar("T")


def arguments_of(program: str, function: Callable[..., Any], words: Sequence[str]) -> dict[str, Any]:
    """The arguments of a function whose signature defines the command line.

    Parameters without a default may be given by place or by name, as in Python. A list takes several words;
    as an option, it takes those up to the next option (`--against runs/a runs/b`). A boolean option needs no
    value. Raises `InputError` with the usage for missing, unknown and superfluous arguments.
    """
    kind, places = parameters_of(function), placed_parameters(function)
    hints, usage = hints_of(kind), f"; usage: {usage_of(program, function)}"
    lists = [name for name, hint in hints.items() if get_origin(hint) is list]
    values: dict[str, Any] = {}
    for word in joined_options(words, switches_of(kind), lists):
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
    """The options of a command, which are the fields of `kind`, and all other words.

    A list takes all words up to the next option, or none.
    """
    values: dict[str, Any] = {}
    others: list[str] = []
    hints = hints_of(kind)
    lists = [name for name, hint in hints.items() if get_origin(without_null(hint)[0]) is list]
    for word in joined_options(words, switches_of(kind), lists, only=hints):
        name, text = _option(word)
        if word.startswith("--") and name in lists:
            added = [] if text is None else _value(name, word, text, without_null(hints[name])[0])
            values[name] = [*values.get(name, []), *added]
        elif word.startswith("--") and name in hints:
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


def placed_parameters(function: Callable[..., Any]) -> list[str]:
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
    places, required = placed_parameters(function), required_of(function)
    hints = hints_of(parameters_of(function))
    parts = [f"{name.upper()} …" if get_origin(hints[name]) is list else name.upper() for name in places]
    parts = [part if name in required else f"[{part}]" for name, part in zip(places, parts, strict=True)]
    parts += [f"--{name}={name.upper()}" for name in required if name not in places]
    options = len({*required, *places}) < len(hints)
    return " ".join([program, *parts, *(["[--OPTION=VALUE …]"] if options else [])])


QUIET, VERBOSE = "--quiet", "--verbose"
HELP = (
    f"Every command takes {QUIET} (no progress, no messages) and {VERBOSE} (logs of libraries, tracebacks)."
)
_ASKING = ("--status", "--dry-run", "--dry_run", "--print_config")
"""Options whose answer is printed even if the command is quiet."""


def without_verbosity(words: Sequence[str]) -> tuple[list[str], str]:
    """The other words, and the option that was among them, if any; raises `InputError` for both options."""
    given = {word for word in words if word in (QUIET, VERBOSE)}
    if len(given) > 1:
        raise InputError(f"{QUIET} and {VERBOSE} exclude each other: leave one out")
    return [word for word in words if word not in given], "".join(given)


@contextmanager
def speaking(verbosity: str, command: Command, words: Sequence[str]) -> Iterator[None]:
    """Run a command as quietly or verbosely as `verbosity` says.

    A quiet command prints only its answer, such as a table of scores with its notes, and nothing if its
    result is a file or folder.
    """
    if verbosity == QUIET:
        answers = command.answers or any(word.split("=")[0] in _ASKING for word in words)
        with (
            _level(logging.ERROR),
            Path(os.devnull).open("w") as nowhere,
            nullcontext() if answers else redirect_stdout(nowhere),
        ):
            yield
    elif verbosity == VERBOSE:
        with _level(logging.INFO), _measured():
            yield
    else:
        yield


@contextmanager
def _level(level: int) -> Iterator[None]:
    root = logging.getLogger()
    before = root.level
    logging.basicConfig(stream=sys.stderr, format="%(name)s: %(message)s")
    root.setLevel(level)
    try:
        yield
    finally:
        root.setLevel(before)


@contextmanager
def _measured() -> Iterator[None]:
    """Print the traceback of an error, and at the end the time and peak memory of the command."""
    start = time.perf_counter()
    try:
        yield
    except Exception:
        traceback.print_exc()
        raise
    finally:
        unit = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
        print(f"mtl: {time.perf_counter() - start:.1f} s, {peak:,.0f} MB at most", file=sys.stderr)

"""The help of a command: usage, the keys that users set first, and the names of all groups of keys."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, NamedTuple

from mtl.commands.arguments import parameters_of, places_of, required_of, usage_of
from mtl.commands.command_table import COMMANDS, load
from mtl.commands.verbosity import HELP
from mtl.config.keys import choices_of, hints_of, without_null
from mtl.config.schema import ALIASES
from mtl.errors import InputError, did_you_mean
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
    function = load(command.function)
    usage = f"mtl {name} {command.file} [--KEY=VALUE …]"
    if command.takes == "signature":
        usage = usage_of(f"mtl {name}", function)
    title = f"usage: {usage}\n\n{(function.__doc__ or '').strip().splitlines()[0]}\n"
    if command.configuration is None:
        listing = {} if command.listing is None else load(command.listing)
        below = [_Key(name, name, summary) for name, summary in listing.items()]
        return "\n".join([title, *_lines(_parameters(function)), *([""] if below else []), *_lines(below)])
    options = [] if command.options is None else _fields(load(command.options))
    keys = {key.name: key._replace(spelling=key.spelling.replace("_", "-")) for key in options}
    keys |= {key.name: key for key in _fields(load(command.configuration)) if key.name not in keys}
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
    places, required = places_of(function), required_of(function)
    for name in dict.fromkeys([*places, *required, *keys]):
        given = name.upper() if name in places else f"--{name}={name.upper()}"
        yield keys[name]._replace(spelling=given) if name in [*places, *required] else keys[name]


def _fields(kind: Any, prefix: str = "") -> Iterator[_Key]:
    """The keys of a dataclass; those of nested dataclasses come last."""
    import docstring_parser

    texts: dict[str, str | None] = {}
    for base in filter(is_dataclass, reversed(kind.__mro__)):
        texts |= {
            param.arg_name: param.description for param in docstring_parser.parse_from_object(base).params
        }
    inner = []
    for field in fields(kind):
        hint, optional = without_null(hints_of(kind)[field.name])
        key = f"{prefix}{field.name}"
        if is_dataclass(hint):
            inner.append((hint, f"{key}."))
        if not is_dataclass(hint) or optional:
            default = field.default if field.default_factory is MISSING else field.default_factory()
            name = next((alias for alias, meant in ALIASES.items() if meant == key), key)
            text, choices = " ".join((texts.get(field.name) or "").split()), choices_of(hint)
            listed = f" ({', '.join(choices)})" if not all(name in text for name in choices) else ""
            yield _Key(key, _spelling(name, default), f"{text}{listed}")
    for hint, dotted in inner:
        yield from _fields(hint, dotted)


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

"""The help of a command: usage, the keys that people set first, and the rest by group."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from typing import Any

from mtl.commands.arguments import parameters_of, places_of, required_of, usage_of
from mtl.commands.command_table import COMMANDS, Command, load
from mtl.config.keys import choices_of, hints_of, without_null
from mtl.config.schema import ALIASES
from mtl.errors import InputError, did_you_mean

_WIDTH = 100
_COLUMN = 34
"""The column in which descriptions start."""


@dataclass(frozen=True)
class _Key:
    """A line of the help."""

    name: str
    spelling: str
    text: str


def overview(names: Sequence[str] = tuple(COMMANDS)) -> str:
    """The help of the whole program, or of a group of commands."""
    width = max(map(len, names))
    lines = [f"  mtl {name:<{width}}  {COMMANDS[name].summary}" for name in names]
    return "\n".join(["usage: mtl COMMAND [ARGUMENTS]   (mtl COMMAND --help lists them)", "", *lines])


def help_of(name: str, group: str | None = None) -> str:
    """The help of one command; of a `group` of its keys, or of `all`.

    Raises `InputError`, with the nearest name, for a group that the command does not have.
    """
    command = COMMANDS[name]
    function = load(command.function)
    title = f"usage: {_usage(name, command, function)}\n\n{_first_line(function)}\n"
    keys = list(_keys(command, function))
    if command.configuration is None:
        return "\n".join([title, *_lines(keys), *_listing(command)])
    keys = list({key.name: key for key in reversed(keys)}.values())[::-1]  # an option hides a key
    names = {key.name for key in keys}
    groups = list(dict.fromkeys(key.name.rpartition(".")[0] for key in keys if "." in key.name))
    groups = [group for group in groups if group not in names]
    if group == "all":
        shown = keys
    elif group is None:
        by_name = {key.name: key for key in keys}
        shown = [by_name[first] for first in command.first]
    else:
        shown = [key for key in keys if key.name.startswith(f"{group}.") or key.name == group]
        if not shown:
            raise InputError(f"no group of keys '{group}'{did_you_mean(group, ['all', *groups])}")
    more = f"These keys are set first, of {len(keys)}. --help=all shows all, --help=GROUP one group of"
    listed = textwrap.wrap(", ".join(groups), _WIDTH, initial_indent="  ", subsequent_indent="  ")
    rest = ["", more, *listed] if group is None else []
    files = [
        "",
        "A key is written --KEY=VALUE, or in a file as YAML; --print_config prints the whole configuration.",
    ]
    return "\n".join([title, *_lines(shown), *rest, *files])


def _listing(command: Command) -> list[str]:
    if command.listing is None:
        return []
    return ["", *_lines(_Key(name, name, summary) for name, summary in load(command.listing).items())]


def _usage(name: str, command: Command, function: Callable[..., Any]) -> str:
    if command.takes == "signature":
        return usage_of(f"mtl {name}", function)
    return f"mtl {name} {command.file} [--KEY=VALUE …]"


def _keys(command: Command, function: Callable[..., Any]) -> Iterator[_Key]:
    if command.takes == "signature":
        import docstring_parser

        described = docstring_parser.parse(function.__doc__ or "").params
        texts = {param.arg_name: param.description or "" for param in described}
        places = places_of(function)
        kind = parameters_of(function)
        # What is given by place comes first, then what must be given by name.
        order = list(dict.fromkeys([*places, *required_of(function)]))
        hints = hints_of(kind)
        for name in dict.fromkeys([*order, *hints]):
            spelling = name.upper() if name in places else f"--{name}={name.upper()}"
            if name not in order:
                spelling = _spelling(name, getattr(kind(), name))
            yield _Key(name, spelling, _with_choices(texts.get(name, ""), hints[name]))
        return
    if command.options is not None:
        for key in _fields(load(command.options)):
            yield replace(key, spelling=key.spelling.replace("_", "-"))
    if command.configuration is not None:
        yield from _fields(load(command.configuration))


def _fields(kind: Any, prefix: str = "") -> Iterator[_Key]:
    """The keys of a dataclass, those of the dataclasses in it after its own."""
    texts = _docstrings(kind)
    inner = []
    for field in fields(kind):
        hint, optional = without_null(hints_of(kind)[field.name])
        if is_dataclass(hint) and not optional:
            inner.append((hint, f"{prefix}{field.name}."))
            continue
        default = field.default
        if default is MISSING and field.default_factory is not MISSING:
            default = field.default_factory()
        spelling = next((alias for alias, key in ALIASES.items() if key == f"{prefix}{field.name}"), None)
        yield _Key(
            f"{prefix}{field.name}",
            _spelling(spelling or f"{prefix}{field.name}", default),
            _with_choices(texts.get(field.name, ""), hint),
        )
        if is_dataclass(hint):
            inner.append((hint, f"{prefix}{field.name}."))
    for hint, dotted in inner:
        yield from _fields(hint, dotted)


def _docstrings(kind: type) -> dict[str, str]:
    """The docstrings of a dataclass's fields, those of the classes that it extends included."""
    import docstring_parser

    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if is_dataclass(base):
            params = docstring_parser.parse_from_object(base).params
            texts |= {param.arg_name: param.description or "" for param in params}
    return texts


def _spelling(name: str, default: Any) -> str:
    """The key as it is written, with its default as value."""
    if default is False:
        return f"--{name}"
    if is_dataclass(default) or (isinstance(default, tuple) and any(map(is_dataclass, default))):
        return f"--{name}=…"
    if isinstance(default, tuple | list):
        return f"--{name}={','.join(map(str, default)) or '…'}"
    if default is None or default == {}:
        return f"--{name}=…"
    return f"--{name}={'true' if default is True else default}"


def _with_choices(text: str, hint: Any) -> str:
    choices = choices_of(without_null(hint)[0])
    text = " ".join(text.split())
    return f"{text} ({', '.join(choices)})" if choices and not all(name in text for name in choices) else text


def _lines(keys: Iterable[_Key]) -> Iterator[str]:
    for key in keys:
        indent = " " * _COLUMN
        text = textwrap.wrap(key.text, _WIDTH - _COLUMN) or [""]
        start = f"  {key.spelling}"
        if len(start) >= _COLUMN:
            yield start
            yield f"{indent}{text[0]}".rstrip()
        else:
            yield f"{start:<{_COLUMN}}{text[0]}".rstrip()
        yield from (f"{indent}{line}" for line in text[1:])


def _first_line(function: Callable[..., Any]) -> str:
    return (function.__doc__ or "").strip().split("\n")[0]

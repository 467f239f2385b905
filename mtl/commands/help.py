"""The help of a command, and how much it prints.

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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from inspect import getsource
from itertools import pairwise
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

from mtl.commands.command_table import COMMANDS, arguments_for
from mtl.config.arguments import Arguments
from mtl.config.keys import hints_of, literal_values, marks_of, without_null
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
    arguments = arguments_for(name)
    usage = f"mtl {name} {command.file} [--KEY=VALUE …]"
    if arguments.keys is None:
        usage = arguments.usage(f"mtl {name}")
    title = f"usage: {usage}\n\n{(arguments.kind.__doc__ or '').strip().splitlines()[0]}\n"
    own = _own(arguments)
    if arguments.keys is None:
        listing = {} if command.listing is None else resolve_name(command.listing)
        below = [_Key(name, name, summary) for name, summary in listing.items()]
        names = {key.name for key in own}
        last = ["", OF_THREADS] if "accelerator" in names and "threads" not in names else []
        return "\n".join([title, *_lines(own), *([""] if below else []), *_lines(below), *last])
    keys = {key.name: key._replace(spelling=key.spelling.replace("_", "-")) for key in own}
    keys |= {key.name: key for key in _fields(arguments.keys) if key.name not in keys}
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
    if group is not None:
        shown, repeats = _folded(shown)
        for first, others in repeats.items():
            line = f"The keys of {first} are also those of {', '.join(others)}."
            rest += ["", *textwrap.wrap(line, _WIDTH)]
    end = "A key is written --KEY=VALUE, or in a file as YAML; --print_config prints the whole configuration."
    return "\n".join([title, *_lines(shown), *rest, "", end])


def _own(arguments: Arguments) -> list[_Key]:
    """What is given by place, then what must be given by name, then the rest."""
    keys, first = {key.name: key for key in _fields(arguments.kind)}, [*arguments.places, *arguments.required]
    keys |= {name: keys[name]._replace(spelling=arguments.shown(name)) for name in first}
    return [keys[name] for name in dict.fromkeys([*first, *keys])]


def _fields(kind: Any, prefix: str = "") -> Iterator[_Key]:
    """The keys of a dataclass; those of nested dataclasses come last."""
    inner = []
    for each in fields(kind):
        hint, optional = without_null(hints_of(kind)[each.name])
        key = f"{prefix}{each.name}"
        if is_dataclass(hint):
            inner.append((hint, f"{key}."))
        if not is_dataclass(hint) or optional:
            default = each.default if each.default_factory is MISSING else each.default_factory()
            name = next((alias for alias, meant in ALIASES.items() if meant == key), key)
            marks = [mark for mark in marks_of(kind)[each.name] if isinstance(mark, str)]
            text = " ".join((marks[0] if marks else _texts(kind).get(each.name, "")).split())
            choices = literal_values(hint)
            listed = f" ({', '.join(choices)})" if not all(name in text for name in choices) else ""
            yield _Key(key, _spelling(name, default), f"{text}{listed}")
    for hint, dotted in inner:
        yield from _fields(hint, dotted)


@cache
def _texts(kind: Any) -> dict[str, str]:
    """What a dataclass says of its fields, in strings below them."""
    nodes = [_classes(base.__module__).get(base.__qualname__) for base in reversed(kind.__mro__)]
    return {
        statement.target.id: str(after.value.value)
        for node in filter(None, nodes)
        for statement, after in pairwise(node.body)
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
    }


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    """The classes at the top of a module, whose source is read once; empty if there is no source."""
    try:
        tree = ast.parse(getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError):
        return {}
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _folded(keys: Sequence[_Key]) -> tuple[list[_Key], dict[str, list[str]]]:
    """The keys without groups that repeat a group beside them; and these groups, by the one that is shown."""
    groups: dict[str, list[_Key]] = {}
    for key in keys:
        groups.setdefault(key.name.rpartition(".")[0], []).append(key)
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, members in groups.items():
        texts = [f"{key.spelling.removeprefix(f'--{name}.')} {key.text}" for key in members]
        alike.setdefault((name.rpartition(".")[0], *texts), []).append(name)
    repeats = {first: others for first, *others in alike.values() if others}
    dropped = {name for others in repeats.values() for name in others}
    return [key for key in keys if key.name.rpartition(".")[0] not in dropped], repeats


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


QUIET, VERBOSE = "--quiet", "--verbose"
HELP = (
    f"Every command takes {QUIET} (no progress, no messages) and {VERBOSE} (logs of libraries, tracebacks)."
)
OF_THREADS = "On a CPU, OMP_NUM_THREADS=N in the environment sets the number of threads (default: torch's)."
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

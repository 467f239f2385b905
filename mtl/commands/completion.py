"""`mtl completion`, and the answers that shells get when Tab is pressed.

The scripts and their protocol are click's; the program is described to click by the types of its parameters.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import click
from click.shell_completion import CompletionItem, shell_complete

from mtl.commands.command_table import COMMANDS, arguments_for
from mtl.config.keys import hint_of, hints_of, item_of, known_keys_of, literal_values, without_null
from mtl.config.schema import ALIASES

VARIABLE = "_MTL_COMPLETE"
"""The variable that the scripts set when they ask; its value names the shell."""


def completion(shell: Literal["bash", "zsh", "fish"]) -> None:
    """Print a script with which a shell completes commands, options and their values.

    Args:
        shell: The shell that reads the script; docs/install.md says where to put it.
    """
    shell_complete(click.Group("mtl"), {}, "mtl", VARIABLE, f"{shell}_source")


def complete(instruction: str) -> int:
    """Print what may follow the words in the shell's variables; returns the exit code."""
    if instruction.startswith("bash"):
        _join_options()
    words = os.environ.get("COMP_WORDS", "").split()
    return shell_complete(_program(words[1:]), {}, "mtl", VARIABLE, instruction)


def _join_options() -> None:
    """Remove `=` between options and values from the variables, where bash has it as a word."""
    words, place = os.environ["COMP_WORDS"].split(), int(os.environ["COMP_CWORD"])
    os.environ["COMP_CWORD"] = str(place - words[:place].count("="))
    os.environ["COMP_WORDS"] = " ".join(word for word in words if word != "=")


def _program(words: Sequence[str]) -> click.Group:
    """The program with all commands; only the one on the command line has its parameters."""
    group = click.Group("mtl", add_help_option=False)
    for name, command in COMMANDS.items():
        parent = group
        first, _, second = name.partition(" ")
        if second:
            inner = group.commands.get(first)
            parent = inner if isinstance(inner, click.Group) else click.Group(first)
            group.add_command(parent, first)
        chosen = list(words[: name.count(" ") + 1]) == name.split()
        parameters = list(_parameters(name)) if chosen else []
        made = click.Command(second or first, params=parameters, short_help=command.summary)
        parent.add_command(made)
    return group


def _parameters(command: str) -> Iterator[click.Parameter]:
    arguments = arguments_for(command)
    hints, keys = hints_of(arguments.kind), arguments.keys
    for name, hint in hints.items():
        if name in arguments.places:
            count = -1 if item_of(hint) else 1
            yield click.Argument([name], type=_type(hint), nargs=count, required=False)
        else:
            yield _option(name if keys is None else name.replace("_", "-"), hint)
    if keys is not None:
        spellings = {meant: alias for alias, meant in ALIASES.items()}
        for key in [key for key in known_keys_of(keys) if key not in hints]:
            yield _option(spellings.get(key, key), hint_of(keys, key))
        yield click.Argument(["files"], type=click.Path(), nargs=-1)


def _option(key: str, hint: Any) -> click.Option:
    # click also needs a name that Python allows; nobody reads it.
    names = [f"--{key}", f"of_{key}".replace(".", "_").replace("-", "_")]
    if without_null(hint)[0] is bool:
        return click.Option(names, is_flag=True)
    return click.Option(names, type=_type(hint), shell_complete=_values)


def _type(hint: Any) -> click.ParamType[Any]:
    choices = literal_values(without_null(hint)[0])
    return click.Choice(choices) if choices else click.Path()


def _values(context: click.Context, option: click.Parameter, begun: str) -> list[CompletionItem[Any]]:
    """The values of an option; zsh and fish take `--key=value` for one word, and need all of it."""
    current = os.environ.get("COMP_WORDS", "").split()[-1:]
    before = f"{option.opts[0]}="
    items = option.type.shell_complete(context, option, begun)
    if not current or not current[0].startswith(before):
        return items
    return [
        item if item.type != "plain" else CompletionItem(f"{before}{item.value}", help=item.help)
        for item in items
    ]

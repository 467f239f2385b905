"""The command line of a function: its typed signature and its docstring declare what it takes.

A list takes several words; as an option, it takes those up to the next option (`--against runs/a runs/b`). A
boolean option needs no value. A parameter of type `Words` gets the files and the dotted keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from functools import cache, partial
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from mtl.config.keys import hints_of, item_of, marked, unknown, without_null
from mtl.config.parse import Words, in_range, joined_options, object_of, refusal, spelt, switches_of
from mtl.errors import InputError
from mtl.files import check_file_place, check_folder_place


@dataclass(frozen=True)
class OutPlace:
    """The value is the path of what a command writes; it is checked before anything is read."""

    check: Callable[[Path], None]
    """Raises `OSError` or `InputError` for a path that cannot be written."""


OutFile = Annotated[Path, OutPlace(check_file_place)]
OutFolder = Annotated[Path, OutPlace(check_folder_place)]


@cache
def arguments_of(function: Callable[..., Any], names: tuple[str, ...] | None = None) -> Any:
    """A dataclass with a field for each parameter that can be given by name, or for those of these names.

    It has the function's docstring, and the type of each field has its help as a mark. What may be given by
    place is not `kw_only`: the parameters before `*` or, without a `*`, those that have no default. A list
    takes its own place and all later ones.
    """
    from docstring_parser import parse

    parameters = signature(function).parameters
    starred = any(each.kind is each.KEYWORD_ONLY for each in parameters.values())
    if names is None:
        kinds = Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY
        names = tuple(name for name, each in parameters.items() if each.kind in kinds)
    # Other annotations may name what the module imports for type checkers only.
    annotations = {name: parameters[name].annotation for name in names}
    named = type("named", (), {"__annotations__": annotations, "__module__": function.__module__})
    texts = {each.arg_name: each.description for each in parse(function.__doc__ or "").params}
    rows, by_place = [], True
    for name, hint in get_type_hints(named, include_extras=True).items():
        given, made = parameters[name], field()
        by_place &= given.kind is not given.KEYWORD_ONLY if starred else given.default is given.empty
        made.kw_only = not by_place
        if isinstance(given.default, list):
            made.default_factory = partial(list, given.default)
        elif given.default is not given.empty:
            made.default = given.default
        rows.append((name, Annotated[hint, texts.get(name) or ""], made))
        by_place &= get_origin(hint) is not list
    kind = make_dataclass(function.__name__, rows, frozen=True)
    kind.__doc__ = function.__doc__
    return kind


@dataclass(frozen=True)
class Arguments:
    """What a command takes, and what is called with it."""

    call: Callable[..., Any]
    kind: Any
    """A dataclass, as `arguments_of` makes it, whose docstring begins the help."""
    words: str = ""
    """The name of the parameter for files and dotted keys, if there is one."""
    keys: Any = None
    """The dataclass of the dotted keys."""

    @classmethod
    def of(cls, command: Callable[..., Any]) -> Arguments:
        """Those of a function."""
        hints = get_type_hints(command)
        words = next((name for name, hint in hints.items() if get_origin(hint) is Words), "")
        own = tuple(name for name in signature(command).parameters if name != words)
        keys, *_ = *get_args(hints.get(words)), None
        return cls(command, arguments_of(command, own), words, keys)

    @property
    def places(self) -> list[str]:
        """The arguments that may be given by place, in order."""
        return [each.name for each in fields(self.kind) if not each.kw_only]

    @property
    def required(self) -> list[str]:
        """The arguments that must be given."""
        return [each.name for each in fields(self.kind) if each.default is each.default_factory is MISSING]

    def shown(self, name: str) -> str:
        """How an argument is shown that is given by place, or must be given."""
        return name.upper() if name in self.places else f"--{name}={name.upper()}"

    def usage(self, program: str) -> str:
        """One line: what is given by place, what must be given by name, and whether there are options."""
        hints, required = hints_of(self.kind), self.required
        parts = [program]
        for name in self.places:
            part = f"{name.upper()} …" if get_origin(hints[name]) is list else name.upper()
            parts.append(part if name in required else f"[{part}]")
        parts += [self.shown(name) for name in required if name not in self.places]
        options = hints.keys() - {*required, *self.places}
        return " ".join([*parts, *["[--OPTION=VALUE …]"] * bool(options)])

    @property
    def written(self) -> dict[str, OutPlace]:
        """The arguments that name what the command writes."""
        return dict(marked(self.kind, OutPlace))

    def read(self, program: str, words: Sequence[str]) -> dict[str, Any]:
        """The values by name, from the words on the command line.

        Raises `InputError`, with the usage, for missing, unknown and superfluous arguments. Where there are
        dotted keys, what is unknown may be one of these, and is left to `Words`.
        """
        usage, places, hints = f"; usage: {self.usage(program)}", self.places, hints_of(self.kind)
        lists = [name for name, hint in hints.items() if get_origin(without_null(hint)[0]) is list]
        values: dict[str, Any] = {}
        others: list[str] = []
        for word in joined_options(words, switches_of(self.kind) | switches_of(self.keys), lists):
            name, is_given, text = word[2:].partition("=")
            name = name.replace("-", "_")
            if self.words and not (word.startswith("--") and name in hints):
                others.append(word)
                continue
            if not word.startswith("--"):
                free = [name for name in places if name not in values or name in lists]
                if not free:
                    raise InputError(f"'{word}' is one argument too many{usage}")
                name, is_given, text = free[0], "=", word
            if name not in hints:
                raise unknown(name, hints, f"; see {program} --help")
            if name in places and is_given and not text:  # an unset variable of a shell, and not this folder
                raise InputError(f"{name.upper()} is empty{usage}")
            hint, optional = without_null(hints[name])
            if not is_given and not (name in lists and optional):
                raise InputError(f"{word} needs a value: {word}=VALUE")
            if name in lists:
                listed = spelt(text, hint) if text.startswith("[") else None
                added = listed if isinstance(listed, list) else [text] * bool(is_given)  # no list: a name
                values[name] = [*values.get(name, []), *added]
            else:
                added = [text]
                values[name] = spelt(text, hints[name])
            if "" in added and Path in (hint, item_of(hint)):
                raise InputError(refusal(name, item_of(hint) or hints[name], ""))
        for name in self.required:
            if values.get(name, []) == []:
                raise InputError(f"{self.shown(name)} is missing{usage}")
        made: Any = in_range(object_of(self.kind, values), values, "--")
        given = {name: getattr(made, name) for name in hints}
        return given | ({self.words: Words(program, self.keys, others, hints)} if self.words else {})

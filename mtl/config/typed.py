"""Plain values, made into an object of a dataclass by pydantic.

pydantic checks each value against the type of its key. Its messages name classes and are not shown: a refused
value is described here by its key and type.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_origin

from mtl.config.keys import (
    KeyFault,
    at,
    below,
    choices_of,
    group_of,
    hints_of,
    item_of,
    known_keys_of,
    mapping_of,
    remembered,
    unknown,
    without_null,
)
from mtl.config.marks import marks_of
from mtl.config.presets import completed
from mtl.config.schema import TrainConfig
from mtl.config.yaml_file import value_of
from mtl.errors import InputError, did_you_mean
from mtl.tasks.in_words import as_text, counted
from mtl.tasks.ranges import Range

T = TypeVar("T")
Change = Callable[[Mapping[str, Any]], dict[str, Any]]


def configuration_from(kind: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """An object of a dataclass from nested plain values, with numbers in their ranges; an error message
    starts with `where`."""
    where = f"{where}: " if where else ""
    return in_range(object_of(kind, values, where), values, where)


def in_range(made: T, values: Mapping[str, Any], where: str = "") -> T:
    """Return the object made from the values; raise `InputError` for numbers out of their ranges."""
    faults = [KeyFault(line.partition("=")[0], line) for line in out_of_range(made)]
    if faults:
        raise refused(faults, values, where)
    return made


def range_of(kind: Any, name: str) -> Range | None:
    """The range of a dataclass's field; `None`: any finite number."""
    return next((mark for mark in marks_of(kind)[name] if isinstance(mark, Range)), None)


def out_of_range(settings: Any, prefix: str = "") -> Iterator[str]:
    """A line for each number of a dataclass's object that is out of its range; the dotted key comes first."""
    for name in marks_of(type(settings)):
        value, allowed = getattr(settings, name), range_of(type(settings), name)
        inner: dict[str, Any] = {"": value}
        if isinstance(value, Mapping):
            inner = {f".{key}": each for key, each in value.items()}
        elif isinstance(value, list | tuple):
            inner = {f"[{number}]": each for number, each in enumerate(value)}
        for place, each in inner.items():
            key = f"{prefix}{name}{place}"
            if is_dataclass(each):
                yield from out_of_range(each, f"{key}.")
            elif not isinstance(each, int | float) or isinstance(each, bool):
                continue
            elif allowed is not None and each not in allowed:
                yield f"{key}={_short(each)}: use {allowed.wanted()}"
            elif isinstance(each, float) and not math.isfinite(each):
                yield f"{key}={each}: use a finite number"


def _short(value: int | float) -> str:
    """A number in at most 20 characters."""
    text = str(value)
    return text if len(text) <= 20 else f"{text[:12]}… ({counted(len(text), 'digit')})"


def object_of(kind: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """An object of a dataclass; a message starts with the place of its key (`Key`), or with `where`."""
    from pydantic import ValidationError

    values = getattr(kind, "renamed", dict)(by_section(kind, values, completed))
    try:
        return cast(T, _validator(kind).validate_python(values, extra="forbid"))
    except ValidationError as error:
        faults = [_fault(kind, values, each) for each in error.errors(include_url=False)]
        raise refused(faults, values, where) from error


def refused(faults: Sequence[KeyFault], values: Mapping[str, Any], where: str = "") -> InputError:
    """The error for the first fault of values; it starts with the place of its key, or with `where`.

    Faults of tasks with names of their own come last, since their values may be those of other keys (of
    `dep~a` those of `dep`). Their messages name the key of the short form, `tasks.NAME.KEY`.
    """
    fault = min(faults, key=lambda each: each.key.startswith("instances."))
    message = re.sub(r"^instances\.", "tasks.", str(fault))
    return InputError(f"{_place_of(fault.key, values) or where}{message}")


def _place_of(key: str, values: Any) -> str:
    """The place of a dotted key of values, or of the group that it is in; empty without one."""
    place = ""
    for part in key.replace("[", ".").replace("]", "").split("."):
        names = {str(name): name for name in values} if isinstance(values, Mapping) else {}
        if part in names:
            place = getattr(names[part], "place", place)
            values = values[names[part]]
        elif isinstance(values, list) and part.isdigit():
            values = values[int(part)]
    return place


def section_of(kind: type) -> str | None:
    """The prefix of a training's keys in a configuration of this type; `None`: it holds no training."""
    groups = (f"{name}." for name, hint in hints_of(kind).items() if hint is TrainConfig)
    return "" if kind is TrainConfig else next(groups, None)


def by_section(kind: type, values: Mapping[str, Any], change: Change) -> dict[str, Any]:
    """The values, with the training's configuration among them changed."""
    prefix = section_of(kind)
    section = values.get(prefix[:-1]) if prefix else values
    if prefix is None or not isinstance(section, Mapping):
        return dict(values)
    made = change(section)
    return {**values, prefix[:-1]: made} if prefix else made


@remembered
def _validator(kind: Any) -> Any:
    """pydantic's validator of a dataclass, which refuses unknown keys and converts no value to another type,
    except quoted numbers, and whole numbers where any number is wanted."""
    from pydantic import TypeAdapter
    from pydantic_core import SchemaValidator
    from pydantic_core.core_schema import no_info_before_validator_function

    def strict(part: Any) -> Any:
        if isinstance(part, list | tuple):
            return type(part)(map(strict, part))
        if not isinstance(part, dict):
            return part
        kept = ("default", "serialization", "metadata")
        made: Any = {key: value if key in kept else strict(value) for key, value in part.items()}
        if made.get("type") not in ("int", "float", "bool", "str"):
            return made
        made["strict"] = True
        return made if made["type"] == "str" else no_info_before_validator_function(_unquoted, made)

    return SchemaValidator(strict(TypeAdapter(kind).core_schema))


def _unquoted(value: Any) -> Any:
    return value_of(value) if isinstance(value, str) and value.strip() else value


def _fault(kind: Any, value: Any, error: Mapping[str, Any]) -> KeyFault:
    """What is wrong with a value, from one of pydantic's errors."""
    key, hint = "", kind
    for part in error["loc"]:
        if group_of(hint) is None:
            break
        group = key
        key = f"{key}[{part}]" if isinstance(part, int) else f"{key}.{part}".lstrip(".")
        known = known_keys_of(group_of(hint))
        hint = below(hint, part)
        if hint is None:
            return unknown(key, [f"{group}.{name}".lstrip(".") for name in known], "; see --help")
        value = value.get(part) if isinstance(value, Mapping) else value[part]
    if error["type"] == "missing":
        return at(key, " is missing")
    if error["type"] == "value_error":  # of a dataclass that checks its own values
        cause = error["ctx"]["error"]
        key = f"{key}.{cause.key}".lstrip(".") if isinstance(cause, KeyFault) else key
        return KeyFault(key, f"{key}: {cause}" if key and not isinstance(cause, InputError) else str(cause))
    return KeyFault(".".join(map(str, error["loc"])), refusal(key, hint, value))


def refusal(key: str, kind: Any, value: Any) -> str:
    """The message on a value that does not fit its key's type."""
    hint, optional = without_null(kind)
    shown, item, choices = as_text(value), item_of(hint), choices_of(hint)
    names = choices_of((mapping_of(hint) or (None,))[0])
    if value is None:
        message = " cannot be null: set a value, or leave it out"
    elif is_dataclass(hint):
        message = f" holds other keys, and cannot be '{shown}'; set {key}.KEY"
    elif isinstance(value, Mapping) and names and (odd := [name for name in value if name not in names]):
        return str(unknown(f"{key}.{odd[0]}", [f"{key}.{name}" for name in names]))
    elif item is not None and not isinstance(value, list | tuple):
        message = f": expected a list, for instance --{key}=[{shown.strip('[]')}], not {shown}"
    elif choices:
        odd = [value] if item is None else [name for name in value if name not in choices]
        choose = f": choose from {', '.join(choices)}"
        message = f": unknown '{as_text(odd[0])}'{did_you_mean(str(odd[0]), choices, choose)}"
    else:
        expected = _described(hint)
        null = (", or null" if ", or " in expected else " or null") if optional else ""
        given = f"[{', '.join(map(as_text, value))}]" if isinstance(value, list | tuple) else repr(shown)
        message = f": expected {expected}{null}, not {given}"
    return f"{key}{message}"


_TYPES: dict[Any, str] = {
    int: "a whole number", float: "a number", bool: "true or false", str: "a text (in quotes)",
    Path: "a path",
}  # fmt: skip


def _described(hint: Any) -> str:
    """A type in words."""
    if get_origin(hint) in (dict, list, tuple):
        what = "KEY: VALUE pairs, each value" if get_origin(hint) is dict else "a list, each"
        return f"{what} {_TYPES.get(item_of(hint) or get_args(hint)[1], 'as its type says')}"
    if mapping_of(hint):
        return ", or ".join(_described(part) for part in get_args(hint) if part is not type(None))
    return _TYPES.get(hint, str(hint))

"""Plain values, made into an object of a dataclass by pydantic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_origin

from mtl.config.keys import (
    KeyFault,
    choices_of,
    hints_of,
    item_of,
    known_keys_of,
    mapping_of,
    remembered,
    without_null,
)
from mtl.config.presets import completed
from mtl.config.schema import TrainConfig
from mtl.config.yaml_file import value_of
from mtl.errors import InputError, did_you_mean
from mtl.tasks.in_words import as_text

T = TypeVar("T")


def configuration_from(kind: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """An object of a dataclass from nested plain values; an error message starts with `where`."""
    return object_of(kind, values, {"": f"{where}: " if where else ""})


def object_of(kind: type[T], values: Mapping[str, Any], places: Mapping[str, str]) -> T:
    """An object of a dataclass; a message starts with the place of its key, or of the group that it is in."""
    from pydantic import ValidationError

    for prefix in sections_of(kind):
        section = values.get(prefix[:-1]) if prefix else values
        if isinstance(section, Mapping):
            values = {**values, prefix[:-1]: completed(section)} if prefix else completed(section)
    values = getattr(kind, "renamed", dict)(values)
    try:
        return cast(T, _validator(kind).validate_python(values))
    except ValidationError as error:
        errors = sorted(
            error.errors(include_url=False), key=lambda each: is_derived(".".join(map(str, each["loc"])))
        )
        fault = _fault(kind, values, errors[0])
        raise InputError(f"{place_of(fault.key, places)}{as_written(str(fault))}") from error


_OF_INSTANCES = "instances."


def is_derived(key: str) -> bool:
    """Whether the value at a dotted key may come from another key, as that of `dep~a` from `dep`."""
    return key.startswith(_OF_INSTANCES)


def as_written(message: str) -> str:
    """A message on a task's key, with the key of the short form: `tasks.NAME.KEY`."""
    return f"tasks.{message.removeprefix(_OF_INSTANCES)}" if is_derived(message) else message


def place_of(key: str, places: Mapping[str, str]) -> str:
    """The place of a dotted key, or of the group that it is in."""
    while key and key not in places:
        key = key.rpartition("[" if key.endswith("]") else ".")[0]
    return places.get(key, "")


def sections_of(kind: type) -> list[str]:
    """What keys of a training's configuration begin with in a configuration of this type."""
    if kind is TrainConfig:
        return [""]
    return [f"{name}." for name, hint in hints_of(kind).items() if hint is TrainConfig]


@remembered
def _validator(kind: Any) -> Any:
    """pydantic's validator of a dataclass: unknown keys are refused, and no value becomes one of another type
    but a quoted number, and a whole number where any number is wanted."""
    from pydantic import TypeAdapter
    from pydantic_core import SchemaValidator
    from pydantic_core.core_schema import no_info_before_validator_function

    def strict(schema: Any) -> None:
        for key, inner in schema.items() if isinstance(schema, dict) else enumerate(schema):
            if isinstance(inner, dict | list | tuple) and key not in ("default", "serialization", "metadata"):
                strict(inner)
        if not isinstance(schema, dict):
            return
        if schema.get("type") == "dataclass-args":
            schema["extra_behavior"] = "forbid"
        if schema.get("type") in ("int", "float", "bool", "str"):
            exact = {**schema, "strict": True}
            number = no_info_before_validator_function(_unquoted, cast(Any, exact))
            schema.update(exact if schema["type"] == "str" else number)

    schema = TypeAdapter(kind).core_schema
    strict(schema)
    return SchemaValidator(schema)


def _unquoted(value: Any) -> Any:
    return value_of(value) if isinstance(value, str) and value.strip() else value


def _fault(kind: Any, value: Any, error: Mapping[str, Any]) -> KeyFault:
    """What is wrong with a value, from the first of pydantic's errors."""
    key, hint = "", kind
    for part in error["loc"]:
        group, _ = without_null(hint)
        item = item_of(group)
        named = mapping_of(group)
        if named is not None and is_dataclass(named[1]):
            key, hint = f"{key}.{part}", named[1]
        elif is_dataclass(group):
            known = [f"{key}.{name}".lstrip(".") for name in known_keys_of(group)]
            key = f"{key}.{part}".lstrip(".")
            if part not in hints_of(group):
                return KeyFault(key, f"unknown key '{key}'{did_you_mean(key, known, '; see --help')}")
            hint = hints_of(group)[part]
        elif is_dataclass(item):
            key, hint = f"{key}[{part}]", item
        else:
            break
        if error["type"] == "missing" and part == error["loc"][-1]:
            return KeyFault(key, f"{key} is missing")
        value = value[part]
    if error["type"] == "value_error":  # of a dataclass that checks its own values
        cause = error["ctx"]["error"]
        key = f"{key}.{cause.key}".lstrip(".") if isinstance(cause, KeyFault) else key
        return KeyFault(key, f"{key}: {cause}" if key and not isinstance(cause, InputError) else str(cause))
    return KeyFault(key, refusal(key, hint, value))


def refusal(key: str, kind: Any, value: Any) -> str:
    """The message on a value that does not fit its key's type."""
    hint, optional = without_null(kind)
    shown = as_text(value)
    item, choices = item_of(hint), choices_of(hint)
    if value is None:
        return f"{key} cannot be null: set a value, or leave it out"
    if is_dataclass(hint):
        return f"{key} holds other keys, and cannot be '{shown}'; set {key}.KEY"
    if isinstance(value, Mapping) and (names := choices_of((mapping_of(hint) or (str,))[0])):
        odd = next((name for name in value if name not in names), None)
        if odd is not None:
            known = [f"{key}.{name}" for name in names]
            return f"unknown key '{key}.{odd}'{did_you_mean(f'{key}.{odd}', known)}"
    if item is not None and not isinstance(value, list | tuple):
        return f"{key}: expected a list, for instance --{key}=[{shown.strip('[]')}], not {shown}"
    if choices:
        odd = value if item is None else next((name for name in value if name not in choices), value)
        choose = f": choose from {', '.join(choices)}"
        return f"{key}: unknown '{shown if item is None else odd}'{did_you_mean(str(odd), choices, choose)}"
    expected = f"a list, each {_TYPES.get(item, 'as its type says')}" if item else _described(hint)
    null = ", or null" if ", or " in expected else " or null"
    given = f"[{', '.join(map(as_text, value))}]" if isinstance(value, list | tuple) else repr(shown)
    return f"{key}: expected {expected}{null if optional else ''}, not {given}"


_TYPES: dict[Any, str] = {
    int: "a whole number", float: "a number", bool: "true or false", str: "a text (in quotes)",
    Path: "a path",
}  # fmt: skip


def _described(hint: Any) -> str:
    """A type in words."""
    if get_origin(hint) is dict:
        return f"KEY: VALUE pairs, each value {_TYPES.get(get_args(hint)[1], 'as its type says')}"
    if mapping_of(hint):
        return ", or ".join(_described(part) for part in get_args(hint) if part is not type(None))
    return _TYPES.get(hint, str(hint))

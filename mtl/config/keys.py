"""The keys of a configuration, as the fields of dataclasses, and what their types allow."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import lru_cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def hints_of(kind: Any) -> dict[str, Any]:
    """The types of a dataclass's fields."""
    return _hints(kind)


@lru_cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def without_null(hint: Any) -> tuple[Any, bool]:
    """A type without `None`, and whether it had it."""
    if get_origin(hint) in (Union, UnionType):
        rest = [part for part in get_args(hint) if part is not type(None)]
        return (rest[0] if len(rest) == 1 else hint), len(rest) < len(get_args(hint))
    return hint, False


def choices_of(hint: Any) -> list[str]:
    """The values of a `Literal`, also of one in a list; empty for other types."""
    inner = item_of(hint) or hint
    return [str(choice) for choice in get_args(inner)] if get_origin(inner) is Literal else []


def item_of(hint: Any) -> Any:
    """The type of a list's items; `None` for what is no list."""
    return get_args(hint)[0] if get_origin(hint) in (tuple, list) else None


def mapping_of(hint: Any) -> tuple[Any, Any] | None:
    """The types of keys and values of a mapping, also where it is one of several types; else `None`."""
    if get_origin(hint) is dict:
        key, value = get_args(hint)
        return key, value
    inner = get_args(hint) if get_origin(hint) in (Union, UnionType) else ()
    return next((found for part in inner if (found := mapping_of(part))), None)


def known_keys_of(kind: Any) -> tuple[str, ...]:
    """All dotted keys of a configuration, groups included, and those of mappings whose keys are listed."""
    keys = []
    for name, kind_of_field in hints_of(kind).items():
        hint, _ = without_null(kind_of_field)
        keys.append(name)
        if is_dataclass(hint):
            keys += [f"{name}.{inner}" for inner in known_keys_of(hint)]
        elif mapping := mapping_of(hint):
            keys += [f"{name}.{choice}" for choice in choices_of(mapping[0])]
    return tuple(keys)


def switches_of(kind: Any) -> frozenset[str]:
    """The keys that are true or false, and need no value to be true."""
    return frozenset(name for name, hint in hints_of(kind).items() if hint is bool)

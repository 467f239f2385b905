"""The keys of a configuration, as the fields of dataclasses, and what their types allow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from functools import lru_cache
from types import UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from mtl.errors import InputError, did_you_mean

F = TypeVar("F", bound=Callable[..., Any])


def remembered(function: F) -> F:
    """`lru_cache` for functions of a dataclass, which mypy does not take for hashable."""
    return cast(F, lru_cache(function))


class KeyFault(InputError):
    """A refused value, and its dotted key."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


class Key(str):
    """A key of a mapping and its place (file and line, or nothing), with which messages begin."""

    place = ""

    def placed(self, place: str) -> Key:
        """Set the key's place; returns the key."""
        self.place = place
        return self


def at(key: str, said: str) -> KeyFault:
    """The fault of a key's value; the message is the key followed by `said`."""
    return KeyFault(key, f"{key}{said}")


def unknown(key: str, known: Iterable[str], otherwise: str | None = None) -> KeyFault:
    """The fault of an unknown key, with the nearest of the known ones (`did_you_mean`)."""
    return KeyFault(key, f"unknown key '{key}'{did_you_mean(key, known, otherwise)}")


@remembered
def hints_of(kind: Any) -> dict[str, Any]:
    """The types of a dataclass's fields, without what annotates them; none for other types."""
    hints = get_type_hints(kind) if is_dataclass(kind) else {}
    return {field.name: hints[field.name] for field in fields(kind)} if hints else {}


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


def below(hint: Any, name: str | int) -> Any:
    """The type of what a group, a mapping or a list has at a name or number; `None`: nothing can be there."""
    kind, _ = without_null(hint)
    names, value = mapping_of(kind) or (None, None)  # such as balancer.weights.dep
    if names is not None:
        listed = choices_of(names)
        return value if not listed or name in listed else None
    return item_of(kind) if isinstance(name, int) else hints_of(kind).get(name)


def group_of(hint: Any) -> Any:
    """The dataclass that a type is, or that its list or mapping holds; `None`: there is no dataclass."""
    kind, _ = without_null(hint)
    inner: tuple[Any, ...] = (kind, item_of(kind), *(mapping_of(kind) or ()))
    return next(filter(is_dataclass, inner), None)


def known_keys_of(kind: Any) -> tuple[str, ...]:
    """All dotted keys of a configuration, groups included, and those of mappings whose keys are listed."""
    keys = []
    for name, hint in hints_of(kind).items():
        inner, _ = without_null(hint)
        listed = choices_of((mapping_of(inner) or (None,))[0])
        keys += [name, *(f"{name}.{below}" for below in (*known_keys_of(inner), *listed))]
    return tuple(keys)


def hint_of(kind: Any, dotted: str, others: Iterable[str] = ()) -> Any:
    """The type of a dotted key; raises `InputError` for an unknown one, perhaps meant for one of `others`."""
    hint: Any = kind
    for name in dotted.split("."):
        hint = below(hint, name)
        if hint is None:
            raise unknown(dotted, [*others, *known_keys_of(kind)], "; see --help")
    return hint

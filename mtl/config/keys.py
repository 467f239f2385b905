"""The keys of a configuration, as the fields of dataclasses, and marks on them beside their types.

A mark gives a range, when the setting is used, or that its value is a path or changes no result. A new
setting needs nothing elsewhere. Rules over several settings are in `FORBIDDEN` of the dataclass that has
them. All dataclasses inside a run's configuration are searched, so that one of another package brings its own
marks and rules.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, lru_cache
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from mtl.errors import InputError, did_you_mean

F = TypeVar("F", bound=Callable[..., Any])


def remembered(function: F) -> F:
    """`lru_cache` for functions of a dataclass, which mypy does not take for hashable."""
    return cast(F, lru_cache(function))


_PLACES = ("out", "output", "name", "json_out")
"""The keys that say where a command's result goes; the first one that a command knows is its own."""


class KeyFault(InputError):
    """A refused value, and its dotted key, which the message names by `shown_key`."""

    def __init__(self, key: str, message: str) -> None:
        shown = shown_key(key)
        super().__init__(message if shown == key else message.replace(key, shown))
        self.key = key


class Key(str):
    """A key of a mapping and its place (file and line, or nothing), with which messages begin."""

    place = ""

    def placed(self, place: str) -> Key:
        """Set the key's place; returns the key."""
        self.place = place
        return self


def shown_key(key: str) -> str:
    """A dotted key as messages name it: what tasks with names of their own have is below `tasks.NAME`."""
    if key.startswith("corpus.instances."):
        name, _, rest = key.removeprefix("corpus.instances.").partition(".")
        return f"tasks.{name}.files.{rest}" if rest else f"tasks.{name}.files"
    return f"tasks.{key.removeprefix('instances.')}" if key.startswith("instances.") else key


def at(key: str, said: str) -> KeyFault:
    """The fault of a key's value; the message is the key followed by `said`."""
    return KeyFault(key, f"{key}{said}")


def unknown(key: str, known: Iterable[str], otherwise: str | None = None) -> KeyFault:
    """The fault of an unknown key, with the nearest of the known ones (`did_you_mean`).

    Commands name the place of their result in different ways. The message on another command's way has the
    known one. Where `known` is a mapping to types, an `output` with a list of choices is a format, no place.
    """
    known = {shown_key(name): known[name] if isinstance(known, Mapping) else None for name in known}
    places = {name for name, hint in known.items() if not literal_values(hint)}
    if key in _PLACES and (here := next(filter(places.__contains__, _PLACES), None)):
        otherwise = f": here '{here}' says where the result goes"
    shown = shown_key(key)
    return KeyFault(key, f"unknown key '{shown}'{did_you_mean(shown, known, otherwise)}")


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


def names_listed(hint: Any) -> list[str]:
    """The names that a mapping's type of names lists, whether or not others are possible."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return [name for part in parts for name in literal_values(part)]


def literal_values(hint: Any) -> list[str]:
    """The values of a `Literal`, also of one in a list; empty for other types."""
    inner = item_of(hint) or hint
    return [str(choice) for choice in get_args(inner)] if get_origin(inner) is Literal else []


def item_of(hint: Any) -> Any:
    """The type of a list's items, also where it is one of several types; `None` for what is no list."""
    if get_origin(hint) in (Union, UnionType):
        return next((found for part in get_args(hint) if (found := item_of(part)) is not None), None)
    return get_args(hint)[0] if get_origin(hint) in (tuple, list) else None


def mapping_types(hint: Any) -> tuple[Any, Any] | None:
    """The types of keys and values of a mapping, also where it is one of several types; else `None`."""
    if get_origin(hint) is dict:
        key, value = get_args(hint)
        return key, value
    inner = get_args(hint) if get_origin(hint) in (Union, UnionType) else ()
    return next((found for part in inner if (found := mapping_types(part))), None)


def below(hint: Any, name: str | int) -> Any:
    """The type of what a group, a mapping or a list has at a name or number; `None`: nothing can be there."""
    kind, _ = without_null(hint)
    names, value = mapping_types(kind) or (None, None)  # such as balancer.weights.dep
    if names is not None:
        listed = literal_values(names)
        return value if not listed or name in listed else None
    return item_of(kind) if isinstance(name, int) else hints_of(kind).get(name)


def group_of(hint: Any) -> Any:
    """The dataclass that a type is, or that its list or mapping holds; `None`: there is no dataclass."""
    kind, _ = without_null(hint)
    inner: tuple[Any, ...] = (kind, item_of(kind), *(mapping_types(kind) or ()))
    return next(filter(is_dataclass, inner), None)


def known_keys_of(kind: Any) -> tuple[str, ...]:
    """All dotted keys of a configuration, groups included, and those of mappings whose keys are listed."""
    keys = []
    for name, hint in hints_of(kind).items():
        inner, _ = without_null(hint)
        listed = names_listed((mapping_types(inner) or (None,))[0])
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


def within(key: str, groups: Collection[str]) -> bool:
    """Whether a dotted key is one of these, or is inside one of them."""
    return not _with_groups(key).isdisjoint(groups)


@cache
def _with_groups(key: str) -> frozenset[str]:
    """A dotted key and the groups that contain it: `a.b.c`, `a.b`, `a`."""
    parts = key.split(".")
    return frozenset(".".join(parts[:end]) for end in range(len(parts), 0, -1))


M = TypeVar("M")


@dataclass(frozen=True)
class Used:
    """When a setting, or group of settings, makes a difference to a run, by the run's `TrainConfig`."""

    when: Callable[[Any], bool]


@dataclass(frozen=True)
class Joint:
    """The setting makes no difference to a run of one task."""


@dataclass(frozen=True)
class Volatile:
    """The setting does not change what a run computes: a run may be resumed with another value."""


@dataclass(frozen=True)
class ContentPath:
    """The value is a path; what lies there is fingerprinted by itself."""


FilePath = Annotated[str, ContentPath()]


@dataclass(frozen=True)
class NotEmpty:
    """The value is a folder; an empty text, such as of an unset variable of a shell, is not this folder."""


OutputFolder = Annotated[str, NotEmpty()]


@dataclass(frozen=True)
class Forbidden:
    """Values of settings that exclude each other."""

    when: Callable[[Any], Any]
    """Whether a configuration has them: anything true, which the message may name as `found`."""
    message: str
    """What is wrong, where and how to fix it; a template over the configuration, `run`, and `found`, and over
    the `tasks` of a `TrainConfig`."""

    def fault(self, run: Any) -> str | None:
        """The message on a configuration; `None` if it does not have these values."""
        found = self.when(run)
        tasks = ", ".join(run.chosen()) if found and "{tasks}" in self.message else ""
        return self.message.format(run=run, found=found, tasks=tasks) if found else None


def refuse_forbidden(rules: Iterable[Forbidden], run: Any) -> None:
    """Raise `InputError` for a configuration that has values which one of the rules forbids."""
    for fault in filter(None, (rule.fault(run) for rule in rules)):
        raise InputError(fault)


@remembered
def marks_of(kind: Any) -> dict[str, tuple[Any, ...]]:
    """What annotates the type of each field of a dataclass, also inside of `X | None` and of lists."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: tuple(_marks(hints[field.name])) for field in fields(kind)}


def _marks(hint: Any) -> Iterator[Any]:
    annotated = get_origin(hint) is Annotated
    for part in get_args(hint)[: 1 if annotated else None]:
        yield from _marks(part)
    yield from hint.__metadata__ if annotated else ()


@remembered
def marked(kind: Any, mark: type[M]) -> tuple[tuple[str, M], ...]:
    """The dotted keys of a configuration that have a mark of this type, with it."""
    return tuple(_marked(kind, mark, ""))


def _marked(kind: Any, mark: type[M], prefix: str) -> Iterator[tuple[str, M]]:
    for name, hint in hints_of(kind).items():
        yield from ((f"{prefix}{name}", found) for found in marks_of(kind)[name] if isinstance(found, mark))
        group, _ = without_null(hint)
        if is_dataclass(group):
            yield from _marked(group, mark, f"{prefix}{name}.")


def faults(run: Any) -> Iterator[str]:
    """What `FORBIDDEN` says of a run's configuration: first its own rules, then those of its groups."""
    groups = [getattr(run, field.name) for field in fields(run)]
    for group in (run, *filter(is_dataclass, groups)):
        rules: tuple[Forbidden, ...] = getattr(group, "FORBIDDEN", ())
        yield from filter(None, (rule.fault(run) for rule in rules))

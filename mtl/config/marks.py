"""Marks on a setting, beside its type: `penalty: Annotated[ByKind | None, Range(0, 9), Was(0.01)]`.

A mark gives a range, a former default, when the setting is used, or that its value is a path or changes no
result. A new setting needs nothing elsewhere. Rules over several settings are in `FORBIDDEN` of the dataclass
that has them. All dataclasses inside a run's configuration are searched, so that one of another package
brings its own marks and rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from mtl.config.keys import hints_of, remembered, without_null
from mtl.errors import InputError

M = TypeVar("M")


@dataclass(frozen=True)
class Was:
    """The default before it was changed: the value that counts for nothing (`mtl.config.effective`)."""

    value: Any


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
class Place:
    """The value is a path; what lies there is fingerprinted by itself."""


FilePath = Annotated[str, Place()]


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


def refuse(rules: Iterable[Forbidden], run: Any) -> None:
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

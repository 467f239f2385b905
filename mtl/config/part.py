"""Parts of a training that packages beside the core add: their keys and the rules for these.

A part is an entry of a registry (`mtl.registries`), a *start* or a *meter* (`mtl.training.parts`). Modules of
parts and this one import no torch: what needs it is imported where it is made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from mtl.config.marks import Forbidden, Place, marked, refuse
from mtl.config.task_slots import Slot
from mtl.files import fingerprint
from mtl.registries import Registry, entry, module_of, names

if TYPE_CHECKING:
    from mtl.config.schema import TrainConfig


class Part(ABC):
    """What the core asks about the settings of a part."""

    key: ClassVar[str]
    """The key, or group of keys, in a run's configuration."""
    slot: ClassVar[Slot]
    """Its type, or a dataclass; ranges and paths are marked there (`mtl.config.marks`)."""
    forbidden: ClassVar[tuple[Forbidden, ...]] = ()
    """Values of its settings that do not fit others of the run."""

    @property
    def files(self) -> tuple[str, ...]:
        """The dotted keys that name files (`Place`), which count by their content (`content`)."""
        from mtl.config.schema import TrainConfig  # which has the slots of parts

        return tuple(key for key, _ in marked(TrainConfig, Place) if f"{key}.".startswith(f"{self.key}."))

    @abstractmethod
    def used(self, config: Mapping[str, Any]) -> bool:
        """Whether a run with this configuration, of plain values, uses the part; it may lack keys."""

    def check(self, config: TrainConfig, tasks: tuple[str, ...]) -> None:
        """Raise `InputError` for settings of the part that do not fit the others, by default `forbidden`."""
        refuse(self.forbidden, config)

    @abstractmethod
    def unused(self, config: TrainConfig) -> Sequence[str]:
        """The dotted keys of the part whose values make no difference to this run of several tasks."""

    def row_per_task(self, config: TrainConfig) -> bool:
        """Whether a sentence is a row for each task."""
        return False

    def content(self, path: Path) -> str | None:
        """A fingerprint of what counts in one of its `files`, by default all; `None` if it cannot be read."""
        try:
            return fingerprint([path])
        except OSError:
            return None

    def in_words(self, used: Mapping[str, Any]) -> str:
        """What the name of a run's setup says of the part, by the dotted keys that the run uses."""
        return ""


def _of(registry: Registry) -> tuple[Part, ...]:
    return tuple(entry(registry, name) for name in names(registry))


def starts() -> tuple[Part, ...]:
    """What can be done to encoder and tasks before training (`mtl.training.parts.Start`)."""
    return _of("starts")


def meters() -> tuple[Part, ...]:
    """What can watch the steps of a training (`mtl.training.parts.Meter`)."""
    return _of("meters")


def parts() -> tuple[Part, ...]:
    """All starts and meters."""
    return *starts(), *meters()


def files_of_parts() -> tuple[str, ...]:
    """The dotted keys of parts that name files."""
    return tuple(key for part in parts() for key in part.files)


def row_per_task(config: TrainConfig) -> bool:
    """Whether a start makes a row for each task of a sentence."""
    return any(start.row_per_task(config) for start in starts())


def one_mask(config: TrainConfig) -> bool:
    """Whether several tasks share a mask, so that one pass through the encoder serves them."""
    return len(config.tasks) > 1 and config.gates.scope == "shared" and not row_per_task(config)


def modules_of_parts(config: Mapping[str, Any]) -> Iterator[str]:
    """The modules of the parts that a run with this configuration, of plain values, uses."""
    registries: tuple[Registry, ...] = ("starts", "meters")
    for registry in registries:
        for name in names(registry):
            if entry(registry, name).used(config):
                yield module_of(registry, name)

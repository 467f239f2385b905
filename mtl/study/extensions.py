"""What packages beside the core add to a study: masks that it makes, and what a start needs prepared.

Both are entries of registries (`mtl.registries`); so are `setups`: functions from the tasks of a study to the
sets of tasks of a setup. The modules of entries import nothing heavy, so that planning is quick.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from mtl.config.marks import Forbidden
from mtl.config.task_slots import Slot
from mtl.registries import entry, names

if TYPE_CHECKING:
    from mtl.study.config import Block
    from mtl.study.jobs.folder import StudyFolder
    from mtl.study.jobs.job import Job
    from mtl.study.made_masks import MadeMasks


@dataclass(frozen=True)
class MasksToMake:
    """The masks that a study makes for a run; the run's seed is the number of the draw."""

    source: str
    """The source's key."""
    settings: Any
    """What the source needs besides the run's tasks and seed."""


class MaskSource(ABC):
    """Masks for runs with `pruning=fixed` that a study makes, by settings in their block."""

    key: ClassVar[str]
    """The key of a block, which is `null` in blocks without such masks."""
    slot: ClassVar[Slot]

    forbidden: ClassVar[tuple[Forbidden, ...]] = ()
    """What a block whose masks are made cannot have."""

    @abstractmethod
    def kinds(self, block: Block, setup: str, tasks: Sequence[str]) -> Iterator[tuple[str, Any]]:
        """The kinds of masks of each run of a setup: a label, and `MasksToMake.settings`.

        Raises `InputError` for tasks that cannot have such masks.
        """

    @abstractmethod
    def masks(self, runs: Sequence[Job]) -> dict[str, MadeMasks]:
        """The masks of runs that have them from this source, by path; the same in every call."""


class Preparation(ABC):
    """What a study does for the runs of the start of the same name."""

    part: ClassVar[str]
    """The part of `Job.made_of` for what is prepared."""
    changed: ClassVar[str]
    """Why a run is made again if that part changes."""

    @abstractmethod
    def with_sources(self, runs: Sequence[Job], folder: Path) -> list[Job]:
        """The runs, with the names of those that their preparation needs (`prepared_from`).

        Raises `InputError` for a grid that lacks such runs.
        """

    @abstractmethod
    def check(self, runs: Sequence[Job]) -> None:
        """Raise `InputError` for runs that cannot be made."""

    @abstractmethod
    def fingerprints(self, run: Job, of_files: Callable[[tuple[Path, ...]], str]) -> dict[str, str]:
        """The part of `Job.made_of` for files that are given, and not prepared."""

    @abstractmethod
    def notes(self, jobs: Mapping[str, Job], changed: set[str], study: StudyFolder) -> Iterator[str]:
        """Lines on jobs of which it is known that they will fail; nothing is known of those in `changed`."""

    @abstractmethod
    def prepare(self, job: Job, study: StudyFolder) -> None:
        """Prepare a job, after the runs in `prepared_from`; every process prepares it in the same way."""


def mask_sources() -> tuple[MaskSource, ...]:
    """All sources of masks that a study makes."""
    return tuple(entry("mask_sources", name) for name in names("mask_sources"))


def preparations() -> tuple[Preparation, ...]:
    """All preparations."""
    return tuple(entry("preparations", name) for name in names("preparations"))


def preparation_of(config: Mapping[str, Any]) -> Preparation | None:
    """The preparation of a run with this configuration, of plain values; `None`: it needs none."""
    used = (name for name in names("preparations") if entry("starts", name).used(config))
    return next((entry("preparations", name) for name in used), None)

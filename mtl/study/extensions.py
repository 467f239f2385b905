"""What packages beside the core add to a study: masks that it makes, and what it prepares for a start.

Both are entries of registries (`mtl.registries`), and so are `setups`, functions from the tasks of a study to
the sets of tasks of a setup. Modules of entries import nothing heavy, so that planning is fast.
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
    """What the source needs in addition to the run's tasks and seed."""


class MaskSource(ABC):
    """Masks that a study makes for runs with `pruning=fixed`, by settings of their block."""

    key: ClassVar[str]
    """The key of these settings, `null` in blocks without such masks."""
    slot: ClassVar[Slot]
    forbidden: ClassVar[tuple[Forbidden, ...]] = ()
    """Rules for blocks with such masks."""

    @abstractmethod
    def kinds(self, block: Block, setup: str, tasks: Sequence[str]) -> Iterator[tuple[str, Any]]:
        """The kinds of masks of the runs of a setup with these tasks: a label, and `MasksToMake.settings`.

        Raises `InputError` for tasks that cannot have such masks.
        """

    @abstractmethod
    def masks(self, runs: Sequence[Job]) -> dict[str, MadeMasks]:
        """The masks of runs of this source, by path; every call returns the same."""


class Preparation(ABC):
    """What a study prepares for the runs of the start with the same name."""

    part: ClassVar[str]
    """The part of `Job.made_of` that covers what is prepared."""
    changed: ClassVar[str]
    """The reason to make a run again if that part changes, as it is printed."""

    @abstractmethod
    def with_sources(self, runs: Sequence[Job], folder: Path) -> list[Job]:
        """The runs, with the names of those from which they are prepared (`prepared_from`).

        Raises `InputError` for a grid that lacks such runs.
        """

    @abstractmethod
    def check(self, runs: Sequence[Job]) -> None:
        """Raise `InputError` for runs that would fail."""

    @abstractmethod
    def fingerprints(self, run: Job, of_files: Callable[[tuple[Path, ...]], str]) -> dict[str, str]:
        """The part of `Job.made_of` for files that the user gives, and the study does not prepare."""

    @abstractmethod
    def notes(self, jobs: Mapping[str, Job], changed: set[str], study: StudyFolder) -> Iterator[str]:
        """Lines about jobs that will certainly fail; the results of those in `changed` are out of date."""

    @abstractmethod
    def prepare(self, job: Job, study: StudyFolder) -> None:
        """Prepare a job, after the runs in `prepared_from`; the result does not depend on the process."""


def mask_sources() -> tuple[MaskSource, ...]:
    """All sources of masks."""
    return tuple(entry("mask_sources", name) for name in names("mask_sources"))


def preparations() -> tuple[Preparation, ...]:
    """All preparations."""
    return tuple(entry("preparations", name) for name in names("preparations"))


def preparation_of(config: Mapping[str, Any]) -> Preparation | None:
    """The preparation of a run with this configuration, as plain values; `None`: it needs none."""
    used = (name for name in names("preparations") if entry("starts", name).used(config))
    return next((entry("preparations", name) for name in used), None)

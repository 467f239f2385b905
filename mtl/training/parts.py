"""Starts and meters: what packages beside the core do before a training, and in its steps.

The modules of parts do not import torch; what needs it is imported where it is made (`mtl.config.part`).
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from mtl.config import part
from mtl.config.part import Part

if TYPE_CHECKING:
    from mtl.config.schema import TrainConfig
    from mtl.models.head_scales import Reassign
    from mtl.models.joint import JointModel
    from mtl.models.routes import Owners
    from mtl.models.tapped import SharedEncoder
    from mtl.training.step_meter import StepMeter


@dataclass(frozen=True)
class Started:
    """What a start has done to a model."""

    owners: Owners | None = None
    """Per head that not all tasks have, the tasks that have it; `None`: one pass serves all tasks."""
    reassign: Reassign | None = None
    """What each pass of a training does to `JointModel.routes`."""
    said: str = ""
    """What was done, in one line; empty: nothing is printed."""


class ModelStart(Part):
    """Changes the model before training; its key is a group of keys."""

    @abstractmethod
    def apply(
        self, config: TrainConfig, encoder: SharedEncoder, tasks: Sequence[str], source: JointModel | None
    ) -> Started:
        """Change the encoder of a run that uses the start.

        `source` is the model of the run that training starts from, if any. Raises `InputError` for an encoder
        or a source that does not fit.
        """


def used_starts(config: TrainConfig) -> list[ModelStart]:
    """The starts that a run uses; `check_settings` allows one at most."""
    starts = cast(tuple[ModelStart, ...], part.starts())
    values = dataclasses.asdict(config) if starts else {}
    return [start for start in starts if start.used(values)]


class Meter(Part):
    """Watches the steps of a training; its key is a single key."""

    @abstractmethod
    def meter(self, config: TrainConfig, encoder: SharedEncoder, tasks: Sequence[str]) -> StepMeter | None:
        """The module that watches the steps of this run; `None`: the run does not use the meter."""


def meters() -> tuple[Meter, ...]:
    """All meters."""
    return cast(tuple[Meter, ...], part.meters())

"""The meter of gradient conflict: its key, and the rules for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mtl.config.marks import Forbidden
from mtl.config.part import one_mask
from mtl.config.task_slots import Slot
from mtl.tasks.ranges import CountOrNone
from mtl.training.parts import Meter

if TYPE_CHECKING:
    from mtl.config.schema import TrainConfig
    from mtl.models.tapped import SharedEncoder
    from mtl.training.step_meter import StepMeter


class _Conflict(Meter):
    key = "gradient_conflict_every"
    slot = Slot(
        CountOrNone,
        0,
        "Measure the cosine between the tasks' gradients per head once per this many updates; 0: never.",
    )
    forbidden = (
        Forbidden(
            lambda run: every_of(run) and not (one_mask(run) and run.batch.mode == "aligned"),
            "gradient_conflict_every compares tasks in one pass under one mask: it needs at least two "
            "tasks, batch.mode=aligned, gates.scope=shared and no clones.kind that makes a row per task",
        ),
        Forbidden(
            lambda run: every_of(run) and run.pruning == "gates_only",
            "gradient_conflict_every compares the tasks' gradients in the encoder, which "
            "pruning=gates_only freezes: leave one out",
        ),
    )

    def used(self, config: Mapping[str, Any]) -> bool:
        return bool(config.get(self.key))

    def unused(self, config: TrainConfig) -> Sequence[str]:
        return () if one_mask(config) else (self.key,)

    def meter(self, config: TrainConfig, encoder: SharedEncoder, tasks: Sequence[str]) -> StepMeter | None:
        from mtl.stem_cell.gradient_conflict import GradientConflict

        every = every_of(config)
        return GradientConflict(encoder.tap, tasks, every) if every else None


def every_of(config: TrainConfig) -> int:
    """The number of updates per comparison of gradients; 0: gradients are never compared."""
    every: int = getattr(config, _Conflict.key)
    return every


CONFLICT = _Conflict()

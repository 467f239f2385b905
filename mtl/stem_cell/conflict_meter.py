"""The key of the meter of gradient conflict, and its rules. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mtl.config.instances import Slot
from mtl.config.keys import Forbidden, refuse_forbidden
from mtl.tasks.task import CountOrNone

if TYPE_CHECKING:
    from mtl.config.schema import TrainConfig
    from mtl.models.tapped import SharedEncoder
    from mtl.training.step import StepMeter

_KEY = "gradient_conflict_every"
SLOT = Slot(
    CountOrNone,
    0,
    "Measure the cosine between the tasks' gradients per head once per this many updates; 0: never.",
    after="init_from",
)
_FORBIDDEN = (
    Forbidden(
        lambda run: every_of(run) and (is_unused(run) or run.batch.mode != "aligned"),
        "gradient_conflict_every compares tasks in one pass under one mask: it needs at least two "
        "tasks, batch.mode=aligned and gates.scope=shared",
    ),
    Forbidden(
        lambda run: every_of(run) and run.pruning == "gates_only",
        "gradient_conflict_every compares the tasks' gradients in the encoder, which "
        "pruning=gates_only freezes: leave one out",
    ),
    Forbidden(
        lambda run: every_of(run) and run.encoder.freeze is not None,
        "gradient_conflict_every compares the tasks' gradients in the encoder, which encoder.freeze "
        "freezes: leave one out",
    ),
)


def every_of(config: TrainConfig) -> int:
    """The number of updates per comparison of gradients; 0: gradients are never compared."""
    every: int = getattr(config, _KEY)
    return every


def is_unused(config: TrainConfig) -> bool:
    """Whether there are no tasks that share a mask, so that one pass through the encoder would serve them."""
    return len(config.tasks) < 2 or config.gates.scope != "shared"


def check(config: TrainConfig) -> None:
    """Raise `InputError` for a run whose gradients cannot be compared."""
    refuse_forbidden(_FORBIDDEN, config)


def meter(config: TrainConfig, encoder: SharedEncoder, tasks: Sequence[str]) -> StepMeter | None:
    """The module that compares gradients in the steps of this run, if it compares them."""
    from mtl.stem_cell.gradient_conflict import GradientConflict

    every = every_of(config)
    return GradientConflict(encoder.tap, tasks, every) if every else None

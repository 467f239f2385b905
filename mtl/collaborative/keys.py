"""The key of a training whose encoder is factorised first, and its rules. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mtl.config.instances import Slot
from mtl.config.keys import Forbidden, refuse_forbidden
from mtl.errors import InputError
from mtl.tasks.task import Size

if TYPE_CHECKING:
    from rich.console import Console

    from mtl.config.schema import TrainConfig
    from mtl.models.tapped import SharedEncoder

_KEY = "components"
SLOT = Slot(
    Size | None,
    None,
    "Let the heads of each layer of the encoder share this many query and key components before training "
    "starts, as `mtl collaborate ENCODER --dim` does; `null`: the encoder stays as it is.",
    after="init_from",
)
_FORBIDDEN = (
    Forbidden(
        lambda run: components_of(run) if run.own_model() is not None else None,
        "components={found} is for encoders, and tasks is {tasks}: use seq2seq.components, for a model from "
        "scratch",
    ),
)


def components_of(config: TrainConfig) -> int | None:
    """The number of components that heads are to share; `None`: they stay as they are."""
    number: int | None = getattr(config, _KEY)
    return number


def refuse_components(config: TrainConfig) -> None:
    """Raise `InputError` for a run without an encoder to factorise."""
    refuse_forbidden(_FORBIDDEN, config)


def share_before_training(config: TrainConfig, encoder: SharedEncoder, console: Console) -> None:
    """Let the heads of the run's encoder share components, if the configuration says so.

    Those of a run to start from have to share this number already.
    """
    from mtl.collaborative.sharing import recorded_components, share_of_encoder
    from mtl.training.run_log import PLAIN

    number, source = components_of(config), config.init_from
    if number is None:
        return
    if source is None:
        console.print(share_of_encoder(encoder.transformer, number), **PLAIN)
        return
    shared = max(recorded_components(encoder.transformer.config, encoder.family).values(), default=None)
    if shared != number:
        there = "share no components" if shared is None else f"share {shared}"
        raise InputError(
            f"components={number}, but the heads of {source} {there}: leave it out, or start from what 'mtl "
            "collaborate' makes of a run whose heads share none"
        )

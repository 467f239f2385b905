"""The keys of curves: in a study's `probes`, which curves are measured; in a run's configuration, which parts
of the attention are trained. Importing this module imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from mtl.config.instances import Slot
from mtl.config.keys import Forbidden, refuse_forbidden
from mtl.errors import InputError
from mtl.tasks.task import Count

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

    from mtl.config.schema import TrainConfig
    from mtl.models.tapped import TappedModel


ORDERS_KEY = Slot(
    tuple[str, ...], ("importance", "recomputed", "random"),
    "Orders in which curves close heads, as in `mtl curve --by`.",
)  # fmt: skip
DRAWS_KEY = Slot(Count, 5, "Number of random orders of a curve.")

AttentionPart = Literal["queries", "keys", "values", "output"]
_PARTS = "trained_parts"
PARTS_KEY = Slot(
    tuple[AttentionPart, ...],
    (),
    "Of the encoder, train only these projections of its attention, with their biases; empty: everything.",
    after="init_from",
)
_FORBIDDEN = (
    Forbidden(
        lambda run: ",".join(trained_parts_of(run)) if run.encoder.freeze is not None else None,
        "trained_parts={found} and encoder.freeze={run.encoder.freeze} both say what of the encoder is "
        "trained: leave one of them out",
    ),
    Forbidden(
        lambda run: (
            ",".join(trained_parts_of(run))
            if run.architecture() is not None and run.init_from is None
            else None
        ),
        "trained_parts={found} is for trained models, and the run starts from scratch: leave it out",
    ),
)


def trained_parts_of(config: TrainConfig) -> tuple[AttentionPart, ...]:
    """The parts of the attention that are trained; empty: everything is."""
    parts: tuple[AttentionPart, ...] = getattr(config, _PARTS)
    return parts


def trains_no_encoder(config: TrainConfig) -> bool:
    """Whether the encoder is not trained in any case."""
    return config.pruning == "gates_only"


def refuse_parts(config: TrainConfig) -> None:
    """Raise `InputError` for a run that cannot train parts of the attention only."""
    refuse_forbidden(_FORBIDDEN, config)


def freeze_other_parts(config: TrainConfig, encoder: TappedModel, console: Console) -> None:
    """Freeze all of the encoder but the parts that the configuration names, if it names some."""
    parts = trained_parts_of(config)
    if parts and not trains_no_encoder(config):
        chosen = [*modules_of(encoder, parts)]
        encoder.transformer.requires_grad_(False)
        for module in chosen:
            module.requires_grad_(True)


def modules_of(encoder: TappedModel, parts: Sequence[AttentionPart]) -> Iterator[nn.Module]:
    """The projections of these names in all layers that have heads.

    Raises `InputError` for models that have queries, keys and values in one matrix.
    """
    from mtl.heads.attentions import attentions

    family = encoder.family
    names = {"queries": family.query, "keys": family.key, "values": family.value}
    for attention in attentions(encoder.transformer, family):
        for part in parts if attention.remaining else ():
            if part == "output":
                yield attention.output
            elif family.fused:
                raise InputError(
                    f"{type(encoder.transformer).__name__} has queries, keys and values in one matrix, so "
                    f"that {part} cannot be trained alone: train output"
                )
            else:
                yield attention.module.get_submodule(names[part])

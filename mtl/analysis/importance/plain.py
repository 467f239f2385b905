"""Importance of heads in any `transformers` model of the families table, called from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from mtl.analysis.batch_rows import Inputs, Model, given_again, has_no_rows, require_passes, vector
from mtl.analysis.importance.attribution import head_gradients, require_finite, summed_gradients
from mtl.analysis.importance.gradients import PER, GateGradients, Per, gated, midpoints
from mtl.errors import InputError
from mtl.heads.arguments import batches_of, function_of, one_of, whole_number, yes_or_no
from mtl.heads.family_table import Family
from mtl.heads.given_models import require_gradients
from mtl.heads.tap import HeadOutputs, HeadTap, tapped
from mtl.models.modes import frozen, in_evaluation_mode
from mtl.probes.sites import KEYS


def head_importance(
    model: Model,
    batches: Iterable[Inputs],
    loss: Callable[[Model, Inputs], Float[Tensor, " row"]],
    *,
    per: Per = "example",
    normalise: bool = False,
    steps: int = 0,
    family: Family | str | None = None,
) -> pl.DataFrame:
    """What each head of a `transformers` model is worth, by gradients of a loss.

    Any family in the table of families works. The loss may run the model in any way: once, several times, row
    by row, or with several rows for a row of the batch. Passes are added up. A head that no pass reaches, or
    that the loss does not use, is worth 0. Gradients show which rows of a pass belong to which row of the
    batch (`mtl.analysis.importance.attribution`).

    Args:
        model: The model, with or without a head on top, or a module around it (compiled, with adapters); it
            is not changed.
        batches: What `loss` takes, for instance a `DataLoader`; read once.
        loss: Returns the loss of each row of a batch (`reduction="none"`), computed by `model`.
        per: Where absolute values are taken: `example` (the paper) or `token` (its code for BERT).
        normalise: Divide a layer's importances by their Euclidean norm.
        steps: Steps of integrated gradients; 0: none.
        family: The model's row, if the table has none (`Family`), or the name of a row that fits.

    Returns:
        One row per measure and head that is there, with the columns of heads.parquet; values are in units of
        the loss (`fisher`: squared), counts are rows of batches.

    Raises:
        InputError: the loss is not a differentiable vector with a finite entry per row, there are no batches,
            the model is not in the table or has no gradients (quantised), or another argument is wrong.
    """
    transformer, _, tap = tapped(model, "head_importance", family)
    require_gradients(transformer, "head_importance")
    function_of(loss, "loss")
    one_of(per, "per", PER)
    yes_or_no(normalise, "normalise")
    steps = whole_number(steps, "steps", 0)
    measured = GateGradients(tap.sites, tap.heads, per)

    def under(gate: float, batch: Inputs) -> tuple[Tensor, HeadOutputs]:
        with gated(tap, gate) as outputs:
            losses = vector(loss(model, given_again(batch)), batch, "loss")
        require_passes(any(outputs.passes), "loss")
        if losses.requires_grad:
            return losses, outputs
        # A loss on embeddings has no path to any head, so it rightly has no gradient.
        parameters = list(transformer.parameters())
        for parameter in parameters:
            parameter.requires_grad_(True)
        try:
            again = vector(loss(model, given_again(batch)), batch, "loss")
        finally:
            for parameter in parameters:
                parameter.requires_grad_(False)
        if not again.requires_grad:
            raise InputError(
                "the loss is not differentiable: it must return one value for each row (reduction='none') "
                "that the model computes, not under no_grad, detached, or generated"
            )
        return losses.detach().requires_grad_(), HeadOutputs(len(tap.sites))

    alike = False
    with in_evaluation_mode(model), frozen(model), torch.enable_grad():
        for batch in batches_of(batches):
            if has_no_rows(batch):
                continue
            losses, outputs = under(1.0, batch)
            gradients, alike = head_gradients(losses, outputs, tap.heads, alike=alike)
            require_finite(gradients.example)
            measured.add_examples(*gradients)
            for gate, weight in midpoints(steps):
                losses, outputs = under(gate, batch)
                gradient = summed_gradients(losses, outputs, tap.heads)
                require_finite(gradient)
                measured.add_integrated(gradient / gate, weight)
    if not measured.examples:
        raise InputError("importance needs at least one batch with rows")
    return _of_heads_there(measured.table(normalise=normalise), tap)


def _of_heads_there(table: pl.DataFrame, tap: HeadTap) -> pl.DataFrame:
    """The table without heads that were cut out, and without numbers of heads that only other sites have."""
    there = [(*site, head) for site, heads in zip(tap.sites, tap.remaining, strict=True) for head in heads]
    return table.join(
        pl.DataFrame(there, {key: table.schema[key] for key in KEYS}, orient="row"),
        on=KEYS, how="semi", maintain_order="left",
    )  # fmt: skip

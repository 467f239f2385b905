"""Importance and ablation of heads in any `transformers` model of the families table, called from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import TypeVar

import numpy as np
import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from mtl.analysis.ablation import Kind, ablations
from mtl.analysis.importance import GateGradients, Per, gate_gradients, midpoints
from mtl.errors import InputError
from mtl.heads.families import family_of
from mtl.heads.replay import LayerReplay
from mtl.heads.tap import HeadTap
from mtl.models.modes import frozen, in_evaluation_mode
from probes.statistics.paired_scores import DRAWS, score_losses

Inputs = TypeVar("Inputs")


def head_importance(
    model: PreTrainedModel,
    batches: Iterable[Inputs],
    loss: Callable[[PreTrainedModel, Inputs], Float[Tensor, " row"]],
    *,
    per: Per = "example",
    normalise: bool = False,
    steps: int = 0,
) -> pl.DataFrame:
    """What each head of any `transformers` model of the families table is worth, by gradients of a loss.

    Args:
        model: The model, with or without a head on top; it is left as it was.
        batches: What `loss` takes, for instance a `DataLoader`; read once.
        loss: Gives the loss of each row of a batch (`reduction="none"`), computed by `model`.
        per: Where absolute values are taken: `example` (the paper) or `token` (its code for BERT).
        normalise: Divide a layer's importances by their Euclidean norm.
        steps: Steps of integrated gradients; 0: none.

    Returns:
        One row per measure and head, with the columns of heads.parquet; values are in units of the loss,
        counts are rows of batches.

    Raises:
        InputError: the loss is no differentiable vector with an entry per row, there are no batches, or the
            model is not in the table.
    """
    tap = HeadTap(model, family_of(model))
    measured = GateGradients(tap.sites, tap.heads, per)
    with in_evaluation_mode(model), frozen(model):
        for batch in batches:

            def losses(batch: Inputs = batch) -> dict[str, Tensor]:
                return {"": loss(model, batch)}

            [(_, positions)] = gate_gradients(tap, losses)
            measured.add(positions, torch.arange(len(positions), device=positions.device))
            for gate, weight in midpoints(steps):
                [(_, positions)] = gate_gradients(tap, losses, gate)
                measured.add_integrated(positions, weight)
    if not measured.examples:
        raise InputError("importance needs at least one batch")
    return measured.table(normalise=normalise)


def ablate_heads(
    model: PreTrainedModel,
    batches: Iterable[Mapping[str, Tensor]],
    score: Callable[[PreTrainedModel, Mapping[str, Tensor]], Float[Tensor, " row"]],
    *,
    kind: Kind = "head",
    copies: int = 4,
    draws: int = DRAWS,
    seed: int = 0,
) -> pl.DataFrame:
    """What the mean score of any `transformers` model of the families table loses without a head.

    Args:
        model: The model, with or without a head on top; it is left as it was.
        batches: Mappings of tensors whose first dimension is the row, for instance from a `DataLoader`; small
            ones, since copies are made of them.
        score: Gives the score of each row of a batch, computed by `model`: 1 where it is right, or minus a
            loss. It is also called with batches of several copies of the rows.
        kind: Close one head (`head`), all heads of a layer except one (`all_but_one`), or all (`layer`).
        copies: Ablations in one pass through the model.
        draws: Resamples behind intervals and p (`score_losses`).
        seed: Seed of the resamples.

    Returns:
        One row per ablation: attention, layer, head (null for layers), loss, low, high, p, q; the loss and
        its interval (low, high) are in units of the score.

    Raises:
        InputError: there is no such kind, the score is no vector with an entry per row, there are no batches,
            or the model is not in the table.
    """
    tap, replay = HeadTap(model, family_of(model)), LayerReplay(model, family_of(model))
    chosen = ablations(kind, tap.remaining)
    parts: list[Float[np.ndarray, "variant row"]] = []

    def scores(batch: Mapping[str, Tensor], rows: int) -> Float[Tensor, " row"]:
        given = score(model, batch)
        if given.shape != (rows,):
            raise InputError(
                f"the score must give one value for each of the {rows} rows of a batch, "
                f"and gave shape {tuple(given.shape)}"
            )
        return given.double().cpu()

    with torch.inference_mode(), in_evaluation_mode(model):
        for batch in batches:
            rows = len(next(iter(batch.values())))
            with replay.record():
                variants = [scores(batch, rows)]
            for [site], group in groupby(chosen, key=lambda ablation: ablation.sites):
                together = list(group)
                for share in np.array_split(np.arange(len(together)), -(-len(together) // copies)):
                    scale = torch.stack([together[index].scale(len(tap.sites), tap.heads) for index in share])
                    scale = scale.to(next(model.parameters()).device).repeat_interleave(rows, 0)
                    several = {
                        key: value.repeat(len(share), *[1] * (value.dim() - 1))
                        for key, value in batch.items()
                    }
                    with replay.start_at(site, len(share)), tap.scale(scale):
                        variants += scores(several, rows * len(share)).split(rows)
            parts.append(torch.stack(variants).numpy())
    if not parts:
        raise InputError("ablation needs at least one batch")
    by_variant = np.concatenate(parts, 1)
    counts = np.stack([by_variant, np.ones_like(by_variant)], -1)
    sites = [site for ablation in chosen for site in ablation.sites]
    lost = score_losses(counts[0], counts[1:], _mean, draws=draws, seed=seed)
    return pl.DataFrame(
        {
            "attention": [tap.sites[site].attention for site in sites],
            "layer": [tap.sites[site].layer for site in sites],
            "head": [ablation.head for ablation in chosen],
            "loss": lost.loss, "low": lost.low, "high": lost.high, "p": lost.p, "q": lost.q,
        }
    )  # fmt: skip


def _mean(counts: Float[np.ndarray, "draw count"]) -> Float[np.ndarray, " draw"]:
    return counts[:, 0] / counts[:, 1]

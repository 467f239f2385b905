"""Relevance averaged over sentences, as rows of heads.parquet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from mtl.analysis.relevance.propagation import Conservation, Explainer, Item, Output, reads_gold
from mtl.analysis.relevance.rules import Rules
from mtl.models.head_scales import Mask
from mtl.models.joint import JointModel
from mtl.probes.tables import heads_table
from mtl.tasks.sentence import Sentence


def shares(
    relevance: Float[Tensor, "sentence layer head"],
) -> Float[Tensor, "sentence layer head"]:
    """Each head's share of its layer: |R| / sum of |R| over the layer's heads; 0 if all R are 0."""
    size = relevance.abs()
    total = size.sum(2, keepdim=True)
    return torch.where(total > 0, size / total, 0.0)


def explained(model: JointModel, sentences: Sequence[Sentence], mask: Mask, output: Output) -> list[Sentence]:
    """The sentences that some task of the mask scores: those annotated for it or, if no gold is needed, those
    that it can annotate."""
    tasks = [model.tasks[name] for name in mask.tasks]
    return [
        sentence
        for sentence in sentences
        if any(
            task.annotated(sentence) if reads_gold(task, output) else task.fits(sentence) for task in tasks
        )
    ]


def head_relevance(
    model: JointModel,
    sentences: Sequence[Sentence],
    mask: Mask,
    *,
    labels: Sequence[str] = (),
    rules: Rules = "paper",
    output: Output = "gold",
    advance: Callable[[int], None] = lambda sentences: None,
) -> tuple[pl.DataFrame, Conservation]:
    """The table of relevance under one mask, and the conservation in the batch of the shortest sentences.

    The measures are `relevance`, the mean over sentences of `shares`, which sum to 1 in each layer, and
    `relevance_signed`, the mean of the relevance itself in units of the score. Besides the whole task, those
    of `labels` that it has get rows of their own. Sentences without a score are left out. `advance` receives
    the number of sentences of each finished batch.
    """
    items = [
        Item(task, label)
        for task in mask.tasks
        for label in ("", *(label for label in labels if label in model.labels[task].names))
    ]
    chosen = explained(model, sentences, mask, output)
    explainer = Explainer(model, chosen, items, mask.head_scale, rules, output)
    shape = (len(model.encoder.tap.sites), model.encoder.tap.heads)
    sums = {item: _Sums(np.zeros(shape), np.zeros(shape), 0) for item in items}
    for batch, numbers in enumerate(explainer.batches):
        for result in explainer.relevance(batch):
            sums[result.item] = sums[result.item].plus(result.heads)
        advance(len(numbers))
    tables = [
        heads_table.rows(
            measure,
            item.task,
            [item.label],
            summed[None] / max(total.sentences, 1),
            np.array([total.sentences]),
            choice,
        )
        for item, total in sums.items()
        for measure, summed, choice in (
            ("relevance", total.shares, f"{rules}, {output}, absolute"),
            ("relevance_signed", total.signed, f"{rules}, {output}"),
        )
    ]
    heads = heads_table.at_sites(pl.concat(tables), model.encoder.tap.sites)
    return heads, explainer.conservation(len(explainer.batches) - 1)


class _Sums(NamedTuple):
    """Sums over sentences."""

    shares: Float[np.ndarray, "layer head"]
    signed: Float[np.ndarray, "layer head"]
    sentences: int

    def plus(self, relevance: Float[Tensor, "sentence layer head"]) -> _Sums:
        relevance = relevance.double()
        return _Sums(
            self.shares + shares(relevance).sum(0).cpu().numpy(),
            self.signed + relevance.sum(0).cpu().numpy(),
            self.sentences + len(relevance),
        )

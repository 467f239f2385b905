"""Worth by ablation: what a task's score loses when a head is closed.

Layers below the closed head are computed once per batch. Several ablations share a pass, as copies of the
batch's rows under head scales of their own (`AblatedCopies`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mtl.analysis.ablation.copies import AblatedCopies, AnnotatedCopies
from mtl.analysis.ablation.translations import TranslatedCopies
from mtl.analysis.importance.gradients import of_tasks
from mtl.errors import InputError
from mtl.models.batches import Batch
from mtl.models.head_scales import Mask
from mtl.models.joint import JointModel
from mtl.models.limits import BATCH_PAIRS
from mtl.models.modes import in_evaluation_mode

Kind = Literal["head", "all_but_one", "layer"]
By = Literal["zero", "mean"]
TRANSLATED_TOKENS = 4096
"""Padded subwords in a pass that translates: many, since a search step costs nearly as much for few."""
KINDS: tuple[Kind, ...] = ("head", "all_but_one", "layer")


@dataclass(frozen=True)
class Ablation:
    """Heads closed together; sites and heads are numbered as in the uncut model."""

    kind: Kind | Literal["chosen"]
    """`head`, `all_but_one` and `layer` as in `ablations`; `chosen`: heads that were chosen by hand."""
    closed: frozenset[tuple[int, int]]
    """Pairs of site and head."""
    site: int | None = None
    """The site that is measured; `None` for chosen heads."""
    head: int | None = None
    """The head that is measured: the closed one, or the only one left open; `None` for other kinds."""

    @property
    def sites(self) -> frozenset[int]:
        """The sites with a closed head."""
        return frozenset(site for site, _ in self.closed)

    def scale(self, sites: int, heads: int) -> Float[Tensor, "site head"]:
        """1 at open heads and 0 at closed ones."""
        scale = torch.ones(sites, heads)
        for site, head in self.closed:
            scale[site, head] = 0.0
        return scale


def ablations(kind: Kind, remaining: Sequence[Sequence[int]]) -> list[Ablation]:
    """Every ablation of one kind, given the heads that the model has (`HeadTap.remaining`).

    `head` closes one head; `all_but_one` all heads of a site except one; `layer` all heads of a site.
    Raises `InputError` for another kind.
    """
    if kind not in KINDS:
        raise InputError(f"kind={kind!r}: use one of {', '.join(KINDS)}")
    made = []
    for site, heads in enumerate(remaining):
        everything = frozenset((site, head) for head in heads)
        if kind == "layer":
            made += [Ablation(kind, everything, site)] if heads else []
        elif kind == "head":
            made += [Ablation(kind, frozenset({(site, head)}), site, head) for head in heads]
        elif kind == "all_but_one" and len(heads) > 1:
            made += [Ablation(kind, everything - {(site, head)}, site, head) for head in heads]
    return made


@dataclass(frozen=True)
class SentenceCounts:
    """The counts from which a task's score follows (`TaskMetric.score`), without and with each ablation."""

    unchanged: Float[np.ndarray, "sentence count"] | Int[np.ndarray, "sentence count"]
    ablated: Float[np.ndarray, "ablation sentence count"] | Int[np.ndarray, "ablation sentence count"]


Counts = dict[str, SentenceCounts]
"""By task."""


class Ablator:
    """Decodes batches under many ablations.

    Args:
        model: Encoder and decoders.
        chosen: The ablations. Masks stay applied.
        means: By mask, the outputs that replace those of closed heads (`mean_outputs`); `None`: zeros.
        masks: The masks to apply; `None`: the model's own.
        passes: Maximum number of padded subwords per pass; `None`: as many as in evaluation, or
            `TRANSLATED_TOKENS` for a model that translates.
    """

    def __init__(
        self,
        model: JointModel,
        chosen: Sequence[Ablation],
        *,
        means: Mapping[str, Float[Tensor, "site head head_dim"]] | None = None,
        masks: Sequence[Mask] | None = None,
        passes: int | None = None,
    ) -> None:
        self.model, self.chosen, self.means = model, tuple(chosen), means
        encoder = model.encoder
        self.masks = model.scales.masks(tuple(model.tasks)) if masks is None else list(masks)
        self.device = next(model.parameters()).device
        self._copies: AblatedCopies
        if (translator := encoder.translator) is not None:
            self._copies, tokens = TranslatedCopies(model, translator), TRANSLATED_TOKENS
        else:
            self._copies, tokens = AnnotatedCopies(model, encoder), model.evaluation_tokens()
        self.budget = passes or tokens
        self._scales = [ablation.scale(len(encoder.tap.sites), encoder.tap.heads) for ablation in self.chosen]

    @torch.inference_mode()
    def __call__(self, batch: Batch) -> Counts:
        """The counts of one batch in all tasks that it is annotated in.

        Its rows are copied, so batches should be small (a few hundred subwords on a CPU).
        """
        counts: Counts = {}
        batch = batch.to(self.device)
        with in_evaluation_mode(self.model):
            for mask in self.masks:
                tasks = [name for name in mask.tasks if name in batch.rows]
                if tasks:
                    counts |= self._under(mask, of_tasks(batch, tasks))
        return counts

    def _under(self, mask: Mask, batch: Batch) -> Counts:
        scale = None if mask.head_scale is None else mask.head_scale.to(self.device)
        fill = None if self.means is None else self.means[mask.name].to(self.device)
        unchanged = self._copies.unchanged(batch, scale)
        # An ablation changes nothing if the mask closes all of its heads already.
        closing = [
            index
            for index, ablation in enumerate(self.chosen)
            if mask.head_scale is None or any(mask.head_scale[place] != 0 for place in ablation.closed)
        ]
        results = [unchanged] * len(self.chosen)
        for group in self._passes(closing, batch):
            ablations = torch.stack([self._scales[index] for index in group])
            decoded = self._copies.ablated(batch, scale, ablations, fill)
            for index, counts in zip(group, decoded, strict=True):
                results[index] = counts
        return {
            name: SentenceCounts(
                unchanged[name],
                np.array([counts[name] for counts in results]).reshape(-1, *unchanged[name].shape),
            )
            for name in batch.rows
        }

    def _passes(self, closing: Sequence[int], batch: Batch) -> Iterator[list[int]]:
        """The ablations, grouped into passes: those of a pass have the same start and fit the budget."""
        rows, width = batch.subwords.input_ids.shape
        pairs = batch.mask.shape[0] * batch.mask.shape[1] ** 2
        copies = max(1, min(self.budget // max(rows * width, 1), BATCH_PAIRS // max(pairs, 1)))

        def start(index: int) -> int:
            return self._copies.start(self.chosen[index].sites)

        for _, group in groupby(sorted(closing, key=start), key=start):
            together = list(group)
            # Equal shares, since eleven copies take less time as six and five than as ten and one.
            for share in np.array_split(together, -(-len(together) // copies)):
                yield share.tolist()


def joined(parts: Sequence[Counts]) -> Counts:
    """The counts of several batches, concatenated."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {
        name: SentenceCounts(
            np.concatenate([part[name].unchanged for part in parts if name in part]),
            np.concatenate([part[name].ablated for part in parts if name in part], axis=1),
        )
        for name in names
    }


def mean_outputs(
    model: JointModel, batches: Iterable[Batch], masks: Sequence[Mask] | None = None
) -> dict[str, Float[Tensor, "site head head_dim"]]:
    """By mask, the mean output of every head over all positions of a corpus that are not padding.

    `masks` is as in `Ablator`.
    """
    device = next(model.parameters()).device
    chosen = model.scales.masks(tuple(model.tasks)) if masks is None else masks
    sums: dict[str, Tensor] = {}
    positions = torch.zeros(len(model.encoder.tap.sites), 1, 1)
    with torch.inference_mode(), in_evaluation_mode(model):
        for batch in batches:
            subwords = batch.subwords.to(device)
            here = [subwords.positions(site.attention) for site in model.encoder.tap.sites]
            positions += torch.stack([mask.sum() for mask in here]).cpu()[:, None, None]
            for mask in chosen:
                scale = None if mask.head_scale is None else mask.head_scale.to(device)
                with model.encoder.tap.observe() as outputs:
                    model.encoder(subwords, scale)
                total = torch.stack(
                    [
                        (output * mask[..., None, None]).double().sum((0, 1))
                        for output, mask in zip(outputs, here, strict=True)
                    ]
                ).cpu()
                sums[mask.name] = sums.get(mask.name, 0.0) + total
    return {name: (total / positions.clamp_min(1)).float() for name, total in sums.items()}

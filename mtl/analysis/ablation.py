"""What a head is worth by closing it: what a task's score loses without the head.

The work is shared. Layers below the closed head are computed once for a batch (`LayerReplay`), and
several ablations go as copies of the batch's rows through one pass, each under its own head scale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from mtl.analysis.importance import of_tasks
from mtl.analysis.probe import Mask, masks_of
from mtl.errors import InputError
from mtl.heads.families import Site
from mtl.heads.replay import LayerReplay
from mtl.heads.tap import HeadTap
from mtl.models.batches import Batch
from mtl.models.joint import JointModel, in_evaluation_mode
from mtl.models.limits import BATCH_PAIRS

Kind = Literal["head", "all_but_one", "layer", "chosen"]
By = Literal["zero", "mean"]
KINDS: tuple[Kind, ...] = ("head", "all_but_one", "layer")


@dataclass(frozen=True)
class Ablation:
    """Heads closed together; sites and heads are numbered as in the uncut model."""

    kind: Kind
    closed: frozenset[tuple[int, int]]
    """Pairs of site and head."""
    site: int | None = None
    """The site that it is about; `None` for a set chosen by hand."""
    head: int | None = None
    """The head that it is about: the closed one, or the only one left open."""

    @property
    def lowest(self) -> int:
        """The lowest site with a closed head; all below is as without the ablation."""
        return min(site for site, _ in self.closed)

    def scale(self, sites: int, heads: int) -> Float[Tensor, "site head"]:
        """1 at open heads and 0 at closed ones."""
        scale = torch.ones(sites, heads)
        for site, head in self.closed:
            scale[site, head] = 0.0
        return scale


def ablations(kind: Kind, remaining: Sequence[Sequence[int]]) -> list[Ablation]:
    """Every ablation of one kind of the heads that are there (`HeadTap.remaining`).

    `head`: each head by itself; `all_but_one`: all heads of a site but each; `layer`: all heads of a site.
    """
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
    """What every sentence adds to a task's score, without ablation and with each (`TaskMetric.score`)."""

    unchanged: Float[np.ndarray, "sentence count"] | Int[np.ndarray, "sentence count"]
    ablated: Float[np.ndarray, "ablation sentence count"] | Int[np.ndarray, "ablation sentence count"]


def ablate(
    model: JointModel,
    batches: Iterable[Batch],
    chosen: Sequence[Ablation],
    *,
    by: By = "zero",
    means: Mapping[str, Float[Tensor, "site head head_dim"]] | None = None,
    masks: bool = True,
    passes: int | None = None,
    advance: Callable[[int], None] = lambda sentences: None,
) -> dict[str, SentenceCounts]:
    """Decode all batches under every ablation; returns each annotated task's counts.

    Args:
        model: Encoder and decoders.
        batches: Annotated sentences; small ones (some hundred subwords), since copies are made of them.
        chosen: What to close. Where the model has masks, ablations come on top of them.
        by: What a closed head hands out: zeros, or its mean output (`means`).
        means: `mean_outputs` by mask, needed for `by="mean"`.
        masks: Whether the model's masks are applied.
        passes: Padded subwords in a pass at most; `None`: as many as in evaluation.
        advance: Receives the number of sentences of each finished batch.
    """
    device = next(model.parameters()).device
    tap = model.encoder.tap
    replay = LayerReplay(model.encoder.transformer, model.encoder.family)
    names = tuple(model.tasks)
    budget = passes or model.evaluation_tokens()
    scales = [ablation.scale(len(tap.sites), tap.heads) for ablation in chosen]
    before: dict[str, list[np.ndarray]] = {}
    after: dict[str, list[list[np.ndarray]]] = {}
    with torch.inference_mode(), in_evaluation_mode(model):
        for whole in batches:
            batch = whole.to(device)
            for mask in masks_of(model, names) if masks else [Mask("", names, None)]:
                tasks = [name for name in mask.tasks if name in batch.rows]
                if not tasks:
                    continue
                part = of_tasks(batch, tasks)
                open_scale = None if mask.head_scale is None else mask.head_scale.to(device)
                fill = means[mask.name].to(device) if by == "mean" and means is not None else None
                with replay.record():
                    [counts] = _decoded(model, part, 1, open_scale, None, None)
                for name in tasks:
                    before.setdefault(name, []).append(counts[name])
                    after.setdefault(name, [[] for _ in chosen])
                needed = [
                    index
                    for index, ablation in enumerate(chosen)
                    if open_scale is None or any(open_scale[place] != 0 for place in ablation.closed)
                ]
                for index in set(range(len(chosen))) - set(needed):  # nothing is closed that was open
                    for name in tasks:
                        after[name][index].append(counts[name])
                for group in _passes(chosen, needed, part, budget):
                    rows = torch.stack([scales[index] for index in group]).to(device)
                    with replay.start_at(chosen[group[0]].lowest, len(group)):
                        results = _decoded(model, part, len(group), open_scale, rows, fill)
                    for index, counts_of in zip(group, results, strict=True):
                        for name in tasks:
                            after[name][index].append(counts_of[name])
            advance(len(whole.sentences))
    return {
        name: SentenceCounts(
            np.concatenate(before[name]),
            np.stack([np.concatenate(parts) for parts in after[name]])
            if chosen
            else np.zeros((0, *np.concatenate(before[name]).shape)),
        )
        for name in names
        if name in before
    }


def mean_outputs(
    model: JointModel, batches: Iterable[Batch], masks: bool = True
) -> dict[str, Float[Tensor, "site head head_dim"]]:
    """The mean output of every head over all positions of a corpus that are not padding, by mask."""
    device = next(model.parameters()).device
    names = tuple(model.tasks)
    sums: dict[str, Tensor] = {}
    positions = 0
    with torch.inference_mode(), in_evaluation_mode(model):
        for whole in batches:
            subwords = whole.to(device).subwords
            here = subwords.attention_mask[..., None, None]
            positions += int(subwords.attention_mask.sum())
            for mask in masks_of(model, names) if masks else [Mask("", names, None)]:
                scale = None if mask.head_scale is None else mask.head_scale.to(device)
                with model.encoder.tap.observe() as outputs:
                    model.encoder(subwords, scale)
                total = torch.stack([(output * here).double().sum((0, 1)) for output in outputs])
                sums[mask.name] = sums.get(mask.name, 0.0) + total
    return {name: (total / max(positions, 1)).float() for name, total in sums.items()}


def _passes(
    chosen: Sequence[Ablation], needed: Sequence[int], batch: Batch, budget: int
) -> Iterator[list[int]]:
    """The ablations of one pass each: they begin at the same site, and their copies are within the budget."""
    rows, width = batch.subwords.input_ids.shape
    pairs = batch.mask.shape[0] * batch.mask.shape[1] ** 2
    copies = max(1, min(budget // max(rows * width, 1), BATCH_PAIRS // max(pairs, 1)))

    def lowest(index: int) -> int:
        return chosen[index].lowest

    for _, group in groupby(sorted(needed, key=lowest), key=lowest):
        together = list(group)
        # Equal shares: eleven copies are better computed as six and five than as ten and one.
        for share in np.array_split(together, -(-len(together) // copies)):
            yield share.tolist()


def _decoded(
    model: JointModel,
    batch: Batch,
    copies: int,
    scale: Float[Tensor, "site head"] | None,
    rows: Float[Tensor, "copy site head"] | None,
    fill: Float[Tensor, "site head head_dim"] | None,
) -> list[dict[str, np.ndarray]]:
    """Per copy of the batch the counts of its decoded sentences in every task."""
    encoder, sentences = model.encoder, len(batch.sentences)
    subwords = batch.subwords
    if copies > 1:
        index = torch.arange(sentences, device=batch.mask.device).repeat(copies)
        subwords = subwords.take(index)
    with ExitStack() as scaled:
        if scale is not None:
            scaled.enter_context(encoder.tap.scale(scale))
        if rows is not None:
            of_sentence = rows.repeat_interleave(sentences, 0)
            scaled.enter_context(encoder.tap.scale(of_sentence[subwords.sentence], fill))
        words = encoder(subwords)
    words = words.view(copies, sentences, *words.shape[1:])
    results: list[dict[str, np.ndarray]] = [{} for _ in range(copies)]
    for name, row in batch.rows.items():
        decoder = model.decoder(name)
        vectors, mask = words[:, row].flatten(0, 1), batch.mask[row].repeat(copies, 1)
        decoded = decoder.decode(decoder(vectors, mask), mask)
        gold = [batch.sentences[index] for index in row.tolist()]
        metric = model.tasks[name].metric()
        for copy in range(copies):
            results[copy][name] = metric.sentence_counts(
                decoded[copy * len(row) : (copy + 1) * len(row)], gold
            )
    return results

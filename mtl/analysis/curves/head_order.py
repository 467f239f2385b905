"""Orders in which heads go: by a value, by recomputed importance, or greedily by what the score loses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from mtl.analysis.ablation.joint import Ablation, Ablator, joined
from mtl.analysis.ablation.run import BATCH_TOKENS as ABLATION_TOKENS
from mtl.analysis.importance.gradients import task_importance
from mtl.analysis.probing.observe import BATCH_TOKENS
from mtl.analysis.trained import TrainedRun
from mtl.errors import InputError
from mtl.models.batches import BatchLoader, aligned_batches
from mtl.models.head_scales import Mask
from mtl.probes.head_names import head_name
from mtl.probes.measures.groups import made_with
from mtl.probes.measures.table import BY_NAME
from mtl.probes.sites import Site, grid
from mtl.probes.tables.label_scores import FEWEST_ITEMS, head_scores

Head = tuple[int, int]
"""A site and a head, as in the uncut model."""
Values = Mapping[str, Float[np.ndarray, "site head"]]
"""By task, a value for each head; heads of low value go first."""
NextHeads = Callable[[Mapping[str, Sequence[Head]], Mapping[str, int]], dict[str, list[Head]]]
"""Given the heads still kept and the number wanted by task, the heads that go next: at least one, in
order."""


def scale_of(scale: Float[Tensor, "site head"], kept: Sequence[Head]) -> Float[Tensor, "site head"]:
    """The scale with all heads closed except those in `kept`."""
    masked = torch.zeros_like(scale)
    for site, head in kept:
        masked[site, head] = scale[site, head]
    return masked


def loader(trained: TrainedRun, tasks: Sequence[str], tokens: int) -> BatchLoader:
    """All sentences annotated in one of these tasks, in batches of at most `tokens` padded positions."""
    chosen = {name: trained.tasks[name] for name in tasks}
    plan = aligned_batches(trained.corpus, tuple(chosen), tokens, None, None)
    return BatchLoader(trained.corpus, trained.model.encoder.tokenizer, chosen, plan)


def by_value(values: Callable[[], Values]) -> NextHeads:
    """Heads of the least value go first; the values are computed once, when they are first needed."""
    known: dict[str, Float[np.ndarray, "site head"]] = {}

    def next_heads(kept: Mapping[str, Sequence[Head]], wanted: Mapping[str, int]) -> dict[str, list[Head]]:
        if not known:
            known.update(values())
        return {name: _least(known[name], heads, wanted[name]) for name, heads in kept.items()}

    return next_heads


def recomputed(ranking: TrainedRun, base: Mapping[str, Tensor], normalise: bool) -> NextHeads:
    """Heads of the least importance go first, which is computed anew each time with the heads still kept."""

    def next_heads(kept: Mapping[str, Sequence[Head]], wanted: Mapping[str, int]) -> dict[str, list[Head]]:
        values = importance_values(
            ranking, {name: scale_of(base[name], kept[name]) for name in kept}, normalise
        )
        return {name: _least(values[name], heads, wanted[name]) for name, heads in kept.items()}

    return next_heads


def greedy(ranking: TrainedRun, base: Mapping[str, Tensor], ties: Callable[[], Values]) -> NextHeads:
    """The head that costs the score least goes next; among equals, the one of least value (`ties`)."""
    model = ranking.model
    known: dict[str, Float[np.ndarray, "site head"]] = {}

    def next_heads(kept: Mapping[str, Sequence[Head]], wanted: Mapping[str, int]) -> dict[str, list[Head]]:
        if not known:
            known.update(ties())
        tried = sorted({place for heads in kept.values() for place in heads})
        masks = [Mask(name, (name,), scale_of(base[name], heads)) for name, heads in kept.items()]
        ablate = Ablator(
            model, [Ablation("head", frozenset({place}), *place) for place in tried], masks=masks
        )
        tokens = ABLATION_TOKENS[next(model.parameters()).device.type]
        counts = joined([ablate(batch) for batch in loader(ranking, tuple(kept), tokens)])
        going = {}
        for name, heads in kept.items():
            scores = model.tasks[name].metric().score(counts[name].ablated.sum(1).astype(np.float64))
            of_head = dict(zip(tried, scores.tolist(), strict=True))
            value = known[name]
            going[name] = [min(heads, key=lambda place: (-of_head[place], value[place]))]
        return going

    return next_heads


def importance_values(ranking: TrainedRun, scales: Mapping[str, Tensor], normalise: bool) -> Values:
    """Importance by task (Michel et al. 2019), each task under its own head scale.

    `normalise` divides a layer's importances by their Euclidean norm.
    """
    masks = [Mask(name, (name,), scale) for name, scale in scales.items()]
    if len({tuple(scale.flatten().tolist()) for scale in scales.values()}) == 1:
        masks = [Mask("", tuple(scales), masks[0].head_scale)]  # one forward pass serves all tasks
    measured = task_importance(ranking.model, loader(ranking, tuple(scales), BATCH_TOKENS), masks=masks)
    return {name: gradients.value("importance", normalise) for name, gradients in measured.items()}


def random_values(tasks: Sequence[str], sites: int, heads: int, seeds: Sequence[int]) -> Values:
    """A random order of all heads as values, determined by the seeds and the same for every task."""
    order = np.random.default_rng(list(seeds)).permutation(sites * heads)
    return dict.fromkeys(tasks, order.reshape(sites, heads).astype(np.float64))


def measured_values(
    table: pl.DataFrame, measure: str, pools: Mapping[str, Sequence[Head]], sites: Sequence[Site], heads: int
) -> Values:
    """A measure's values by task, from the table of a run's heads.parquet.

    They are those of `head_scores` for the task or, if there are none, for rows without a task. Raises
    `InputError` if a head of a task's pool has no value.
    """
    scores = head_scores(table, measure)
    values = {}
    for name, pool in pools.items():
        of_task = scores.filter(pl.col("task") == name)
        if of_task.is_empty():
            of_task = scores.filter(pl.col("task") == "")
        value = grid(of_task, "value", sites, heads)
        without = [place for place in pool if not np.isfinite(value[place])]
        if without:
            raise InputError(_no_values(table, measure, name, sites, without[0]))
        values[name] = value
    return values


def _no_values(table: pl.DataFrame, measure: str, task: str, sites: Sequence[Site], place: Head) -> str:
    made_by = made_with(measure)
    rows = table.filter(pl.col("measure") == measure)
    if rows.is_empty():
        return f"heads.parquet has no {measure}: '{made_by}' makes it"
    if rows["head"].null_count() == rows.height:
        return f"--by={measure}: its numbers belong to layers, not to heads: choose another measure"
    tasks = [name for name in rows["task"].unique(maintain_order=True) if name]
    if tasks and task not in tasks:
        return f"heads.parquet has {measure} for {', '.join(tasks)}, not for {task}: '{made_by}' makes it"
    if BY_NAME[measure].chance and head_scores(table, measure).filter(task=task).is_empty():
        return (
            f"--by={measure}: no label of {task} counts, since each is root, has fewer than {FEWEST_ITEMS} "
            "items or no chance level: probe more sentences"
        )
    where = head_name(sites[place[0]], place[1], sites)
    return f"heads.parquet has no {measure} of {where} for {task}: '{made_by}' makes it"


def _least(value: Float[np.ndarray, "site head"], kept: Sequence[Head], wanted: int) -> list[Head]:
    """The heads of least value that must go to leave `wanted`; among equals, lower sites and heads first."""
    return sorted(sorted(kept), key=lambda place: value[place])[: len(kept) - wanted]


def remaining(pool: Sequence[Head], gone: Sequence[Head]) -> list[Head]:
    """The heads of the pool that have not gone, in its order."""
    left = set(gone)
    return [place for place in pool if place not in left]

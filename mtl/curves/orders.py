"""The orders in which heads go: by importance, computed again, greedily, at random, or by a measure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from mtl.analysis.ablation import BATCH_TOKENS as ABLATION_TOKENS
from mtl.analysis.ablation import Ablation, Ablator, joined_counts
from mtl.analysis.importance import task_importance
from mtl.analysis.trained import BATCH_TOKENS, TrainedRun
from mtl.errors import InputError, did_you_mean
from mtl.heads.gates import Mask
from mtl.models.batches import BatchLoader, aligned_batches
from mtl.probes.measures.groups import BY_NAME, MADE_BY_PROBING, made_with
from mtl.probes.sites import Site, grid, head_name
from mtl.probes.tables.heads_table import FEWEST_ITEMS, head_scores

Head = tuple[int, int]
"""A site and a head, as in the uncut model."""
Values = Mapping[str, Float[np.ndarray, "site head"]]
"""By task, a value for each head; heads of low value go first."""
NextHeads = Callable[[Mapping[str, Sequence[Head]], Mapping[str, int]], dict[str, list[Head]]]
"""Given the heads still kept and the number wanted by task, the heads that go next: at least one, in
order."""


def scale_with_only(scale: Float[Tensor, "site head"], kept: Sequence[Head]) -> Float[Tensor, "site head"]:
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


@dataclass(frozen=True)
class Going:
    """Which heads may go, and from which end of a ranking."""

    reverse: bool = False
    """Whether the heads that rank last go first."""
    at_least: int = 0
    """The number of heads that stay in every layer."""

    def may_go(self, kept: Sequence[Head]) -> list[Head]:
        """The heads of layers that have more heads left than must stay."""
        left = Counter(site for site, _ in kept)
        return [place for place in kept if left[place[0]] > self.at_least]

    def first(self, ranked: Sequence[Head], number: int) -> list[Head]:
        """The first `number` heads to go; `ranked` has all that are left, those of least value first.

        A head that is the last to stay in its layer is passed over. There may be fewer heads than `number`.
        """
        left = Counter(site for site, _ in ranked)
        going: list[Head] = []
        for place in reversed(ranked) if self.reverse else ranked:
            if len(going) < number and left[place[0]] > self.at_least:
                going.append(place)
                left[place[0]] -= 1
        return going

    def fewest(self, pool: Sequence[Head]) -> int:
        """The number of heads that stay to the end."""
        return sum(min(there, self.at_least) for there in Counter(site for site, _ in pool).values())


def by_value(values: Callable[[], Values], going: Going) -> NextHeads:
    """Heads of the least value go first; the values are computed once, when they are first needed."""
    known: dict[str, Float[np.ndarray, "site head"]] = {}

    def next_heads(kept: Mapping[str, Sequence[Head]], wanted: Mapping[str, int]) -> dict[str, list[Head]]:
        if not known:
            known.update(values())
        return {name: _least(known[name], heads, wanted[name], going) for name, heads in kept.items()}

    return next_heads


def recomputed(ranking: TrainedRun, base: Mapping[str, Tensor], normalise: bool, going: Going) -> NextHeads:
    """Heads of the least importance go first, which is computed anew each time with the heads still kept."""

    def next_heads(kept: Mapping[str, Sequence[Head]], wanted: Mapping[str, int]) -> dict[str, list[Head]]:
        values = importance_values(
            ranking, {name: scale_with_only(base[name], kept[name]) for name in kept}, normalise
        )
        return {name: _least(values[name], heads, wanted[name], going) for name, heads in kept.items()}

    return next_heads


def greedy(
    ranking: TrainedRun, base: Mapping[str, Tensor], ties: Callable[[], Values], going: Going
) -> NextHeads:
    """The head that costs the score least goes next; among equals, the one of least value (`ties`)."""
    model = ranking.model
    known: dict[str, Float[np.ndarray, "site head"]] = {}

    def next_heads(kept: Mapping[str, Sequence[Head]], wanted: Mapping[str, int]) -> dict[str, list[Head]]:
        if not known:
            known.update(ties())
        candidates = {name: going.may_go(heads) for name, heads in kept.items()}
        tried = sorted({place for heads in candidates.values() for place in heads})
        masks = [Mask(name, (name,), scale_with_only(base[name], heads)) for name, heads in kept.items()]
        ablate = Ablator(
            model, [Ablation("head", frozenset({place}), *place) for place in tried], masks=masks
        )
        tokens = ABLATION_TOKENS[next(model.parameters()).device.type]
        counts = joined_counts([ablate(batch) for batch in loader(ranking, tuple(kept), tokens)])
        gone = {}
        for name, heads in candidates.items():
            scores = model.tasks[name].metric().score(counts[name].ablated.sum(1).astype(np.float64))
            of_head = dict(zip(tried, scores.tolist(), strict=True))
            value = known[name]
            gone[name] = going.first(sorted(heads, key=lambda place: (-of_head[place], value[place])), 1)
        return gone

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
            raise InputError(_no_values(table, measure, name, sites, without[0], tuple(pools)))
        values[name] = value
    return values


def _no_values(
    table: pl.DataFrame, measure: str, task: str, sites: Sequence[Site], place: Head, ordered: Sequence[str]
) -> str:
    """Why a head of a task has no value; `ordered` are all tasks of the curves.

    One call of `mtl probe` makes all of its measures for all tasks, as far as model and corpus have them.
    """
    made_by = made_with(measure)
    rows = table.filter(pl.col("measure") == measure)
    probed = measure in MADE_BY_PROBING and bool(table["measure"].is_in(MADE_BY_PROBING).any())
    if rows.is_empty() and probed:
        return (
            f"--by={measure}: '{made_by}' finds no {measure} in this model and corpus: choose another measure"
        )
    if rows.is_empty():
        return f"heads.parquet has no {measure}: '{made_by}' makes it"
    if rows["head"].null_count() == rows.height:
        return f"--by={measure}: its numbers belong to layers, not to heads: choose another measure"
    tasks = [name for name in rows["task"].unique(maintain_order=True) if name]
    if tasks and task not in tasks and probed:
        others = [name for name in ordered if name in tasks]
        one_of = f"choose with --task ({', '.join(others)}), or choose" if others else "choose"
        has = f"heads.parquet has {measure} for {', '.join(tasks)}, not for {task}"
        return f"{has}: {one_of} another measure"
    if tasks and task not in tasks:
        return f"heads.parquet has {measure} for {', '.join(tasks)}, not for {task}: '{made_by}' makes it"
    if BY_NAME[measure].chance and head_scores(table, measure).filter(task=task).is_empty():
        return (
            f"--by={measure}: no label of {task} counts, since each is root, has fewer than {FEWEST_ITEMS} "
            "items or no chance level: probe more sentences"
        )
    where = head_name(sites[place[0]], place[1], sites)
    return f"heads.parquet has no {measure} of {where} for {task}: '{made_by}' makes it"


def _least(
    value: Float[np.ndarray, "site head"], kept: Sequence[Head], wanted: int, going: Going
) -> list[Head]:
    """The heads of least value that must go to leave `wanted`; among equals, lower sites and heads first."""
    return going.first(sorted(sorted(kept), key=lambda place: value[place]), len(kept) - wanted)


def heads_left(pool: Sequence[Head], gone: Sequence[Head]) -> list[Head]:
    """The heads of the pool that have not gone, in its order."""
    left = set(gone)
    return [place for place in pool if place not in left]


@dataclass(frozen=True)
class Method:
    """One order in which heads go."""

    by: str
    """Its name in the tables."""
    draw: int
    """Its number among those of this name, from 0."""
    next_heads: NextHeads
    made_of: Mapping[str, object]
    """By task, what the order depends on besides the model, as values that JSON can hold."""


ORDERS = ("importance", "recomputed", "random", "greedy")
"""Orders that are computed; every other order is a measure in heads.parquet."""
RANKED = ("importance", "recomputed", "greedy")
"""Orders that need sentences to rank on."""
REVERSE = "-"
"""What the name of an order begins with if the heads go the other way round, the best ones first."""


def needs_ranking(names: Sequence[str]) -> bool:
    """Whether one of these orders needs sentences to rank on."""
    return any(name.removeprefix(REVERSE) in RANKED for name in names)


def check_orders(names: Sequence[str]) -> None:
    """Raise `InputError` for names that are neither orders nor measures, and for names given twice."""
    if len(set(names)) < len(names):
        raise InputError(f"--by={','.join(names)} names an order twice: name each once")
    for given in names:
        name = given.removeprefix(REVERSE)
        if given == f"{REVERSE}random":
            raise InputError(f"--by={given}: random orders have no reverse: use random")
        if name == "gates":
            raise InputError(
                "--by=gates is no order: leave it out, and give runs with --gates=[RUN,...], or --targets to "
                "train them"
            )
        if name == "ablation_layer":
            raise InputError(
                f"--by={given}: its numbers belong to layers, not to heads: choose another measure"
            )
        if name not in ORDERS and name not in BY_NAME:
            choices = list(dict.fromkeys([*ORDERS, *BY_NAME]))
            raise InputError(f"--by={given}: no such order or measure{did_you_mean(name, choices)}")


def check_measured(settings: Any, made: Collection[str]) -> None:
    """Raise `InputError` unless there are `orders`, and the measures among them are made."""
    if not settings.orders:
        raise InputError(
            "probes.orders is empty: name at least one order, or leave curve out of probes.measures"
        )
    check_orders(settings.orders)
    for order in (name.removeprefix(REVERSE) for name in settings.orders):
        if order not in ORDERS and order not in made:
            raise InputError(
                f"probes.orders has {order}, which no measure of this study makes; '{made_with(order)}' does"
            )

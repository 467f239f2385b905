"""Copies of heads: which heads are copied before training, and which tasks own which copy."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from mtl.errors import InputError
from mtl.heads.clone import clone_heads, transplant_heads
from mtl.models.routes import Owners, Place
from mtl.models.tapped import TappedModel
from mtl.probes.head_names import head_name
from mtl.probes.sites import Site
from mtl.stem_cell.claims_file import Claims, read_claims
from mtl.stem_cell.clones_start import ROWS_PER_TASK, ClonesConfig
from mtl.tasks.in_words import counted


@dataclass(frozen=True)
class CopiedHead:
    """A head to copy; afterwards there is one instance of it for each group of tasks."""

    layer: int
    head: int
    groups: tuple[tuple[str, ...], ...]
    """The tasks of each instance; the first group keeps the original."""
    onto: tuple[int, ...] = ()
    """The heads of the layer that the copies overwrite; empty: the copies are additional heads."""


def make_clones(
    encoder: TappedModel, config: ClonesConfig, tasks: Sequence[str]
) -> tuple[list[CopiedHead], Owners | None]:
    """Copy heads of the encoder as configured; returns what was copied, and the tasks that own each copy.

    The owners are `None` if one pass serves all tasks. Raises `InputError` for a family whose heads cannot be
    copied, claims that do not fit or contest no head, and too few heads for a placebo or a transplant.
    """
    if config.kind == "none":
        return [], None
    if config.kind == "rows":
        return [], {}
    plan = copied_heads(encoder, config, tasks)
    routed = config.kind in ROWS_PER_TASK
    noise = 0.0 if routed else config.noise
    owners: dict[Place, tuple[str, ...]] = {}
    for copied in plan:
        seed = (config.seed or 0) + copied.head
        if copied.onto:
            onto = dict.fromkeys(copied.onto, copied.head)
            transplant_heads(encoder.transformer, {copied.layer: onto}, noise=noise, seed=seed)
            continue
        made = clone_heads(
            encoder.transformer, {copied.layer: [copied.head]}, len(copied.groups), divide=not routed,
            noise=noise, seed=seed,
        )  # fmt: skip
        numbers = (copied.head, *made[copied.layer][copied.head])
        owners |= {
            (copied.layer, number): group for number, group in zip(numbers, copied.groups, strict=True)
        }
    return plan, owners if routed else None


def copied_heads(encoder: TappedModel, config: ClonesConfig, tasks: Sequence[str]) -> list[CopiedHead]:
    """The heads to copy, ordered by layer and number."""
    remaining = encoder.tap.remaining
    if config.heads == "all":
        groups = tuple((name,) for name in tasks)
        return [CopiedHead(layer, head, groups) for layer, heads in enumerate(remaining) for head in heads]
    assert config.claims is not None
    claims = read_claims(Path(config.claims), tasks, (encoder.layers, encoder.heads))
    return planned_copies(claims, remaining, tasks, config)


def planned_copies(
    claims: Claims, remaining: Sequence[Iterable[int]], tasks: Sequence[str], config: ClonesConfig
) -> list[CopiedHead]:
    """The copies of contested heads, or of a placebo for each; in a transplant, also what they overwrite.

    A contested head gets one instance for each task that claims it; the other tasks share the first one. Its
    placebo is a head of the same layer that at most one task claims, copied as often and for the same tasks.
    A transplant overwrites heads that no task claims. They are drawn before the placebos, so that a
    transplant and its placebo lose the same heads. `remaining` has the heads of each layer that were not cut.
    Raises `InputError` if no head is contested, a claimed head was cut, or a layer has too few heads.
    """
    claimants, contested = claims.claimants(tasks), claims.contested(tasks)
    missing = [place for place in contested if place[1] not in remaining[place[0]]]
    if missing:
        raise InputError(f"{_name(*missing[0])} is claimed, but it has been cut out of the encoder")
    if not contested:
        raise InputError(
            f"no head is claimed by two of {', '.join(tasks)} (clones.claims={config.claims}), so nothing "
            "can be copied: leave these tasks out, or use masks with more open heads"
        )
    plan: list[CopiedHead] = []
    for layer in sorted({layer for layer, _ in contested}):
        # One generator per draw, so that what is overwritten does not depend on the draw of placebos.
        overwritten, placebo = (
            random.Random(f"{draw} {config.seed} {layer}") for draw in ("onto", "placebo")
        )
        here = [head for of_layer, head in contested if of_layer == layer]
        wanted = [len(claimants[layer, head]) - 1 for head in here]
        onto: list[list[int]] = [[] for _ in here]
        taken: set[int] = set()
        if config.kind == "transplant":
            free = [head for head in sorted(remaining[layer]) if (layer, head) not in claimants]
            drawn = _draw(overwritten, free, sum(wanted), layer, "that no task claims, to be overwritten")
            taken = set(drawn)
            for targets, number in zip(onto, wanted, strict=True):
                targets += [drawn.pop() for _ in range(number)]
        sources = here
        if config.heads == "uncontested":
            others = [
                head
                for head in sorted(remaining[layer])
                if head not in taken and len(claimants.get((layer, head), ())) < 2
            ]
            sources = _draw(
                placebo, others, len(here), layer, "for the placebo that fewer than two tasks claim"
            )
        for head, source, targets in zip(here, sources, onto, strict=True):
            names = claimants[layer, head]
            rest = tuple(name for name in tasks if name not in names)
            groups = ((names[0], *rest), *((name,) for name in names[1:]))
            plan.append(CopiedHead(layer, source, groups, tuple(sorted(targets))))
    return sorted(plan, key=lambda copied: (copied.layer, copied.head))


def swapped(routes: Float[Tensor, "task site head"]) -> Float[Tensor, "task site head"]:
    """The routes, assigned to the tasks at random."""
    return routes[torch.randperm(len(routes)).to(routes.device)]


def describe_clones(plan: Sequence[CopiedHead], config: ClonesConfig, tasks: Sequence[str]) -> str:
    """What was copied, in one line, with the number of heads contested by learned claims alone.

    Empty without copies of heads and rows per task.
    """
    if config.kind == "none":
        return ""
    if config.kind == "rows":
        return "clones: a row per task, no head copied"
    heads = ", ".join(_name(copied.layer, copied.head) + _copies(copied) for copied in plan)
    learned = None
    if config.heads != "all" and config.claims is not None:
        learned = read_claims(Path(config.claims), tasks, None).contested_by_learning(tasks)
    alone = "" if learned is None else f"; heads contested by learned claims alone: {learned}"
    return f"clones: {config.kind}, {config.heads}: {counted(len(plan), 'head')}: {heads}{alone}"


def _copies(copied: CopiedHead) -> str:
    if copied.onto:
        return f" onto {'+'.join(_name(copied.layer, head) for head in copied.onto)}"
    return f" x {len(copied.groups)}"


def _name(layer: int, head: int | None) -> str:
    return head_name(Site("self", layer), head)


def _draw(generator: random.Random, heads: Sequence[int], number: int, layer: int, purpose: str) -> list[int]:
    if number > len(heads):
        raise InputError(
            f"{_name(layer, None)} has {counted(len(heads), 'head')} {purpose}, and {number} are needed: "
            "learn smaller masks"
        )
    return generator.sample(list(heads), number)

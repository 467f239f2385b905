"""What else a decoder could have predicted, with probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from jaxtyping import Float
from torch import Tensor

ItemKind = Literal["label", "span", "head", "relation", "constituent", "predicate", "role", "sense"]


class Alternative(NamedTuple):
    """A value that an item may have, and its probability."""

    value: str | int
    """A label; for a `head`, the number of the word, 0 for the root."""
    probability: float


class Item(NamedTuple):
    """Something that a decoder finds a value for, and its most probable values, the best first."""

    kind: ItemKind
    start: int
    end: int
    """The words that it covers, from 0; `end` is exclusive."""
    best: tuple[Alternative, ...]
    predicate: int | None = None
    """For a `role`: the word of its predicate."""
    head: int | None = None
    """For a `relation` in a graph: the number of the arc's head, 0 for the root."""


def k_best(
    probabilities: Float[Tensor, "item value"], values: Sequence[str | int], k: int
) -> list[tuple[Alternative, ...]]:
    """The `k` most probable values of each item, without impossible ones."""
    best = probabilities.topk(min(k, probabilities.shape[1]), 1)
    return [
        tuple([Alternative(values[index], chance) for chance, index in zip(*row, strict=True) if chance > 0])
        for row in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]

"""Routes for heads that only some tasks have: a scale per task that closes the heads it lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

Place = tuple[int, int]
"""A head: its site, and its number there."""
Owners = Mapping[Place, Sequence[str]]
"""The tasks that have a head, for each head that some tasks lack."""


def routes_of(
    owners: Owners, tasks: Sequence[str], there: Sequence[Sequence[int]], heads: int
) -> Float[Tensor, "task site head"]:
    """1 where a task has a head, else 0; all tasks have the heads without owners.

    `there` lists the numbers of each site's heads; `heads` is greater than all of them.
    """
    routes = torch.zeros(len(tasks), len(there), heads)
    for site, numbers in enumerate(there):
        routes[:, site, list(numbers)] = 1.0
    for (site, head), names in owners.items():
        routes[:, site, head] = torch.tensor([float(name in names) for name in tasks])
    return routes


def owners_as_rows(owners: Owners) -> list[list[object]]:
    """The owners as JSON: site, number and tasks of each head."""
    return [[site, head, list(names)] for (site, head), names in sorted(owners.items())]


def owners_from_rows(rows: Sequence[Sequence[object]]) -> dict[Place, tuple[str, ...]]:
    """What `owners_as_rows` wrote; raises `ValueError` for anything else."""
    owners: dict[Place, tuple[str, ...]] = {}
    for site, head, names in rows:
        if not isinstance(site, int) or not isinstance(head, int) or not isinstance(names, list):
            raise ValueError(f"not the owners of a head: {[site, head, names]}")
        owners[site, head] = tuple(names)
    return owners

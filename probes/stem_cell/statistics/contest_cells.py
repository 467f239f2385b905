"""The cells of the contest: what each claimed head is worth to its task beside each partner, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from jaxtyping import Bool, Float, Int

from mtl.probes.sites import KEYS, Site, sites_of
from mtl.tasks.in_words import counted

TWIN, CONTROL = "twin", "control"
"""Partners that are shown beside the pairs and enter no estimate: the task itself, and a task whose labels
are random."""


@dataclass(frozen=True)
class TaskWorth:
    """What all heads are worth to one task in its pair runs."""

    task: str
    partners: tuple[str, ...]
    worth: Float[np.ndarray, "seed partner cell"]
    """As measured; cells are the heads of all sites, as `ContestCells.strata` numbers them."""


@dataclass(frozen=True)
class ContestCells:
    """Worth and claims laid out by task, partner, seed and head."""

    seeds: tuple[int, ...]
    sites: tuple[Site, ...]
    heads: int
    """Heads of each site."""
    strata: Int[np.ndarray, " cell"]
    """The site of each head; heads of a site are adjacent."""
    claims: dict[str, Bool[np.ndarray, " cell"]]
    """The heads that each task claims."""
    tasks: tuple[TaskWorth, ...]
    of_seeds: dict[str, Bool[np.ndarray, "claim_seed cell"]] = field(default_factory=dict)
    """The claims by the mask of each seed, of which `claims` are the majority; empty if not known."""


def contest_cells(
    worth: pl.DataFrame, claims: pl.DataFrame, tasks: Sequence[str] = ()
) -> tuple[ContestCells, tuple[str, ...]]:
    """The tables laid out as arrays, and notes on seeds that are left out.

    `worth`: task, partner, seed, attention, layer, head, worth; one row per task, partner, seed and head.
    `claims`: task, attention, layer, head, claimed, and if known `of_seeds` (a list: whether the head is open
    in the mask of each seed). `tasks` chooses the tasks whose heads are compared; their partners are kept.
    The control task, partners without claims, and seeds that some pair lacks are left out.

    Raises `ValueError` if nothing is left, or if not every head has exactly one value in each pair run
    and one claim of each task.
    """
    claims = claims.filter(pl.col("task") != CONTROL)
    known = set(claims["task"].unique())
    in_play = worth.filter(pl.col("task").is_in(known) & pl.col("partner").is_in(known))
    if tasks:
        in_play = in_play.filter(pl.col("task").is_in(tasks))
    if in_play.is_empty():
        raise ValueError(
            "no pair run of two tasks that both have claims: train pairs, and masks of each task"
        )
    sites = sites_of(claims)
    heads = int(claims["head"].to_numpy().max()) + 1
    place = {site: number for number, site in enumerate(sites)}
    per_pair = {
        (task, partner): set(rows["seed"])
        for (task, partner), rows in in_play.group_by("task", "partner", maintain_order=True)
    }
    seeds = tuple(sorted(set.intersection(*per_pair.values())))
    all_seeds = set().union(*per_pair.values())
    notes = [
        f"no worth of heads for {task} beside {partner} with seed "
        f"{', '.join(map(str, sorted(all_seeds - has)))}: left out of the contest"
        for (task, partner), has in per_pair.items()
        if all_seeds - has
    ]
    if not seeds:
        raise ValueError("no seed that all pairs have: measure the same seeds of every pair")

    def cells_of(rows: pl.DataFrame, column: str, title: str) -> Float[np.ndarray, " cell"]:
        values = np.full(len(sites) * heads, np.nan)
        for kind, layer, head, value in rows.select(*KEYS, column).iter_rows():
            site = place.get(Site(kind, layer))
            if site is None or head >= heads:
                raise ValueError(f"{title}: masks and worth are of encoders of different shapes")
            values[site * heads + head] = value
        if rows.height != len(values) or np.isnan(values).any():
            raise ValueError(
                f"{title}: {rows.height} of {counted(len(values), 'head has', 'heads have')} a "
                f"value, and each needs exactly one"
            )
        return values

    claimed = {
        str(task): cells_of(rows, "claimed", f"claims of {task}") > 0.5
        for (task,), rows in claims.group_by("task", maintain_order=True)
    }
    masks = int(claims["of_seeds"].list.len().to_numpy().min()) if "of_seeds" in claims.columns else 0
    of_seeds = {
        str(task): np.array(
            [
                cells_of(rows.with_columns(pl.col("of_seeds").list.get(mask)), "of_seeds", f"masks of {task}")
                > 0.5
                for mask in range(masks)
            ]
        )
        for (task,), rows in claims.group_by("task", maintain_order=True)
        if masks
    }
    laid_out = []
    for (task,), of_task in in_play.group_by("task", maintain_order=True):
        partners = tuple(of_task["partner"].unique(maintain_order=True))
        runs = dict(of_task.group_by("seed", "partner", maintain_order=True))
        values = [
            [
                cells_of(runs[seed, partner], "worth", f"{task} beside {partner}, seed {seed}")
                for partner in partners
            ]
            for seed in seeds
        ]
        laid_out.append(TaskWorth(str(task), partners, np.array(values)))
    strata = np.repeat(np.arange(len(sites)), heads)
    return ContestCells(seeds, sites, heads, strata, claimed, tuple(laid_out), of_seeds), tuple(notes)

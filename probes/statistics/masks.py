"""The final masks of several tasks over the same seeds, out of the runs' tables of gates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import polars as pl
from jaxtyping import Bool, Float

from mtl.probes.sites import KEYS, Site, grid, shape_text, sites_of


@dataclass(frozen=True)
class Masks:
    """Gates at the end of training, one mask for each task and seed."""

    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    sites: tuple[Site, ...]
    """The kind of attention and the layer of each row of heads."""
    gate: Float[np.ndarray, "task seed site head"]
    opened: Bool[np.ndarray, "task seed site head"]

    def mean(self) -> Float[np.ndarray, "task site head"]:
        """The mean gate over seeds."""
        return self.gate.mean(1)

    def claimed(self) -> Bool[np.ndarray, "task site head"]:
        """Whether a task has the head open in more than half of its seeds: of two seeds in both."""
        return self.opened.mean(1) > 0.5

    def without(self, task: str) -> Masks:
        """The masks of the other tasks."""
        others = [place for place, name in enumerate(self.tasks) if name != task]
        names = tuple(self.tasks[place] for place in others)
        return Masks(names, self.seeds, self.sites, self.gate[others], self.opened[others])


def final_masks(gates: pl.DataFrame) -> tuple[Masks, tuple[str, ...]]:
    """The masks at the last step of every task and seed, and notes on what was left out.

    `gates` has the columns of a run's gates.parquet, `run` and `seed`; `task` may name anything that has a
    mask of its own (a task in a setup). Only seeds that all tasks have are taken. Raises `ValueError` for an
    empty table, masks of different shapes, two masks of one task and seed, or no common seed.
    """
    if gates.is_empty():
        raise ValueError("no masks: give runs that were trained with gates")
    mask_of = ["task", "seed"]
    runs = gates.group_by(mask_of, maintain_order=True).agg(pl.col("run").unique(maintain_order=True))
    for row in runs.filter(pl.col("run").list.len() > 1).iter_rows(named=True):
        raise ValueError(
            f"{_list(row['run'])} all have a mask of {row['task']} with seed {row['seed']}: give one of them"
        )
    last = gates.filter(pl.col("step") == pl.col("step").max().over(mask_of))
    sites, heads = sites_of(last), int(last["head"].to_numpy().max()) + 1
    cells = dict(last.group_by(mask_of, maintain_order=True))
    for (task, seed), mask in cells.items():
        # As many rows as heads, and no head twice.
        if not mask.height == len(sites) * heads == mask.select(KEYS).n_unique():
            raise ValueError(
                f"masks of different shapes: {task} with seed {seed} has {mask.height} heads, all masks "
                f"together {shape_text(sites, heads)}: give runs of one encoder"
            )
    tasks = tuple(gates["task"].unique(maintain_order=True))
    seeds_of = {task: {seed for name, seed in cells if name == task} for task in tasks}
    all_seeds = sorted(set().union(*seeds_of.values()))
    common = tuple(seed for seed in all_seeds if all(seed in seeds for seeds in seeds_of.values()))
    if not common:
        has = "; ".join(f"{task}: {_list(seeds)}" for task, seeds in seeds_of.items())
        raise ValueError(f"no seed that all tasks have ({has})")
    notes = tuple(
        f"no mask of {task} with seed {_list(set(all_seeds) - seeds)}: that seed is left out"
        for task, seeds in seeds_of.items()
        if set(all_seeds) - seeds
    )

    def block(column: str) -> np.ndarray:
        return np.stack(
            [[grid(cells[task, seed], column, sites, heads) for seed in common] for task in tasks]
        )

    return Masks(tasks, common, sites, block("gate"), block("open").astype(bool)), notes


def _list(values: Iterable[object]) -> str:
    return ", ".join(map(str, sorted(values, key=str)))

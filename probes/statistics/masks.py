"""The final masks of several tasks over the same seeds, out of the runs' tables of gates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import polars as pl
from jaxtyping import Bool, Float


@dataclass(frozen=True)
class Masks:
    """Gates at the end of training, one mask for each task and seed."""

    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    gate: Float[np.ndarray, "task seed layer head"]
    opened: Bool[np.ndarray, "task seed layer head"]

    def mean(self) -> Float[np.ndarray, "task layer head"]:
        """The mean gate over seeds."""
        return self.gate.mean(1)

    def claimed(self) -> Bool[np.ndarray, "task layer head"]:
        """Whether a task has the head open in more than half of its seeds: of two seeds in both."""
        return self.opened.mean(1) > 0.5


def final_masks(gates: pl.DataFrame) -> tuple[Masks, tuple[str, ...]]:
    """The masks at the last step of every task and seed, and notes on what was left out.

    `gates` has the columns of a run's gates.parquet, `run` and `seed`; `task` may name anything that has a
    mask of its own (a task in a setup). Only seeds that all tasks have are taken. Raises `ValueError` for
    masks of different shapes, two masks of one task and seed, or no common seed.
    """
    if gates.is_empty():
        raise ValueError("no masks: give runs that were trained with gates")
    of = ["task", "seed"]
    runs = gates.group_by(of, maintain_order=True).agg(pl.col("run").unique(maintain_order=True))
    for row in runs.filter(pl.col("run").list.len() > 1).iter_rows(named=True):
        raise ValueError(
            f"{_list(row['run'])} all have a mask of {row['task']} with seed {row['seed']}: give one of them"
        )
    last = gates.filter(pl.col("step") == pl.col("step").max().over(of)).sort("attention", "layer", "head")
    shapes = last.group_by(of, maintain_order=True).agg(
        layers=pl.struct("attention", "layer").n_unique(), heads=pl.col("head").max() + 1, cells=pl.len()
    )
    layers, heads = shapes["layers"][0], shapes["heads"][0]
    for row in shapes.iter_rows(named=True):
        if (row["layers"], row["heads"], row["cells"]) != (layers, heads, layers * heads):
            raise ValueError(
                f"masks of different shapes: {row['task']} with seed {row['seed']} has {row['cells']} heads "
                f"in {row['layers']} layers, another mask {layers} x {heads}: give runs of one encoder"
            )
    tasks = tuple(gates["task"].unique(maintain_order=True))
    of_task = {task: set(shapes.filter(pl.col("task") == task)["seed"]) for task in tasks}
    every = sorted(set().union(*of_task.values()))
    common = tuple(seed for seed in every if all(seed in seeds for seeds in of_task.values()))
    if not common:
        has = "; ".join(f"{task}: {_list(seeds)}" for task, seeds in of_task.items())
        raise ValueError(f"no seed that all tasks have ({has})")
    notes = tuple(
        f"no mask of {task} with seed {_list(set(every) - seeds)}: that seed is left out"
        for task, seeds in of_task.items()
        if set(every) - seeds
    )
    cells = dict(last.group_by(of))

    def block(column: str) -> np.ndarray:
        values = [[cells[task, seed][column].to_numpy() for seed in common] for task in tasks]
        return np.stack(values).reshape(len(tasks), len(common), layers, heads)

    return Masks(tasks, common, block("gate").astype(np.float64), block("open")), notes


def _list(values: Iterable[object]) -> str:
    return ", ".join(map(str, sorted(values, key=str)))

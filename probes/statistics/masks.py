"""The final masks of several tasks with the same seeds, from the runs' tables of gates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
from jaxtyping import Bool, Float

from mtl.probes.sites import KEYS, Site, grid, shape_text, sites_of
from mtl.probes.tables.gates_table import last_gates
from mtl.tasks.in_words import counted
from mtl.tasks.order import in_order_of_catalogue


@dataclass(frozen=True)
class Masks:
    """Gates at the end of training, one mask for each task and seed."""

    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    sites: tuple[Site, ...]
    """The kind of attention and the layer of each row of heads."""
    gate: Float[np.ndarray, "task seed site head"]
    opened: Bool[np.ndarray, "task seed site head"]
    learned: Bool[np.ndarray, "task seed site head"]
    """The heads that training itself had open; if this differs from `opened`, a target forced the head."""
    draws: Mapping[str, int] = field(default_factory=dict)
    """The draw of random labels, by the name of its mask."""

    def mean(self) -> Float[np.ndarray, "task site head"]:
        """The mean gate over seeds."""
        return self.gate.mean(1)

    def claimed(self) -> Bool[np.ndarray, "task site head"]:
        """Whether a task keeps the head open in more than half of its seeds; of two seeds, in both."""
        return self.opened.mean(1) > 0.5

    def learned_claims(self) -> Bool[np.ndarray, "task site head"]:
        """The learned claims: heads that more than half of the seeds keep open without force."""
        return self.kept_by_learning().mean(1) > 0.5

    def kept_by_learning(self) -> Bool[np.ndarray, "task seed site head"]:
        """The open heads that no target had to open."""
        return self.opened & self.learned

    def forced(self) -> Bool[np.ndarray, "task seed site head"]:
        """The heads that a target forced open or shut."""
        return self.opened != self.learned

    def claims_in_words(self) -> str:
        """How many heads each task claims, and how many of them it learned to: `pos 19 (5 learned)`."""
        counts = zip(self.tasks, self.claimed(), self.learned_claims(), strict=True)
        return ", ".join(
            f"{task} {of_all.sum()} ({learned.sum()} learned)" for task, of_all, learned in counts
        )

    def forced_in_words(self) -> str:
        """`claims_in_words` as the first part of a reason; empty where no head was forced."""
        return f"claimed heads are {self.claims_in_words()}; " if self.forced().any() else ""

    def learned_alone(self) -> Masks:
        """The masks in which every head is shut that only a target opened."""
        kept = self.kept_by_learning()
        return replace(self, opened=kept, learned=kept)

    def of_real_labels(self) -> Masks:
        """The masks of the tasks whose labels are not random."""
        others = [place for place, name in enumerate(self.tasks) if name not in self.draws]
        names = tuple(self.tasks[place] for place in others)
        return Masks(
            names, self.seeds, self.sites, self.gate[others], self.opened[others], self.learned[others]
        )


def mostly_forced(
    opened: Bool[np.ndarray, "mask ..."], learned: Bool[np.ndarray, "mask ..."]
) -> tuple[Bool[np.ndarray, "*heads"], Bool[np.ndarray, "*heads"]]:
    """The heads that most masks with the head open were forced to open, and the same for closed heads.

    For a single mask, these are simply the heads that were forced.
    """
    opened_by_force, closed_by_force = (opened & ~learned).sum(0), (~opened & learned).sum(0)
    return 2 * opened_by_force > opened.sum(0), 2 * closed_by_force > (~opened).sum(0)


def final_masks(gates: pl.DataFrame) -> tuple[Masks, tuple[str, ...]]:
    """The masks at the last step of every task and seed, and notes on what was left out.

    Tasks are in the catalogue's order, and only seeds that all tasks have are taken.

    `gates` has the columns of a run's gates.parquet, `run` and `seed`. It may have `learned`, which equals
    `open` unless a target forced the head (`mtl.heads.gate_file.LEARNED`), and `draw`
    (`mtl.probes.tables.gates_table.name_draws`). `task` may name anything that has a mask of its own, such as
    a task in a setup. Raises `ValueError` for an empty table, masks of different shapes, two masks of one
    task and seed, or no common seed.
    """
    if gates.is_empty():
        raise ValueError("no masks: use runs that were trained with gates")
    if "learned" not in gates.columns:
        gates = gates.with_columns(learned="open")
    mask_of = ["task", "seed"]
    runs = gates.group_by(mask_of, maintain_order=True).agg(pl.col("run").unique(maintain_order=True))
    for row in runs.filter(pl.col("run").list.len() > 1).iter_rows(named=True):
        raise ValueError(
            f"{_list(row['run'])} all have a mask of {row['task']} with seed {row['seed']}: use one of them"
        )
    last = last_gates(gates)
    sites, heads = sites_of(last), int(last["head"].to_numpy().max()) + 1
    cells = dict(last.group_by(mask_of, maintain_order=True))
    for (task, seed), mask in cells.items():
        # As many rows as heads, and no head twice.
        if not mask.height == len(sites) * heads == mask.select(KEYS).n_unique():
            raise ValueError(
                f"masks of different shapes: {task} with seed {seed} has {counted(mask.height, 'head')}, and "
                f"all masks together have {shape_text(sites, heads)}: use runs of one encoder"
            )
    tasks = in_order_of_catalogue(gates["task"])
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

    opened, learned = (block(name).astype(bool) for name in ("open", "learned"))
    draws: dict[str, int] = {}
    if "draw" in last.columns:
        alone = last.filter(~pl.col("task").str.contains("+", literal=True))
        draws = dict(alone.select("task", "draw").drop_nulls().unique().iter_rows())
    return Masks(tasks, common, sites, block("gate"), opened, learned, draws), notes


def _list(values: Iterable[object]) -> str:
    return ", ".join(map(str, sorted(values, key=str)))

"""A made-up study with a planted contest: masks of single tasks, and pairs with the importance of heads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from mtl.probes.stem_cell.contest import ContestCells, TaskWorth
from mtl.probes.tables import heads_table
from tests.mtl.studies import Study
from tests.probes.stem_cell.worlds_contest import HEADS, LAYERS, world

CHOSEN = ("pos", "dep", "srl")


class ContestStudy(Study):
    """Runs whose claims and worth are those of a world of `worlds_contest`."""

    def __init__(self, root: Path, loss: float = 0.2, seeds: int = 3, noise: float = 0.25):
        super().__init__(root, layers=LAYERS, heads=HEADS)
        self.cells = only(world(np.random.default_rng(3), loss=loss, noise=noise, seeds=seeds), CHOSEN)
        for task in CHOSEN:
            self.wish[task] = np.where(self.cells.claims[task], 1.0, -1.0).reshape(LAYERS, HEADS)

    def whole(self) -> Path:
        """Masks with seeds 11 to 13; pairs, and tasks alone and jointly, with the seeds that are measured."""
        for task in CHOSEN:
            for seed in (11, 12, 13):
                self.run([task], seed, probe=False)
            for seed in self.cells.seeds:
                self.run([task], seed, pruning="none", probe=False)
        for seed in self.cells.seeds:
            self.run(CHOSEN, seed, pruning="none", probe=False)
            for one, task in enumerate(CHOSEN):
                for other in CHOSEN[one + 1 :]:
                    self.pair(task, other, seed)
        return self.root

    def pair(self, task: str, other: str, seed: int, **config) -> Path:
        """A pair run with its importance."""
        folder = self.run([task, other], seed, pruning="none", probe=False, **config)
        self.worth(folder, {name: self.of(name, partner, seed) for name, partner in
                            ((task, other), (other, task))})  # fmt: skip
        return folder

    def of(self, task: str, partner: str, seed: int) -> np.ndarray:
        of = next(of for of in self.cells.tasks if of.task == task)
        return of.worth[self.cells.seeds.index(seed), of.partners.index(partner)]

    def worth(self, folder: Path, by_task: dict[str, np.ndarray], measure: str = "importance") -> None:
        """Write the importance of all heads for tasks."""
        shape = (1, LAYERS, HEADS)
        count = np.array([300])
        rows = [
            heads_table.rows(measure, task, [""], values.reshape(shape), count)
            for task, values in by_task.items()
        ]
        heads_table.write_heads_table(folder / "heads.parquet", pl.concat(rows), {"run": str(folder)})

    def twins(self, task: str, seed: int) -> Path:
        """A task with itself: importance of 1 on its own heads, a hundredth elsewhere (mean of halves)."""
        folder = self.run([f"{task}~a", f"{task}~b"], seed, pruning="none", probe=False, scores=False)
        claimed = self.cells.claims[task]
        halves = {f"{task}~a": 0.5, f"{task}~b": 1.5}
        self.worth(folder, {name: np.where(claimed, half, 0.01 * half) for name, half in halves.items()})
        return folder


def only(cells: ContestCells, tasks: Sequence[str]) -> ContestCells:
    """The same world with these tasks alone."""
    kept = []
    for of in cells.tasks:
        columns = [place for place, partner in enumerate(of.partners) if partner in tasks]
        partners = tuple(of.partners[place] for place in columns)
        if of.task in tasks:
            kept.append(TaskWorth(of.task, partners, of.worth[:, columns]))
    claims = {task: cells.claims[task] for task in tasks}
    return ContestCells(
        cells.seeds,
        cells.sites,
        cells.heads,
        cells.strata,
        claims,
        tuple(kept),
        {task: cells.of_seeds[task] for task in tasks},
    )

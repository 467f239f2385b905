"""Does the worth of a head follow what the partner needs? By importance and by ablation, from study.tar.xz.

mkdir archive && tar xf docs/results/contest/study.tar.xz -C archive
python docs/results/contest/measures.py archive/contest/runs
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from mtl.probes.sites import Site
from mtl.probes.statistics.significance import permutations_within
from mtl.probes.stem_cell.contest import (
    LEVEL,
    NORMAL_SCORES,
    STANDARDISED_LOGS,
    STANDARDISED_POINTS,
    ContestCells,
    TaskBlock,
    TaskWorth,
    WorthUnit,
    in_unit,
    standardised_logs,
    tested,
)

TASKS, SEEDS, CLAIM_SEEDS = ("pos", "ner", "dep", "con", "srl"), (1, 2, 3), (11, 12, 13)
LAYERS, HEADS, DRAWS = 6, 12, 9999
STRATA = np.repeat(np.arange(LAYERS), HEADS)
SITES = tuple(Site("self", layer) for layer in range(LAYERS))
MEASURES = (
    ("importance", STANDARDISED_LOGS), ("importance", NORMAL_SCORES), ("ablation", NORMAL_SCORES),
    ("ablation", STANDARDISED_POINTS),
)  # fmt: skip


def main() -> None:
    """Print what the page quotes."""
    runs = Path(sys.argv[1])
    need, claims = needs(runs), claimed(runs)
    every = dict.fromkeys(TASKS, np.ones(len(STRATA), dtype=bool))
    orders = permutations_within(STRATA, DRAWS, np.random.default_rng(0))
    residuals = {}
    for measure, unit in MEASURES:
        tasks = in_pairs(runs, measure)
        for name, own in (("all heads", every), ("claimed heads", claims)):
            blocks = blocks_of(tasks, unit, own)
            slope(f"{measure}, {unit.name}, {name}", need, blocks, orders)
            residuals[measure, unit.name, name] = np.concatenate([block.residual.ravel() for block in blocks])
    for name in ("all heads", "claimed heads"):
        pair = [residuals["importance", STANDARDISED_LOGS.name, name]]
        pair.append(residuals["ablation", STANDARDISED_POINTS.name, name])
        print(f"what partners change, {name}: the two measures correlate by {np.corrcoef(pair)[0, 1]:+.2f}")
    noise(runs)


def needs(runs: Path) -> dict[str, np.ndarray]:
    """What each task needs of each head when it is alone: standardised logs of importance, as one mask."""
    alone = {
        task: [worth(runs / f"{task}-seed{seed}", "importance", task) for seed in SEEDS] for task in TASKS
    }
    return {task: standardised_logs(np.array(values)).mean(0)[None] for task, values in alone.items()}


def claimed(runs: Path) -> dict[str, np.ndarray]:
    """The heads that most of a task's masks keep."""
    return {task: np.mean([opened(runs, task, seed) for seed in CLAIM_SEEDS], axis=0) > 0.5 for task in TASKS}


def in_pairs(
    runs: Path, measure: str, seeds: Sequence[int] = SEEDS, table: str = "heads.parquet"
) -> tuple[TaskWorth, ...]:
    """A measure of heads for each task in its pairs."""
    return tuple(
        TaskWorth(task, partners_of(task), np.stack(beside(runs, task, measure, seeds, table), axis=1))
        for task in TASKS
    )


def blocks_of(tasks: Sequence[TaskWorth], unit: WorthUnit, own: dict[str, np.ndarray]) -> list[TaskBlock]:
    """The model of each task, on the mean over seeds."""
    cells = ContestCells(SEEDS, SITES, HEADS, STRATA, own, tuple(tasks), {})
    return [TaskBlock(cells, of, in_unit(of, unit).mean(0)) for of in tasks]


def slope(name: str, need: dict[str, np.ndarray], blocks: list[TaskBlock], orders: np.ndarray) -> None:
    """Print the slope of worth on the partner's need, its interval and two-sided p."""
    beta, low, high, p = tested(need, blocks, orders, LEVEL)
    both = min(1, 2 * min(p, 1 - p + 1 / DRAWS))
    print(f"{name}: slope {-beta:+.3f} ({-high:+.3f} to {-low:+.3f}), p {both:.4f}")


def noise(runs: Path) -> None:
    """Print how much of ablation's noise is that of 300 sentences, by task."""
    for task in TASKS:
        measures = ("ablation", "ablation_low", "ablation_high")
        points, low, high = (np.stack(beside(runs, task, name), axis=1) for name in measures)
        block = points.mean(0) - points.mean((0, 1))
        for layer in range(LAYERS):
            block[:, layer == STRATA] -= block[:, layer == STRATA].mean(1, keepdims=True)
        freedom = (len(TASKS) - 2) * LAYERS * (HEADS - 1)
        left, sentences = 3 * (block**2).sum() / freedom, (((high - low) / 3.92) ** 2).mean()
        print(f"{task}: variance between runs {left:.4f}, of 300 sentences {sentences:.4f}")


def partners_of(task: str) -> tuple[str, ...]:
    """All other tasks."""
    return tuple(other for other in TASKS if other != task)


def beside(
    runs: Path, task: str, measure: str, seeds: Sequence[int] = SEEDS, table: str = "heads.parquet"
) -> list[np.ndarray]:
    """A measure of heads for a task in its pairs with each partner, by seed."""
    pairs = ["+".join(sorted((task, partner), key=TASKS.index)) for partner in partners_of(task)]
    return [
        np.array([worth(runs / f"{pair}-seed{seed}", measure, task, table) for seed in seeds])
        for pair in pairs
    ]


def worth(run: Path, measure: str, task: str, table: str = "heads.parquet") -> np.ndarray:
    """A measure of all heads in a run."""
    heads = pl.read_parquet(run / table).filter(measure=measure, task=task)
    return heads.sort("layer", "head")["value"].to_numpy()


def opened(runs: Path, task: str, seed: int) -> np.ndarray:
    """The heads that a mask of 14 keeps."""
    gates = pl.read_parquet(runs / f"{task}-dynamic-k14-seed{seed}" / "gates.parquet")
    return gates.filter(step=gates["step"].max()).sort("layer", "head")["open"].to_numpy()


if __name__ == "__main__":
    main()

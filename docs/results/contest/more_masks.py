"""The contest's primary test on fresh runs, and with claims of six masks instead of three.

python docs/results/contest/more_masks.py archive docs/results/nine-tasks/masks.csv

`archive` holds what study.tar.xz and sign-runs.tar.xz contain.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import polars as pl

from mtl.probes.sites import Site
from mtl.probes.stem_cell.contest import (
    STANDARDISED_LOGS,
    STANDARDISED_POINTS,
    ContestCells,
    TaskWorth,
    estimate_contest,
)

TASKS = ("pos", "ner", "dep", "con", "srl")
LAYERS, HEADS = 6, 12


def values(path: Path, measure: str, task: str) -> np.ndarray:
    table = pl.read_parquet(path).filter((pl.col("measure") == measure) & (pl.col("task") == task))
    return table.sort("layer", "head")["value"].to_numpy()


def kept(path: Path) -> np.ndarray:
    gates = pl.read_parquet(path)
    gates = gates.filter(pl.col("step") == pl.col("step").max()).sort("layer", "head")
    return gates["open"].to_numpy().astype(bool)


def masks_of_three(runs: Path) -> dict[str, np.ndarray]:
    return {
        task: np.array([kept(runs / f"{task}-dynamic-k14-seed{seed}/gates.parquet") for seed in (11, 12, 13)])
        for task in TASKS
    }


def masks_of_nine_tasks(path: Path) -> dict[str, np.ndarray]:
    """Three more masks of 14 heads for each task, on the same encoder and sentences; POS is XPOS there."""
    masks = {task: np.zeros((3, LAYERS * HEADS), dtype=bool) for task in TASKS}
    alone = pl.read_csv(path).filter(pl.col("regime") == "alone")
    for task, seed, layer, head in alone.select("task", "seed", "layer", "head").iter_rows():
        name = "pos" if task == "xpos" else task
        if name in masks:
            masks[name][seed - 1, layer * HEADS + head] = True
    return masks


def main() -> None:
    archive, more = Path(sys.argv[1]), Path(sys.argv[2])
    old, fresh = archive / "contest" / "runs", archive / "ablation_sign" / "runs"
    three = masks_of_three(old)
    six = {task: np.concatenate([three[task], extra]) for task, extra in masks_of_nine_tasks(more).items()}
    parts = {
        "seeds 1 to 3": [(old, seed) for seed in (1, 2, 3)],
        "seeds 4 to 6": [(fresh, seed) for seed in (4, 5, 6)],
    }
    parts["all six"] = [run for runs in parts.values() for run in runs]
    cases = [("importance", "heads.parquet", STANDARDISED_LOGS, name) for name in parts]
    cases.append(("ablation", "ablation-held.parquet", STANDARDISED_POINTS, "seeds 4 to 6"))
    for measure, file, unit, name in cases:
        for masks in (three, six):
            worth = []
            for task in TASKS:
                partners = tuple(other for other in TASKS if other != task)
                runs = [
                    [
                        root / f"{'+'.join(sorted((task, other), key=TASKS.index))}-seed{seed}"
                        for other in partners
                    ]
                    for root, seed in parts[name]
                ]
                rows = [[values(run / file, measure, task) for run in of_seed] for of_seed in runs]
                worth.append(TaskWorth(task, partners, np.array(rows)))
            sites = tuple(Site("self", layer) for layer in range(LAYERS))
            claims = {task: mask.mean(0) > 0.5 for task, mask in masks.items()}
            seeds = tuple(range(len(parts[name])))
            of_layer = np.repeat(np.arange(LAYERS), HEADS)
            cells = ContestCells(seeds, sites, HEADS, of_layer, claims, tuple(worth), masks)
            found = estimate_contest(cells, unit)
            print(f"{measure}, {name}, {len(masks['pos'])} masks: {found.word}: {found.reason}", flush=True)


if __name__ == "__main__":
    main()

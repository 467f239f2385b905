"""How many heads masks of two tasks have in common, with the same seed and with different seeds.

python docs/results/contest/same_seed.py RUNS...   # folders of runs that learned a mask for one task each
"""

from __future__ import annotations

import sys
from collections import defaultdict
from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl

kept: dict[str, dict[int, set[tuple[int, int]]]] = defaultdict(dict)
for folder in map(Path, sys.argv[1:]):
    gates = pl.read_parquet(folder / "gates.parquet")
    last = gates.filter((pl.col("step") == gates["step"].max()) & pl.col("open"))
    task, _, seed = folder.name.partition("-dynamic")
    kept[task][int(seed.rpartition("seed")[2])] = {*last.select("layer", "head").iter_rows()}

same, other = [], []
for first, second in combinations(kept, 2):
    pairs = [(i, j, len(kept[first][i] & kept[second][j])) for i in kept[first] for j in kept[second]]
    same.append(np.mean([common for i, j, common in pairs if i == j]))
    other.append(np.mean([common for i, j, common in pairs if i != j]))
    print(f"{first}, {second}: {same[-1]:.2f} with the same seed, {other[-1]:.2f} with others")
more = np.subtract(same, other)
print(
    f"{len(more)} pairs: {np.mean(same):.2f} and {np.mean(other):.2f}; more with the same seed: "
    f"{more.mean():.2f}, standard deviation over pairs {more.std(ddof=1):.2f}"
)

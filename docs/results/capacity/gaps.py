"""Does the gap grow as heads get fewer? From the runs of capacity.yaml.

mkdir archive && tar xf docs/results/capacity/runs.tar.xz -C archive
python docs/results/capacity/gaps.py archive/capacity/runs
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from scipy import stats

HEADS, SEEDS = (72, 36, 18, 9), (1, 2, 3)
RUNS = Path(sys.argv[1])
MAIN = {"pos": "accuracy", "ner": "f1", "dep": "las", "con": "f1", "srl": "f1"}


def score(setup: str, heads: int, seed: int, task: str) -> float:
    """A run's main score of a task on test."""
    run = f"{setup}-seed{seed}" if heads == max(HEADS) else f"{setup}-fixed-k{heads}-seed{seed}"
    return json.loads((RUNS / run / "metrics.json").read_text())["test"][task][MAIN[task]]


def gaps(task: str) -> None:
    """Print scores, gaps and their slope on the number of halvings."""
    alone, jointly = (
        np.array([[score(setup, heads, seed, task) for seed in SEEDS] for heads in HEADS])
        for setup in (task, "all")
    )
    gap, errors = alone - jointly, np.log((100 - jointly) / (100 - alone))
    for number, heads in enumerate(HEADS):
        each = ", ".join(f"{value:.2f}" for value in gap[number])
        print(
            f"{task}, {heads} heads: alone {spread(alone[number])}, jointly {spread(jointly[number])}, "
            f"gap {gap[number].mean():.2f} ({each}), errors times {np.exp(errors[number].mean()):.3f}"
        )
    halvings, freedom = np.repeat(np.arange(len(HEADS)), len(SEEDS)), gap.size - 2
    for name, values in (("points", gap), ("logarithm of the errors' ratio", errors)):
        fit = stats.linregress(halvings, values.ravel())
        one, two = (stats.t.ppf(level, freedom) * fit.stderr for level in (0.95, 0.975))
        print(
            f"{task}, {name} per halving: {fit.slope:+.3f}, 95 % interval {fit.slope - two:+.3f} to "
            f"{fit.slope + two:+.3f}; one-sided p {stats.t.sf(fit.slope / fit.stderr, freedom):.1e}, "
            f"one-sided 95 % ends {fit.slope - one:+.3f} and {fit.slope + one:+.3f}"
        )


def spread(values: np.ndarray) -> str:
    """Mean and standard deviation over seeds."""
    return f"{values.mean():.2f} ± {values.std(ddof=1):.2f}"


if __name__ == "__main__":
    for name in sys.argv[2:] or ["dep"]:
        gaps(name)
    print("jointly, other tasks:")
    for name in ("pos", "ner", "con", "srl"):
        of_heads = (
            f"{heads} heads {spread(np.array([score('all', heads, seed, name) for seed in SEEDS]))}"
            for heads in HEADS
        )
        print(f"{name}: {'; '.join(of_heads)}")

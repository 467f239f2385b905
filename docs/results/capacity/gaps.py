"""Does the gap grow as heads get fewer? From the runs of capacity.yaml.

mkdir archive && tar xf docs/results/capacity/runs.tar.xz -C archive
python docs/results/capacity/gaps.py archive/capacity/runs dep pos srl
python docs/results/capacity/gaps.py            # what the test says of simulated studies
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from scipy import stats

HEADS, SEEDS = (72, 36, 18, 9), (1, 2, 3)
MAIN = {"pos": "accuracy", "ner": "f1", "dep": "las", "con": "f1", "srl": "f1"}
REFUTED = 0.40
"""Points per halving below which the one-sided upper end must be."""
SPREAD = 0.42
"""Standard deviation of a run's LAS in earlier runs."""


def score(runs: Path, setup: str, heads: int, seed: int, task: str) -> float:
    """A run's main score of a task on test."""
    run = f"{setup}-seed{seed}" if heads == max(HEADS) else f"{setup}-fixed-k{heads}-seed{seed}"
    return json.loads((runs / run / "metrics.json").read_text())["test"][task][MAIN[task]]


def gaps(runs: Path, task: str) -> None:
    """Print scores, gaps, their slope on the number of halvings, and the word."""
    alone, jointly = (
        np.array([[score(runs, setup, heads, seed, task) for seed in SEEDS] for heads in HEADS])
        for setup in (task, "all")
    )
    gap, errors = alone - jointly, np.log((100 - jointly) / (100 - alone))
    for number, heads in enumerate(HEADS):
        each = ", ".join(f"{value:.2f}" for value in gap[number])
        print(
            f"{task}, {heads} heads: alone {spread(alone[number])}, jointly {spread(jointly[number])}, "
            f"gap {gap[number].mean():.2f} ({each}), errors times {np.exp(errors[number].mean()):.3f}"
        )
    for name, values in (("points", gap), ("logarithm of the errors' ratio", errors)):
        found, error, freedom = slope(values)
        one, two = (stats.t.ppf(level, freedom) * error for level in (0.95, 0.975))
        print(
            f"{task}, {name} per halving: {found:+.3f}, 95 % interval {found - two:+.3f} to "
            f"{found + two:+.3f}; one-sided p {stats.t.sf(found / error, freedom):.1e}, "
            f"one-sided 95 % ends {found - one:+.3f} and {found + one:+.3f}"
        )
    print(f"{task}: {word(gap)}")


def slope(values: np.ndarray) -> tuple[float, float, int]:
    """The slope of values by heads and seed on the number of halvings, its standard error, and freedom."""
    fit = stats.linregress(np.repeat(np.arange(len(HEADS)), len(SEEDS)), values.ravel())
    return fit.slope, fit.stderr, values.size - 2


def word(gap: np.ndarray) -> str:
    """What the protocol says of gaps by heads and seed."""
    found, error, freedom = slope(gap)
    end = stats.t.ppf(0.95, freedom) * error
    if found - end > 0:
        return "capacity binds"
    return "refuted" if found + end < REFUTED else "cannot tell"


def spread(values: np.ndarray) -> str:
    """Mean and standard deviation over seeds."""
    return f"{values.mean():.2f} ± {values.std(ddof=1):.2f}"


def simulate(studies: int = 4_000) -> None:
    """How often the test says what: where the gap does not grow, and where it grows by 0.40 a halving."""
    random, halvings = np.random.default_rng(0), np.arange(len(HEADS))[:, None]
    for name, growth in (("the same", 0), ("doubled from 72 to 9 heads", 1 / 3)):
        for grows in (0.0, REFUTED):
            noise = SPREAD * np.sqrt(2) * 2 ** (halvings * growth)
            said = [
                word(grows * halvings + noise * random.normal(size=(len(HEADS), len(SEEDS))))
                for _ in range(studies)
            ]
            shares = {kind: round(said.count(kind) / studies, 3) for kind in sorted(set(said))}
            print(f"spread {name}, grows by {grows:.2f}: {shares}", flush=True)


def main() -> None:
    """Print the estimates, or how often the test says what."""
    if len(sys.argv) == 1:
        simulate()
        return
    runs = Path(sys.argv[1])
    for name in sys.argv[2:] or ["dep"]:
        gaps(runs, name)
    print("jointly, other tasks:")
    for name in ("pos", "ner", "con", "srl"):
        of_heads = (
            f"{heads} heads {spread(np.array([score(runs, 'all', heads, seed, name) for seed in SEEDS]))}"
            for heads in HEADS
        )
        print(f"{name}: {'; '.join(of_heads)}")


if __name__ == "__main__":
    main()

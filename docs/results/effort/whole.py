"""Does more weight for DEP close its gap on the whole of EWT-5? ../effort.md says what was fixed before.

python docs/results/effort/whole.py studies/effort_whole/runs
python docs/results/effort/whole.py                 # what the test says of simulated studies
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from effort import HALF, MAIN, difference, interval
from scipy import stats

SETUPS, SEEDS = ("dep", "all", "all-dep4"), (4, 5, 6)
PAIRS = {
    "alone less jointly, weight 1": (0, 1),
    "alone less jointly, weight 4": (0, 2),
    "weight 4 less weight 1": (2, 1),
}


def main() -> None:
    """Print the estimates, or how often the test says what."""
    if len(sys.argv) == 1:
        simulate()
        return
    runs = Path(sys.argv[1])
    seeds = [
        seed for seed in SEEDS if all((runs / f"{of}-seed{seed}/metrics.json").is_file() for of in SETUPS)
    ]
    print(f"seeds with all setups: {seeds}")
    for split in ("test", "dev"):
        for task in MAIN:
            setups = SETUPS if task == "dep" else SETUPS[1:]
            values = np.array([[score(runs, of, seed, split, task) for seed in seeds] for of in setups])
            for setup, of_setup in zip(setups, values.round(2).tolist(), strict=True):
                print(f"{split}, {task}, {setup}: {of_setup}")
            pairs = PAIRS if task == "dep" else {"weight 4 less weight 1": (1, 0)}
            for name, pair in pairs.items() if len(seeds) > 1 else ():
                print(f"  {name}: {interval(values, *pair)}")
            if task == "dep" and len(seeds) == len(SEEDS):
                print(f"  {word(values)}")


def score(runs: Path, setup: str, seed: int, split: str, task: str) -> float:
    """A run's main score of a task."""
    return json.loads((runs / f"{setup}-seed{seed}/metrics.json").read_text())[split][task][MAIN[task]]


def word(values: np.ndarray) -> str:
    """What the protocol says of LAS by setup and seed."""
    (gap, error, freedom), (left, *_), (gain, *_) = (difference(values, *pair) for pair in PAIRS.values())
    end = stats.t.ppf(0.95, freedom) * error
    if gap - end <= 0:
        return "loses little" if gap + end < HALF else "cannot tell whether it loses"
    if gain - end > 0:
        return "effort" if left + end < HALF else "effort in part"
    return "not effort" if gain + end < HALF else "cannot tell"


def simulate(studies: int = 4_000) -> None:
    """How often the test says what: by the spread, DEP's loss, and how much of it weight 4 closes."""
    random = np.random.default_rng(0)
    for spread in (0.3, 0.45):
        for gap, closed in (
            (0.0, 0.0),
            (1.2, 0.0),
            (1.2, 0.5),
            (1.2, 1.0),
            (1.8, 0.0),
            (1.8, 0.5),
            (1.8, 1.0),
        ):
            means = np.array([gap, 0, gap * closed])[:, None]
            said = [word(means + random.normal(scale=spread, size=(3, len(SEEDS)))) for _ in range(studies)]
            shares = {name: round(said.count(name) / studies, 3) for name in sorted(set(said))}
            print(f"spread {spread}, loses {gap}, {closed:.0%} closed: {shares}", flush=True)


if __name__ == "__main__":
    main()

"""The decisions of ../random-weights.md, from the masks of both studies, or how often the rule says what.

python docs/results/random-weights/decide.py archive/contest/runs studies/random-weights/runs
python docs/results/random-weights/decide.py         # simulated studies
"""

from __future__ import annotations

import json
import sys
from itertools import combinations, product
from pathlib import Path

import numpy as np
import polars as pl
from scipy import stats

TASKS = {"pos": "accuracy", "ner": "f1", "dep": "las", "con": "f1", "srl": "f1"}
SEEDS = (11, 12, 13)
MARGIN = 0.1
"""A third of what the index of pretrained masks has above chance."""


def main() -> None:
    """Print the estimates, or how often the rule says what."""
    if len(sys.argv) == 1:
        simulate()
        return
    archive, ours = (Path(folder) for folder in sys.argv[1:])
    folders = {
        "pretrained": {
            (task, seed): archive / f"{task}-dynamic-k14-seed{seed}" for task in TASKS for seed in SEEDS
        },
        "random": {
            (task, seed): ours / f"{task}-dynamic-random-seed{seed}" for task in TASKS for seed in SEEDS
        },
    }
    same = {}
    for weights, runs in folders.items():
        masks = {of: opened(run) for of, run in runs.items()}
        same[weights], others = within(masks), across(masks)
        itself = [index(masks[task, a], masks[task, b]) for task in TASKS for a, b in combinations(SEEDS, 2)]
        layers = [[sum(layer == at for layer, _ in mask) for at in range(6)] for mask in masks.values()]
        print(f"{weights}: heads by layer {np.mean(layers, 0).round(2)}, of all {np.sum(layers, 1)}")
        print(f"two tasks of a seed {same[weights].round(3)}, of different seeds {others.round(3)}")
        print(f"a task with itself {np.mean(itself):.3f}; {of_same_weights(same[weights] - others)}")
        for task, score in TASKS.items():
            metrics = [json.loads((runs[task, seed] / "metrics.json").read_text()) for seed in SEEDS]
            of = [of_run["test"][task][score] for of_run in metrics]
            print(f"{task} {np.mean(of):.2f} ± {np.std(of, ddof=1):.2f}")
    difference = ends(same["random"], same["pretrained"])
    print(f"random less pretrained: {difference}, {word(same['random'], same['pretrained'])}")


def opened(run: Path) -> set[tuple[int, int]]:
    """The heads that a run's mask keeps open."""
    gates = pl.read_parquet(run / "gates.parquet")
    last = gates.filter((pl.col("step") == pl.col("step").max()) & pl.col("open"))
    return set(last.select("layer", "head").iter_rows())


def index(one: set, other: set) -> float:
    """Jaccard's index."""
    return len(one & other) / len(one | other)


def within(masks: dict) -> np.ndarray:
    """By seed, the mean index of two tasks of this seed."""
    return np.array(
        [
            np.mean([index(masks[a, seed], masks[b, seed]) for a, b in combinations(TASKS, 2)])
            for seed in SEEDS
        ]
    )


def across(masks: dict) -> np.ndarray:
    """By seed, the mean index of a task of this seed and another task of another seed."""
    return np.array([
        np.mean([
            index(masks[a, seed], masks[b, other])
            for a, b in product(TASKS, repeat=2) if a != b
            for other in SEEDS if other != seed
        ])
        for seed in SEEDS
    ])  # fmt: skip


def ends(random: np.ndarray, pretrained: np.ndarray) -> tuple[float, float, float]:
    """The difference of both means, and its one-sided ends at 95 % by Welch's t."""
    found = stats.ttest_ind(random, pretrained, equal_var=False)
    low, high = found.confidence_interval(0.9)
    difference = random.mean() - pretrained.mean()
    return tuple(round(float(each), 3) for each in (difference, low, high))


def word(random: np.ndarray, pretrained: np.ndarray) -> str:
    """What the indices by seed say."""
    _, low, high = ends(random, pretrained)
    return "less" if high < 0 else "as much" if low > -MARGIN else "cannot tell"


def of_same_weights(paired: np.ndarray) -> str:
    """Whether tasks have more in common where they begin with the same weights."""
    low, high = stats.t.interval(0.9, len(paired) - 1, paired.mean(), stats.sem(paired))
    more = "more" if low > 0 else "cannot tell"
    return f"with the same weights {paired.mean():.3f} ({low:.3f} to {high:.3f}): {more}"


def simulate(studies: int = 4000) -> None:
    """Print how often the rule says what."""
    random = np.random.default_rng(0)
    for lower, spreads in product((0.0, 0.1, 0.2, 0.27), ((0.02, 0.02), (0.02, 0.06), (0.06, 0.06))):
        values = random.normal(size=(studies, 2, 3))
        said = [word(0.44 - lower + spreads[1] * ours, 0.44 + spreads[0] * theirs) for ours, theirs in values]
        shares = {each: f"{said.count(each) / studies:.2f}" for each in sorted(set(said))}
        print(f"lower by {lower}, spreads {spreads}: {shares}")


if __name__ == "__main__":
    main()

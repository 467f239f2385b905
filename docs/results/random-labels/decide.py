"""What the rule of ../random-labels.md says of simulated studies; whether draw 1 gives its old masks again.

python docs/results/random-labels/decide.py                                # simulated studies
python docs/results/random-labels/decide.py archive/contest/runs studies/random-labels/runs
"""

from __future__ import annotations

import sys
from itertools import combinations, product
from pathlib import Path

import numpy as np
import polars as pl

from mtl.probes.stem_cell.sharing import FEWEST_REPEATS, LEVEL, alike_in_wants, exchange_test

TASKS, DRAWS, SEEDS, LAYERS, HEADS, OPEN = 5, 6, (11, 12, 13), 6, 12, 14
STUDIES = 1000


def main() -> None:
    """Print how often the rule says what, or the likeness of old and new masks of draw 1."""
    if len(sys.argv) == 1:
        simulate()
        return
    old, new = (Path(folder) for folder in sys.argv[1:])
    before = [opened(old / f"control-dynamic-k14-seed{seed}") for seed in SEEDS]
    draws = [
        [opened(new / f"control-dynamic-k14{draw}-seed{seed}") for seed in SEEDS]
        for draw in ("", *(f"-draw{number}" for number in range(2, DRAWS + 1)))
    ]
    after = draws[0]
    print(
        f"old with old: {mean(combinations(before, 2)):.2f}, new with new: {mean(combinations(after, 2)):.2f}"
    )
    print(f"old with new, other seeds: {mean(other_seeds(before, after)):.2f}")
    itself = mean(two for draw in draws for two in combinations(draw, 2))
    pairs = [*combinations(draws, 2)]
    same = mean(masks for pair in pairs for masks in zip(*pair, strict=True))
    other = mean(masks for pair in pairs for masks in other_seeds(*pair))
    print(f"a draw with itself, other seeds: {itself:.2f}")
    print(f"between draws, same seed: {same:.2f}, other seeds: {other:.2f}")


def opened(run: Path) -> set[tuple[int, int]]:
    """The heads that a run's mask keeps open."""
    gates = pl.read_parquet(run / "gates.parquet")
    last = gates.filter(pl.col("step") == pl.col("step").max()).filter(pl.col("gate") > 0.001)
    return set(last.select("layer", "head").iter_rows())


def other_seeds(one: list[set], other: list[set]):
    """The pairs of masks of two lists, one mask a seed, that have unequal seeds."""
    return (
        (first, second)
        for (at, first), (place, second) in product(enumerate(one), enumerate(other))
        if at != place
    )


def mean(pairs) -> float:
    """The mean Jaccard index of pairs of sets."""
    return float(np.mean([len(one & other) / len(one | other) for one, other in pairs]))


def simulate() -> None:
    """The words in worlds with more and less in common between tasks than between a task and a draw."""
    rng = np.random.default_rng(0)
    print("in common | scatter of tasks, draws | self-Jaccard | between tasks, with draws | yes | no")
    for common, (of_tasks, of_draws) in product((0.0, 0.5, 0.7, 1.0), ((0.6, 0.6), (0.6, 1.1))):
        words, figures = [], []
        for _ in range(STUDIES):
            made = world(rng, common, of_tasks, of_draws)
            alike, repeats = alike_in_wants(made)
            difference, p = exchange_test(alike, np.arange(TASKS + DRAWS) < TASKS)
            certain = p <= LEVEL and repeats.min() >= FEWEST_REPEATS
            words.append((certain and difference > 0, certain and difference < 0))
            figures.append(jaccards(made))
        own, drawn, between, across = np.mean(figures, 0)
        yes, no = np.mean(words, 0)
        print(
            f"{common:.1f} | {of_tasks}, {of_draws} | {own:.2f}, {drawn:.2f} | {between:.2f}, {across:.2f} | "
            f"{yes:.3f} | {no:.3f}"
        )


def world(rng: np.random.Generator, common: float, of_tasks: float, of_draws: float) -> np.ndarray:
    """Masks, unit x seed x layer x head: all units share a wish, tasks one more, each has one of its own."""
    shape = (LAYERS, HEADS)
    shared, of_all_tasks = 1.6 * rng.standard_normal(shape), rng.standard_normal(shape)
    masks = np.zeros((TASKS + DRAWS, len(SEEDS), *shape), dtype=bool)
    for unit in range(TASKS + DRAWS):
        is_task = unit < TASKS
        # A draw has a wish of its own where tasks share theirs, so that wishes of all units are as strong.
        second = of_all_tasks if is_task else rng.standard_normal(shape)
        wish = shared + common * second + np.sqrt(1 - common**2 / 2) * rng.standard_normal(shape)
        for seed in range(len(SEEDS)):
            values = wish + (of_tasks if is_task else of_draws) * rng.standard_normal(shape)
            masks[unit, seed] = values >= np.sort(values, None)[-OPEN]
    return masks


def jaccards(made: np.ndarray) -> tuple[float, float, float, float]:
    """Of tasks and of draws over seeds, between tasks, and of tasks with draws, by seed."""
    flat = made.reshape(len(made), len(SEEDS), -1)

    def index(one: np.ndarray, other: np.ndarray) -> float:
        return (one & other).sum() / (one | other).sum()

    of_itself = [
        np.mean([index(unit[a], unit[b]) for a, b in combinations(range(len(SEEDS)), 2)]) for unit in flat
    ]
    between = [
        index(flat[a, s], flat[b, s]) for a, b in combinations(range(TASKS), 2) for s in range(len(SEEDS))
    ]
    across = [
        index(flat[a, s], flat[b, s])
        for a, b in product(range(TASKS), range(TASKS, len(flat)))
        for s in range(len(SEEDS))
    ]
    return np.mean(of_itself[:TASKS]), np.mean(of_itself[TASKS:]), np.mean(between), np.mean(across)


if __name__ == "__main__":
    main()

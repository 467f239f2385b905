"""The second and third decision on nine tasks, from masks.csv (`open` heads of each run).

python docs/results/nine-tasks/masks.py
"""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl

DRAWS, LIKE = 1000, (("upos", "xpos"), ("dep", "deps"))
TASKS = ("upos", "xpos", "feats", "lemmas", "ner", "dep", "deps", "con", "srl")


def main() -> None:
    """Print what the page quotes."""
    table = pl.read_csv(Path(__file__).parent / "masks.csv")
    for regime in ("alone", "jointly"):
        masks = opened(table.filter(pl.col("regime") == regime))
        print(f"{regime}:")
        overlap(masks)
        wanted(masks)


def opened(table: pl.DataFrame) -> np.ndarray:
    """Open heads by task, seed, layer and head."""
    masks = np.zeros((len(TASKS), 3, 6, 12), bool)
    for task, seed, layer, head in table.select("task", "seed", "layer", "head").iter_rows():
        masks[TASKS.index(task), seed - 1, layer, head] = True
    return masks


def jaccard(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Jaccard's index of masks, over their last two axes."""
    return (one & other).sum((-2, -1)) / (one | other).sum((-2, -1))


def shuffled(masks: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Masks with as many open heads in each layer, of heads by chance."""
    return random.permuted(masks, axis=-1)


def between(masks: np.ndarray) -> dict[tuple[str, str], float]:
    """The mean index of the masks of two tasks, over all pairs of their seeds."""
    return {
        (TASKS[a], TASKS[b]): float(jaccard(masks[a][:, None], masks[b][None]).mean())
        for a, b in combinations(range(len(TASKS)), 2)
    }


def overlap(masks: np.ndarray) -> None:
    """Pairs of tasks against chance and against two seeds of one task."""
    found = between(masks)
    mean = float(np.mean([*found.values()]))
    others = [value for pair, value in found.items() if pair not in LIKE]
    itself = float(np.mean([jaccard(of[a], of[b]) for of in masks for a, b in combinations(range(3), 2)]))
    random = np.random.default_rng(0)
    chance = np.array([np.mean([*between(shuffled(masks, random)).values()]) for _ in range(DRAWS)])
    way = (mean - chance.mean()) / (itself - chance.mean())
    print(f"  two tasks {mean:.3f} (without {LIKE}: {np.mean(others):.3f}), one task {itself:.3f}")
    print(f"  chance {chance.mean():.3f}, largest of {DRAWS} draws {chance.max():.3f}; {way:.0%} of the way")
    for pair, value in sorted(found.items(), key=lambda item: -item[1]):
        print(f"    {'-'.join(pair)} {value:.2f}")


def wanted(masks: np.ndarray) -> None:
    """Heads that at least seven tasks claim, which are open in two of three seeds."""
    claims = masks.sum(1) >= 2
    many = claims.sum(0)
    random = np.random.default_rng(0)
    by_chance = [(shuffled(claims, random).sum(0) >= 7).sum() for _ in range(DRAWS)]
    print(f"  claims: {dict(zip(TASKS, claims.sum((1, 2)).tolist(), strict=True))}")
    print(
        f"  {(many >= 7).sum()} heads of at least seven tasks; by chance {np.mean(by_chance):.2f},", end=" "
    )
    print(f"at most {max(by_chance)}; {(many > 0).sum()} heads of any task")
    for layer, head in np.argwhere(many >= 7):
        without = [task for task, of in zip(TASKS, claims, strict=True) if not of[layer, head]]
        print(f"    L{layer}H{head}: {many[layer, head]} tasks, not {', '.join(without) or 'none'}")


if __name__ == "__main__":
    main()

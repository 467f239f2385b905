"""Does more weight for DEP close its gap? Ten epochs, six seeds; ../effort.md says what was fixed before.

python docs/results/effort/effort.py studies/effort/runs    # or docs/results/effort/scores.csv
python docs/results/effort/effort.py                        # what the test says of simulated studies
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import polars as pl
from scipy import stats

SETUPS = ("dep", "all", "all-dep2", "all-dep4")
MAIN = {"pos": "accuracy", "ner": "f1", "dep": "las", "con": "f1", "srl": "f1"}
SEEDS = (4, 5, 6, 7, 8, 9)
HALF = 0.92
"""Half of the 1.84 points that DEP lost in the archive of the contest at ten epochs each."""
SPREAD = 0.45
"""Standard deviation of LAS over seeds at ten epochs there, alone and jointly together."""


def main() -> None:
    """Print the estimates, or how often the test says what."""
    if len(sys.argv) == 1:
        simulate()
        return
    scores = pl.read_csv(sys.argv[1]) if sys.argv[1].endswith(".csv") else collected(Path(sys.argv[1]))
    if not sys.argv[1].endswith(".csv"):
        scores.write_csv(Path(__file__).parent / "scores.csv")
    shown(scores)
    for split in ("test", "dev"):
        values = values_of(scores, "dep", SETUPS, split)
        print(split, described(values))
    for task in ("pos", "ner", "con", "srl"):
        jointly = values_of(scores, task, SETUPS[1:], "test")
        print(f"{task}, weight 4 less weight 1: {interval(jointly, 2, 0)}")


def collected(
    runs: Path, setups: tuple[str, ...] = SETUPS, seeds: tuple[int, ...] = SEEDS, main: dict[str, str] = MAIN
) -> pl.DataFrame:
    """The main scores of all runs."""
    found = []
    for setup in setups:
        for seed in seeds:
            metrics = json.loads((runs / f"{setup}-seed{seed}" / "metrics.json").read_text())
            found += [
                {"setup": setup, "seed": seed, "split": split, "task": task, "score": of_task[main[task]]}
                for split, by_task in metrics.items()
                for task, of_task in by_task.items()
            ]
    return pl.DataFrame(found)


def values_of(scores: pl.DataFrame, task: str, setups: tuple[str, ...], split: str) -> np.ndarray:
    """Scores by setup and seed."""
    of_task = scores.filter(task=task, split=split).sort("seed")
    return np.array([of_task.filter(setup=setup)["score"].to_numpy() for setup in setups])


def shown(scores: pl.DataFrame) -> None:
    """Print means and standard deviations over seeds."""
    with pl.Config(tbl_rows=-1, tbl_hide_dataframe_shape=True, float_precision=2):
        table = scores.group_by("split", "task", "setup").agg(pl.mean("score"), pl.std("score").alias("sd"))
        print(table.sort("split", "task", "setup"))


def difference(values: np.ndarray, one: int, other: int) -> tuple[float, float, int]:
    """A difference of two setups' means, its standard error by the spread pooled over all, and freedom."""
    freedom = values.size - len(values)
    spread = np.sqrt(((values - values.mean(1, keepdims=True)) ** 2).sum() / freedom)
    return float(values[one].mean() - values[other].mean()), spread * np.sqrt(2 / values.shape[1]), freedom


def interval(values: np.ndarray, one: int, other: int) -> str:
    """A difference with its two-sided 95 % interval and one-sided p."""
    found, error, freedom = difference(values, one, other)
    t, p = stats.t.ppf(0.975, freedom) * error, stats.t.sf(found / error, freedom)
    return f"{found:+.2f} ({found - t:+.2f} to {found + t:+.2f}), one-sided p {p:.2g}"


def word(values: np.ndarray) -> str:
    """What the protocol says of LAS by setup and seed."""
    gain, error, freedom = difference(values, 3, 1)
    left, _, _ = difference(values, 0, 3)
    end = stats.t.ppf(0.95, freedom) * error
    if gain - end > 0:
        return "effort" if left + end < HALF else "effort in part"
    return "not effort" if gain + end < HALF else "cannot tell"


def described(values: np.ndarray) -> str:
    """Gaps and gains with two-sided 95 % intervals, and the word."""
    names = {
        "alone less jointly, weight 1": (0, 1),
        "alone less jointly, weight 2": (0, 2),
        "alone less jointly, weight 4": (0, 3),
        "weight 2 less weight 1": (2, 1),
        "weight 4 less weight 1": (3, 1),
    }
    return "\n  ".join(
        [word(values), *(f"{name}: {interval(values, *pair)}" for name, pair in names.items())]
    )


def simulate(studies: int = 4_000) -> None:
    """How often the test says what, where weight 4 closes none, a half or all of a gap of 1.84 points."""
    random = np.random.default_rng(0)
    for spread in (SPREAD, 2 * SPREAD):
        for closed in (0.0, 0.5, 1.0):
            means = np.array([1.84, 0, 0.92 * closed, 1.84 * closed])[:, None]
            words = [word(means + random.normal(scale=spread, size=(4, len(SEEDS)))) for _ in range(studies)]
            shares = {name: round(words.count(name) / len(words), 3) for name in sorted(set(words))}
            print(f"spread {spread:.2f}, {closed:.0%} closed: {shares}", flush=True)


if __name__ == "__main__":
    main()

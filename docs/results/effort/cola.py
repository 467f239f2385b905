"""Does CoLA lose beside DEP, and does weight give it back? Six seeds; ../cola.md says what was fixed before.

python docs/results/effort/cola.py studies/cola/runs    # or docs/results/effort/cola.csv
python docs/results/effort/cola.py                      # what the test says of simulated studies
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import polars as pl
from effort import collected, difference, interval, shown, values_of
from scipy import stats

SETUPS = ("cola", "all", "all-cola4")
MAIN = {"cola": "matthews", "dep": "las"}
SEEDS = (1, 2, 3, 4, 5, 6)
HALF, QUARTER = 7.0, 3.5
"""Half and a quarter of the 14 points that CoLA lost beside four tasks in earlier runs (in domain)."""
SPREAD = 2.7
"""Standard deviation of those six runs' Matthews correlation, pooled over alone and jointly."""


def main() -> None:
    """Print the estimates, or how often the test says what."""
    if len(sys.argv) == 1:
        simulate()
        return
    if sys.argv[1].endswith(".csv"):
        scores = pl.read_csv(sys.argv[1])
    else:
        scores = collected(Path(sys.argv[1]), SETUPS, SEEDS, MAIN)
        scores.write_csv(Path(__file__).with_suffix(".csv"))
    shown(scores)
    for split, domain in (("dev", "in domain"), ("test", "out of domain")):
        print(domain, described(values_of(scores, "cola", SETUPS, split)))
    beside = values_of(scores, "dep", SETUPS[1:], "test")
    print("DEP, weight 4 less weight 1:", interval(beside, 1, 0))


def words(values: np.ndarray) -> tuple[str, str]:
    """What the protocol says of the loss, and of weight, by Matthews correlations of setup and seed."""
    (gap, error, freedom), (gain, *_), (left, *_) = (
        difference(values, *pair) for pair in ((0, 1), (2, 1), (0, 2))
    )
    end = stats.t.ppf(0.95, freedom) * error
    small = gap + end < HALF
    if gap - end > 0:
        loss = "loses, less than half of the record" if small else "loses"
    else:
        loss = "does not lose half of the record" if small else "cannot tell"
    if gain - end > 0:
        return loss, "effort" if left + end < QUARTER else "effort in part"
    return loss, "not effort" if gain + end < QUARTER else "cannot tell"


def described(values: np.ndarray) -> str:
    """Differences with two-sided 95 % intervals, and the words."""
    return "\n  ".join([
        "; ".join(words(values)),
        f"alone less beside DEP: {interval(values, 0, 1)}",
        f"alone less beside DEP with weight 4: {interval(values, 0, 2)}",
        f"weight 4 less weight 1: {interval(values, 2, 1)}",
    ])  # fmt: skip


def simulate(studies: int = 4_000) -> None:
    """How often the test says what: by CoLA's loss, and by how much of it weight 4 closes."""
    random = np.random.default_rng(0)
    for spread in (SPREAD, 1.5 * SPREAD):
        for gap, closed in ((0.0, 0.0), (3.5, 0.0), (7.0, 0.0), (7.0, 0.5), (7.0, 1.0), (14.0, 0.0)):
            means = np.array([gap, 0, gap * closed])[:, None]
            said = [words(means + random.normal(scale=spread, size=(3, len(SEEDS)))) for _ in range(studies)]
            for number, name in enumerate(("loss", "weight")):
                of_it = [pair[number] for pair in said]
                shares = {word: round(of_it.count(word) / studies, 3) for word in sorted(set(of_it))}
                print(f"spread {spread:.2f}, loses {gap}, {closed:.0%} closed: {name} {shares}", flush=True)


if __name__ == "__main__":
    main()

"""The decision of ../pluripotency.md, from the scores of its runs, or how often it says what.

python docs/results/pluripotency/decide.py studies/study/runs    # writes scores.csv
python docs/results/pluripotency/decide.py                       # what the rule says of simulated studies
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import polars as pl
from scipy import stats

SETUPS = ("own", "unclaimed", "other", "exchanged")
SEEDS = range(1, 7)
SCORE = {"dep": "las", "pos": "accuracy", "srl": "f1"}
MARGIN = 1.0
"""A loss in points that is small: a quarter of what 18 random heads cost beside 14 learned ones."""


def main() -> None:
    """Print the estimates, or how often the rule says what."""
    if len(sys.argv) == 1:
        simulate()
        return
    scores = collected(Path(sys.argv[1]))
    scores.write_csv(Path(__file__).parent / "scores.csv")
    secondary = {}
    for task in SCORE:
        values = {setup: of(scores, task, setup) for setup in SETUPS}
        for setup, those in values.items():
            if len(those):
                print(f"{task} {setup}: {those.mean():.2f} ± {those.std(ddof=1):.2f}, n = {len(those)}")
        for setup in SETUPS[1:]:
            if len(values[setup]) == len(values["own"]) == len(SEEDS):
                loss = values["own"] - values[setup]
                low, high = stats.t.interval(0.9, 5, loss.mean(), stats.sem(loss))
                wide = stats.t.interval(0.95, 5, loss.mean(), stats.sem(loss))
                p = stats.ttest_1samp(loss, 0, alternative="greater").pvalue
                print(
                    f"{task}, own less {setup}: {loss.mean():.2f} (95 % {wide[0]:.2f} to {wide[1]:.2f}; "
                    f"90 % {low:.2f} to {high:.2f}), one-sided p {p:.2g}, {word(loss)}"
                )
                if (task, setup) != ("dep", "unclaimed"):
                    secondary[task, setup] = p
    corrected = 0.0
    for rank, (name, p) in enumerate(sorted(secondary.items(), key=lambda of_name: of_name[1])):
        corrected = max(corrected, min(p * (len(secondary) - rank), 1.0))
        print(f"Holm over {len(secondary)}, {' '.join(name)}: {corrected:.2g}")


def collected(runs: Path) -> pl.DataFrame:
    """The test scores of all finished runs."""
    rows = [
        {
            "task": task,
            "setup": setup,
            "seed": seed,
            "score": json.loads(file.read_text())["test"][task][score],
        }
        for task, score in SCORE.items()
        for setup in SETUPS
        for seed in SEEDS
        if (file := runs / f"{task}-fixed-{setup}-seed{seed}" / "metrics.json").is_file()
    ]
    return pl.DataFrame(rows)


def of(scores: pl.DataFrame, task: str, setup: str) -> np.ndarray:
    """The scores of a setup, by seed."""
    rows = scores.filter((pl.col("task") == task) & (pl.col("setup") == setup)).sort("seed")
    return rows["score"].to_numpy()


def word(loss: np.ndarray) -> str:
    """What the losses of six seeds say, by Student's one-sided ends at 95 %."""
    low, high = stats.t.interval(0.9, len(loss) - 1, loss.mean(), stats.sem(loss))
    if high < MARGIN:
        return "worse by less than a point" if low > 0 else "as good"
    return "worse" if low > 0 else "cannot tell"


def simulate(studies: int = 4000) -> None:
    """Print how often the rule says what, for losses and spreads over seeds of the difference."""
    random = np.random.default_rng(0)
    for loss in (0.0, 1.0, 2.0, 4.5):
        for spread in (0.5, 2.2, 3.6):
            said = [word(loss + spread * random.normal(size=6)) for _ in range(studies)]
            shares = {each: f"{said.count(each) / studies:.2f}" for each in dict.fromkeys(sorted(said))}
            print(f"loss {loss}, spread {spread}: {shares}")


if __name__ == "__main__":
    main()

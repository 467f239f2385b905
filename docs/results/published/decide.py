"""The decisions of ../published.md, from the records of its runs, or how often the rule says what.

python docs/results/published/decide.py studies/published/runs              # writes values.csv
python docs/results/published/decide.py docs/results/published/values.csv   # the same from the archive
python docs/results/published/decide.py                                     # simulated studies
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import polars as pl
from scipy import stats

from mtl.probes.tables.heads_table import best_of_labels, label_scores, read_heads_table

TASKS = {"pos": "accuracy", "ner": "f1", "dep": "las", "con": "f1", "srl": "f1"}
SEEDS = (1, 2, 3)
LEAST = 1.0
"""Points; less than this is not what the paper speaks of."""


def main() -> None:
    """Print the estimates and words, or how often the rule says what."""
    if len(sys.argv) == 1:
        simulate()
        return
    given = Path(sys.argv[1])
    if given.is_dir():
        values = collected(given)
        values.write_csv(Path(__file__).parent / "values.csv")
    else:
        values = pl.read_csv(given)
    for what in ("probe", "score"):
        of_what = values.filter(pl.col("what") == what)
        rows = of_what.group_by("task", "run", maintain_order=True).agg(
            pl.col("value").mean().round(2), sd=pl.col("value").std().round(2), n=pl.len()
        )
        for row in rows.iter_rows():
            print(what, *row)
        losses = {task: lost(of_what.filter(task=task)) for task in TASKS}
        for task, loss in losses.items():
            print(f"{what}, {task}: lost {loss.round(2).tolist()}, {said(loss, 0.05 / len(TASKS))}")
        print(f"{what}, mean of tasks: {said(np.mean(list(losses.values()), 0), 0.05)}")


def collected(runs: Path) -> pl.DataFrame:
    """Per task and run, in percent: the probe, and the test score."""
    rows = [("probe", task, "before", 0, of_heads(runs / "pretrained", task)) for task in TASKS]
    for (task, score), seed, run in itertools.product(TASKS.items(), SEEDS, ("alone", "jointly")):
        folder = runs / f"{task if run == 'alone' else 'MTL'}-seed{seed}"
        if (folder / "metrics.json").is_file() and (folder / "heads.parquet").is_file():
            test = json.loads((folder / "metrics.json").read_text())["test"][task]
            rows += [
                ("probe", task, run, seed, of_heads(folder, task)),
                ("score", task, run, seed, test[score]),
            ]
    return pl.DataFrame(rows, ["what", "task", "run", "seed", "value"], orient="row")


def of_heads(folder: Path, task: str) -> float:
    """The best head's accuracy, in percent, as the mean over the ten most frequent labels of the test set."""
    heads, _ = read_heads_table(folder / "heads.parquet")
    best = best_of_labels(label_scores(heads)).filter(task=task)
    return 100 * best.sort("count", "label", descending=[True, False]).head(10)["value"].mean()


def lost(values: pl.DataFrame) -> np.ndarray:
    """Alone less jointly, for each seed that has both."""
    wide = values.filter(pl.col("run") != "before").pivot("run", index="seed", values="value").drop_nulls()
    return (wide.sort("seed")["alone"] - wide.sort("seed")["jointly"]).to_numpy()


def said(loss: np.ndarray, level: float) -> str:
    """The mean loss, its one-sided ends at this level, and the word."""
    if len(loss) < len(SEEDS):
        return f"mean {loss.mean():.2f}, n = {len(loss)}: no word" if len(loss) else "no runs"
    low, high = ends(loss, level)
    return f"{loss.mean():.2f} ({low:.2f} to {high:.2f}), n = {len(loss)}: {word(loss, level)}"


def ends(loss: np.ndarray, level: float) -> tuple[float, float]:
    """Student's one-sided ends."""
    return stats.t.interval(1 - 2 * level, len(loss) - 1, loss.mean(), stats.sem(loss))


def word(loss: np.ndarray, level: float) -> str:
    """What the ends say."""
    low, high = ends(loss, level)
    return "repeats" if low > 0 else "does not" if high < LEAST else "cannot tell"


def simulate(studies: int = 4000) -> None:
    """Print how often the rule says what, by the loss, the spread over seeds and the level."""
    random = np.random.default_rng(0)
    for level, loss, spread in itertools.product((0.05, 0.01), (0, 1, 2, 4, 8), (0.5, 1, 2)):
        found = [word(each, level) for each in loss + spread * random.normal(size=(studies, len(SEEDS)))]
        shares = {each: f"{found.count(each) / studies:.2f}" for each in sorted(set(found))}
        print(f"level {level}, loss {loss}, spread {spread}: {shares}")


if __name__ == "__main__":
    main()

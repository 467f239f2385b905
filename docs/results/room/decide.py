"""The decisions of ../room.md, from the scores of its runs, or how often the rule says what.

python docs/results/room/decide.py archive/capacity/runs studies/room/runs   # writes scores.csv
python docs/results/room/decide.py docs/results/room/scores.csv              # the same from the archive
python docs/results/room/decide.py                                           # simulated studies
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import polars as pl
from scipy import stats

SCORE = {"pos": "accuracy", "ner": "f1", "dep": "las", "con": "f1", "srl": "f1"}
SEEDS = {18: (1, 2, 3), 72: (1, 2, 3, 4, 5, 6)}


def main() -> None:
    """Print the estimates, or how often the rule says what."""
    if len(sys.argv) == 1:
        simulate()
        return
    if len(sys.argv) == 2:
        scores = pl.read_csv(sys.argv[1])
    else:
        scores = collected(Path(sys.argv[1]), Path(sys.argv[2]))
        scores.write_csv(Path(__file__).parent / "scores.csv")
    for heads, seeds in SEEDS.items():
        values = {}
        for tasks, label in itertools.product(("dep", "MTL"), ("e5", "e20", "w4")):
            values[tasks, label] = of = las(scores, tasks, heads, label, seeds)
            if len(of):
                print(
                    f"{heads} heads, {tasks}, {label}: {of.mean():.2f} ± {of.std(ddof=1):.2f}, n = {len(of)}"
                )
        loss = less(values["dep", "e5"], values["MTL", "e5"])
        decided(f"{heads} heads, 20 epochs", loss, less(values["dep", "e20"], values["MTL", "e20"]))
        decided(f"{heads} heads, weight 4", loss, less(values["dep", "e5"], values["MTL", "w4"]))
    for study in ("capacity", "now"):
        of_study = scores.filter(pl.col("study") == study)
        lost = less(las(of_study, "dep", 18, "e5", (1,)), las(of_study, "MTL", 18, "e5", (1,)))
        print(f"check: 18 heads, 5 epochs, seed 1, {study}: loss {lost.round(2).tolist()}")


def collected(archive: Path, runs: Path) -> pl.DataFrame:
    """The test scores, in percent, of all finished runs of both studies."""
    rows = []
    for heads, tasks, label, seed in itertools.product(
        SEEDS, ("dep", "MTL"), ("e5", "e20", "w4"), range(1, 7)
    ):
        folders = {"now": runs / f"{tasks}-{'fixed-' if heads < 72 else ''}{label}-seed{seed}"}
        if label == "e5" and seed < 4:
            of_archive = tasks.replace("MTL", "all") + ("-fixed-k18" if heads < 72 else "")
            folders["capacity"] = archive / f"{of_archive}-seed{seed}"
        for study, folder in folders.items():
            file = folder / "metrics.json"
            test = json.loads(file.read_text())["test"] if file.is_file() else {}
            rows += [(study, heads, tasks, label, seed, task, of[SCORE[task]]) for task, of in test.items()]
    return pl.DataFrame(rows, ["study", "heads", "tasks", "label", "seed", "task", "score"], orient="row")


def las(scores: pl.DataFrame, tasks: str, heads: int, label: str, seeds: tuple[int, ...]) -> np.ndarray:
    """LAS by seed, or nothing where one is not there; the archived one where there are two."""
    of = {"task": "dep", "tasks": tasks, "heads": heads, "label": label}
    rows = scores.filter(**of).filter(pl.col("seed").is_in(seeds))
    rows = rows.sort("seed", "study").unique("seed", keep="first", maintain_order=True)
    return rows["score"].to_numpy() if len(rows) == len(seeds) else np.array([])


def less(alone: np.ndarray, jointly: np.ndarray) -> np.ndarray:
    """The loss by seed, where both are there."""
    return alone - jointly if len(alone) == len(jointly) else np.array([])


def decided(what: str, before: np.ndarray, after: np.ndarray) -> None:
    """Print the losses before and after, and the word on them."""
    if not (len(before) and len(after)):
        return
    half = before / 2 - after
    low, high = interval(half)
    p = stats.ttest_1samp(half, 0).pvalue
    print(
        f"{what}: loss {before.mean():.2f}, then {after.mean():.2f}; half of the first less the second "
        f"{half.mean():.2f} (90 % {low:.2f} to {high:.2f}), two-sided p {p:.4f}: "
        f"{word(half)}"
    )


def word(half: np.ndarray) -> str:
    """What half of the first loss less the later loss says, by Student's one-sided ends at 95 %."""
    low, high = interval(half)
    return "most is closed" if low > 0 else "most is left" if high < 0 else "cannot tell"


def interval(values: np.ndarray) -> tuple[float, float]:
    """Student's interval at 90 %: its ends are one-sided at 95 %."""
    return stats.t.interval(0.9, len(values) - 1, values.mean(), stats.sem(values))


def simulate(studies: int = 4000) -> None:
    """Print how often the rule says what, by the share of the loss that is closed and the spreads."""
    random = np.random.default_rng(0)
    for heads, loss, spread in ((18, 7.1, 1.2), (72, 2.4, 0.7)):
        for closed, noise in itertools.product((0, 0.25, 0.5, 0.75, 1), (spread / 2, spread, 2 * spread)):
            before, later = random.normal(size=(2, studies, len(SEEDS[heads])))
            before = loss + spread * before
            said = [word(each) for each in before / 2 - (1 - closed) * before - noise * later]
            shares = {each: f"{said.count(each) / studies:.2f}" for each in sorted(set(said))}
            print(f"{heads} heads, {closed:.0%} closed, spread {spread} and {noise:.1f}: {shares}")


if __name__ == "__main__":
    main()

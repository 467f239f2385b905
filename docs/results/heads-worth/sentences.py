"""Ablation in the runs of sign.md, on 300 and 3,000 sentences: how far runs agree, how many heads are missed.

python docs/results/heads-worth/sentences.py archive/ablation_sign/runs
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import polars as pl
from scipy.stats import norm, spearmanr

TABLES = {300: "heads.parquet", 3000: "ablation-held.parquet"}
WITH_RESAMPLES = "dep+con"
"""The pair whose p on 3,000 sentences have 1,500 resamples behind them, and not 20."""
SEEN = norm.isf(0.05 / 72 / 2) + norm.isf(0.2)
"""A head that costs so many standard errors has q at most 0.05 in 80 % of samples, if no other head does."""


def tasks_of(run: Path) -> list[str]:
    return run.name.rsplit("-seed", 1)[0].split("+")


def values(run: Path, file: str, measure: str, task: str) -> np.ndarray:
    table = pl.read_parquet(run / file).filter((pl.col("measure") == measure) & (pl.col("task") == task))
    return table.sort("layer", "head")["value"].to_numpy()


def main() -> None:
    runs = sorted(Path(sys.argv[1]).iterdir())
    resamples = [
        round(1 / values(run, TABLES[3000], "ablation_p", tasks_of(run)[0]).min()) - 1 for run in runs
    ]
    print(
        "resamples on 3,000 sentences:", {n: resamples.count(n) for n in sorted(set(resamples))}, "(of runs)"
    )
    print("task sentences  seeds agree  importance predicts  variance of runs  seen from  heads missed")
    for task in ("pos", "ner", "dep", "con", "srl"):
        for sentences, file in TABLES.items():
            agree, predicted, variance, errors, missed = [], [], [], [], []
            with_task = [run for run in runs if task in tasks_of(run)]
            for pair, group in itertools.groupby(with_task, key=lambda run: "+".join(tasks_of(run))):
                seeds = list(group)
                losses = np.array([values(run, file, "ablation", task) for run in seeds])
                variance.append(losses.var(0, ddof=1).mean())
                agree += [spearmanr(*two).statistic for two in itertools.combinations(losses, 2)]
                for run, loss in zip(seeds, losses, strict=True):
                    importance = values(run, TABLES[300], "importance", task)
                    predicted.append(spearmanr(importance, loss).statistic)
                    low, high, q = (
                        values(run, file, f"ablation_{name}", task) for name in ("low", "high", "q")
                    )
                    if sentences == 300 or pair == WITH_RESAMPLES:
                        errors.append(np.median(high - low) / 2 / norm.isf(0.025))
                    if pair == WITH_RESAMPLES:
                        missed.append(int(((q <= 0.05) & (loss > 0)).sum()))
            seen = f"{SEEN * np.median(errors):.2f}" if errors else "-"
            print(
                f"{task:4} {sentences:9} {np.mean(agree):12.2f} {np.mean(predicted):20.2f}"
                f" {np.mean(variance):17.4f} {seen:>10}  {', '.join(map(str, missed)) or '-'}"
            )


if __name__ == "__main__":
    main()

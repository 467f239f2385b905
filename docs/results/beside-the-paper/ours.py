"""Our numbers beside those of He & Choi (2021), from the archives of the other pages.

tar xf docs/results/contest/study.tar.xz -C FOLDER && tar xf docs/results/random-labels/study.tar.xz -C FOLDER
python docs/results/beside-the-paper/ours.py FOLDER/contest/runs FOLDER/random-labels/runs
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import polars as pl

from mtl.probes.sites import head_name
from mtl.probes.statistics.masks import Masks, correlation_table, final_masks
from mtl.probes.statistics.significance import permutations_within
from mtl.probes.tables.heads_table import label_scores, weighted_mean

TASKS = ("pos", "ner", "dep", "con", "srl")
RUNS, DRAWS, HERE = Path(sys.argv[1]), Path(sys.argv[2]), Path(__file__).parent


def masks(tasks: tuple[str, ...], draw: str | None = None) -> Masks:
    """Masks of 14 heads, seeds 11 to 13; of the tasks, and of a draw of random labels."""
    setups = [RUNS / f"{task}-dynamic-k14" for task in tasks]
    setups += [] if draw is None else [DRAWS / f"control-dynamic-k14{draw}"]
    runs = [(seed, setup.with_name(f"{setup.name}-seed{seed}")) for setup in setups for seed in (11, 12, 13)]
    tables = [
        pl.read_parquet(run / "gates.parquet").with_columns(run=pl.lit(run.name), seed=pl.lit(seed))
        for seed, run in runs
    ]
    return final_masks(pl.concat(tables))[0]


labels = pl.read_csv(HERE.parent / "ewt5-minilm/tables/labels.csv")
print("Best head, mean of the ten most frequent labels: before, alone, jointly")
for task in TASKS:
    ten = labels.filter(task=task).sort("count", descending=True).head(10)
    print(task, ten.height, *(f"{100 * ten[regime].mean():.1f}" for regime in ("static", "stl", "joint")))

print("Correlations of masks: of a task over seeds (root of adjusted R²), and of two tasks")
with pl.Config(tbl_rows=-1, float_precision=2):
    print(correlation_table(masks((*TASKS, "control"))).select("first", "second", "paper"))
of_draws = []
for draw in ("", *(f"-draw{number}" for number in range(2, 7))):
    table = correlation_table(masks(TASKS, draw)).filter(second="control")
    of_draws += table.filter(pl.col("first") != "control")["paper"].to_list()
print(
    f"with six draws of random labels {np.min(of_draws):.2f} to {np.max(of_draws):.2f}, "
    f"mean {np.mean(of_draws):.2f} of {len(of_draws)}"
)

found = masks(TASKS)
claimed = found.claimed()
number = claimed.sum(0)
places = np.argwhere(number == len(TASKS))
everybody = ", ".join(head_name(found.sites[site], head) for site, head in places)
print(f"Heads by the number of tasks that claim them: {np.bincount(number.ravel())}; by all: {everybody}")

print("Skill above chance before training and claims, within layers: correlation, one-sided p")
scores = label_scores(pl.read_parquet(RUNS / "static/heads.parquet"))
skill = scores.group_by("task", "layer", "head").agg(weighted_mean("above")).sort("layer", "head")
of_task = {task: skill.filter(task=task)["above"].to_numpy().reshape(number.shape) for task in TASKS}
ranks = [values.ravel().argsort().argsort().reshape(number.shape) for values in of_task.values()]
layers = np.repeat(np.arange(len(number)), number.shape[1])
orders = permutations_within(layers, 9999, np.random.default_rng(1))
for name, skilled, claims in (
    *((task, of_task[task], claimed[place]) for place, task in enumerate(TASKS)),
    ("all", np.mean(ranks, 0), number),
):
    one, other = ((values - values.mean(1, keepdims=True)).ravel() for values in (skilled, claims))
    scale = np.linalg.norm(one) * np.linalg.norm(other)
    found, drawn = one @ other / scale, other[orders] @ one / scale
    print(f"{name} {found:.2f} {(1 + (drawn >= found - 1e-12).sum()) / (1 + len(drawn)):.4f}")

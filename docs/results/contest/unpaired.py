"""What tasks score less jointly than alone, by the spread of all runs: from scores.csv of the contest.

python docs/results/contest/unpaired.py

low, high: intervals of five tasks together; low_of_task, high_of_task: of each by itself.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from mtl.config.instances import whole_of
from mtl.probes.stem_cell.sharing import sharing

SCORES = {"pos": "accuracy", "ner": "f1", "dep": "las", "con": "f1", "srl": "f1"}
setup, task = pl.col("run").str.replace(r"-seed\d+$", ""), pl.col("task").map_elements(whole_of, pl.String)
alone = dict.fromkeys(SCORES, "alone") | {f"{name}-twice": "alone, 10 epochs" for name in SCORES}
scores = (
    pl.read_csv(Path(__file__).parent / "scores.csv")
    .with_columns(
        setup=setup.replace(alone), seed=pl.col("run").str.extract(r"seed(\d+)$").cast(pl.Int64), task=task
    )
    .filter(pl.col("split") == "test", ~pl.col("setup").str.contains("dynamic|by-scale"))
    .filter(pl.col("metric") == pl.col("task").replace_strict(SCORES, default=None))
)
groups = {"10 epochs": {"all-twice": "alone, 10 epochs"}, "5 epochs": {"all": "alone"}}
found = sharing(scores.select("setup", "task", "seed", "score"), groups)
of_one_task = [
    sharing(scores.filter(task=task).select("setup", "task", "seed", "score"), groups).table
    for task in SCORES
]
intervals = pl.concat(of_one_task).select("setup", "task", low_of_task="low", high_of_task="high")
with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_width_chars=200, float_precision=3):
    print(found.table.join(intervals, on=["setup", "task"], how="left", maintain_order="left"))
print(f"{found.word}: {found.reason}")

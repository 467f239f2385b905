"""What tasks score less jointly than alone, and with 14 heads than with all, from scores.csv.

python docs/results/nine-tasks/costs.py [ewt10/runs of joint-masks.tar.xz, whose means are printed, too]

low, high: intervals of nine tasks together; low_of_task, high_of_task: of each by itself.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import polars as pl

from mtl.probes.stem_cell.sharing import sharing

scores = pl.read_csv(Path(__file__).parent / "scores.csv").filter(pl.col("split") == "test")
groups = {
    "jointly": {"jointly": "alone"},
    "14 heads alone": {"alone-k14": "alone"},
}
with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_width_chars=220, float_precision=3):
    print(
        scores.group_by("setup", "task")
        .agg(pl.mean("score"), pl.std("score").alias("sd"))
        .sort("task", "setup")
    )
    columns = ("setup", "task", "seed", "score")
    for name, group in groups.items():
        found = sharing(scores.select(columns), {name: group})
        of_one_task = [
            sharing(scores.filter(task=task).select(columns), {name: group}).table
            for task in scores["task"].unique(maintain_order=True)
        ]
        own = pl.concat(of_one_task).select("setup", "task", low_of_task="low", high_of_task="high")
        print(found.table.join(own, on=["setup", "task"], how="left", maintain_order="left"))
        print(f"{name}: {found.word}: {found.reason}")
if sys.argv[1:]:
    joint = [
        json.loads(path.read_text())["test"] for path in Path(sys.argv[1]).glob("all-dynamic*/metrics.json")
    ]
    print(f"jointly with 14 heads per task, means of {len(joint)} runs:")
    for task, metric in scores.select("task", "metric").unique().sort("task").iter_rows():
        print(f"  {task} {sum(of[task][metric] for of in joint) / len(joint):.2f}")

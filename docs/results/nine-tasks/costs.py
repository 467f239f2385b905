"""What tasks score less jointly than alone, and with 14 heads than with all, from scores.csv.

python docs/results/nine-tasks/costs.py
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from mtl.probes.stem_cell.statistics.sharing import sharing

scores = pl.read_csv(Path(__file__).parent / "scores.csv").filter(pl.col("split") == "test")
groups = {
    "jointly": {"jointly": "alone"},
    "14 heads alone": {"alone-k14": "alone"},
    "14 heads jointly": {"jointly-k14": "jointly"},
}
with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_width_chars=200, float_precision=2):
    print(
        scores.group_by("setup", "task")
        .agg(pl.mean("score"), pl.std("score").alias("sd"))
        .sort("task", "setup")
    )
    for name, group in groups.items():
        found = sharing(scores.select("setup", "task", "seed", "score"), {name: group})
        print(found.table)
        print(f"{name}: {found.word}: {found.reason}")

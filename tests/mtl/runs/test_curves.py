"""Curves are averaged over runs that were trained on the same tasks."""

from __future__ import annotations

import polars as pl
import pytest

from mtl.runs.compare.curves import curves_of
from tests.mtl.studies import Study
from tests.probes.test_kinds_of_attention import curve_rows


@pytest.mark.parametrize(
    ("alone", "joint", "kept"), [(2, 1, "pos"), (1, 2, "pos-dep"), (1, 1, "pos"), (0, 2, "pos-dep")]
)
def test_single_task_and_joint_runs_are_never_averaged(tmp_path, alone, joint, kept):
    study = Study(tmp_path)
    orders, points = curve_rows()
    folders = []
    for tasks, count in ((["pos"], alone), (["pos", "dep"], joint)):
        for seed in range(count):
            folder = study.run(tasks, seed, pruning="none", probe=False, name=f"{'-'.join(tasks)}-{seed}")
            orders.with_columns(task=pl.lit("pos")).write_parquet(folder / "curve_heads.parquet")
            points.with_columns(task=pl.lit("pos")).write_parquet(folder / "curve.parquet")
            folders.append(folder)
    [split] = points["split"].unique()
    table, notes = curves_of(folders, (), split)
    expected = {str(folder) for folder in folders if folder.name.rpartition("-")[0] == kept}
    assert set(table["run"]) == expected
    left_out = [note for note in notes if "left out of curves" in note]
    assert len(left_out) == (alone > 0 and joint > 0)
    assert all(str(folder) in left_out[0] for folder in folders if str(folder) not in expected)

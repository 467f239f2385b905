"""Curves are averaged over runs that were trained on the same tasks."""

from __future__ import annotations

import json

import polars as pl
import pytest

from mtl.probes.tables.table_files import write_parquet
from mtl.runs.compare.comparable import with_setups
from mtl.runs.compare.curves import curves_of, pruning_of
from mtl.runs.folder.run import Run
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


def test_curves_of_other_sentences_or_without_masks_are_left_out_with_a_note(tmp_path):
    study = Study(tmp_path)
    orders, points = curve_rows()
    orders, points = (rows.with_columns(task=pl.lit("pos")) for rows in (orders, points))
    folders = []
    for seed, made in enumerate(["sentences=9, masks=true"] * 2 + ["sentences=4, masks=true", ""], 1):
        folder = study.run(["pos"], seed, pruning="none", probe=False, name=f"pos-{seed}")
        orders.write_parquet(folder / "curve_heads.parquet")
        by = points["by"][0]
        part = json.dumps({"by": by, "draw": 0, "task": "pos", "trained_epochs": 0})
        write_parquet(points, folder / "curve.parquet", {part: f"0123abcd {made}".strip()})
        folders.append(folder)
    [split] = points["split"].unique()
    table, notes = curves_of(folders, (), split)
    with_curve = table.filter(pl.col("by") == by)["run"].unique()
    assert set(with_curve) == {str(folder) for folder in (*folders[:2], folders[3])}
    [note] = [note for note in notes if "left out" in note]
    assert all(text in note for text in (str(folders[2]), "sentences=4", "sentences=9"))
    in_report: list[str] = []
    curves = pruning_of(with_setups([Run.open(folder) for folder in folders]), split, in_report)
    assert curves is not None
    assert set(curves.points.filter(pl.col("by") == by)["run"]) == set(with_curve)
    assert in_report == [note]

"""Curves are averaged over runs that were trained on the same tasks."""

from __future__ import annotations

import json

import polars as pl
import pytest

from mtl.commands.main import main
from mtl.curves.runs import curves_of, points_of_report, times_of
from mtl.probes.curves import curve_table
from mtl.probes.tables.table_files import write_parquet
from mtl.runs.compare.run_set import RunSet
from mtl.runs.report.gather import RunsRead, gather
from tests.mtl.runs.report.test_gather import SCORES, page_of
from tests.mtl.studies import Study
from tests.probes.curves.figure_makers import curve_rows


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
    [lacking, *_] = curves_of(folders[:1], ("pos", "dpe"), split)[1]
    assert lacking.endswith("has nothing on dpe, only on pos")
    table, notes = curves_of(folders, (), split)
    with_curve = table.filter(pl.col("by") == by)["run"].unique()
    assert set(with_curve) == {str(folder) for folder in (*folders[:2], folders[3])}
    [note] = [note for note in notes if "left out" in note]
    assert all(text in note for text in (str(folders[2]), "sentences=4", "sentences=9"))
    read = RunsRead(RunSet.open(folders), split, {}, None)
    points, in_report = points_of_report(read)
    assert points is not None
    assert set(points.filter(pl.col("by") == by)["run"]) == set(with_curve)
    assert in_report == [note]


@pytest.fixture
def study(tmp_path):
    return Study(tmp_path / "study")


def test_times_on_two_devices_are_not_averaged(study):
    runs = [study.run(["pos"], seed, pruning="none", probe=False) for seed in (1, 2, 3)]
    for run, device in zip(runs, ("CPU", "CPU", "H100"), strict=True):
        row = {
            "by": "random", "draw": 0, "task": "pos", "kept": 6, "share": 0.5, "split": "test",
            "figure": "f1", "score": 90.0, "parameters": 9, "device": device, "batch": 1,
            "multiply_adds": 1.0, "operations_of_whole": 0.5, "seconds": 1.0, "seconds_of_whole": 0.9,
        }  # fmt: skip
        pl.DataFrame([row], curve_table.TIMES).write_parquet(run / "curve_time.parquet")
    times, notes = times_of(runs, ())
    assert set(times["run"]) == {str(run) for run in runs[:2]}
    assert notes == (f"{runs[2]}: measured on H100, and most on CPU: left out",)


@pytest.mark.slow
def test_pruning_curves_of_runs_are_shown_with_the_heads_of_each_kind(study):
    study.small()
    first, second, other = (study.run(["pos"], seed, pruning="none") for seed in (1, 2, 3))
    orders, points = curve_rows()
    for folder in (first, second):
        orders.with_columns(task=pl.lit("pos")).write_parquet(folder / "curve_heads.parquet")
        points.with_columns(task=pl.lit("pos")).write_parquet(folder / "curve.parquet")
    (other / "curve.parquet").write_text("no table")
    page = page_of(study.root)
    assert page.unclosed == []
    assert page.says("STL: score on test as heads are closed (pruning curves).")
    assert page.says("STL: heads of each kind of attention that are kept.")
    assert page.says("its pruning curves are left out")
    found = gather(study.root, "test", SCORES).evidence
    assert found["pruning-kinds"].filter(kept=6, attention="decoder")["surviving"].to_list() == [0.25, 0.25]
    assert found["pruning-curves"].height == 8


def test_times_do_not_depend_on_a_split(tmp_path, capsys):
    words = ["figure", "curve-time", "runs", f"--out={tmp_path / 'x.pdf'}", "--split=dev"]
    assert main(words) == 2
    assert "the figure curve-time does not depend on --split: leave it out" in capsys.readouterr().err

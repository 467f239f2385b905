"""What a study shows in W&B: the probes of its runs, and its report, in local logs."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import sys
from pathlib import Path
from unittest.mock import Mock

import polars as pl
import pytest

from mtl.config.schema import TrainConfig, WandbConfig
from mtl.probes.tables import heads_table
from mtl.probes.tables import heads_table as table
from mtl.runs.folder.run import Run
from mtl.runs.folder.wandb_view import log_probes
from mtl.study.config import StudyConfig
from mtl.study.report import StudySource
from tests.mtl.studies import Study
from tests.mtl.study import small
from tests.mtl.wandb_log import Log, logs

OFFLINE = WandbConfig(mode="offline", project="stem", group="s STL", job_type="train", tags=("s", "pos"))


@pytest.fixture(autouse=True)
def staging(tmp_path: Path, monkeypatch) -> None:
    """Artifacts wait below the test's own folder."""
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staged"))


def log_study(folder: Path, config: StudyConfig, tables: dict[str, pl.DataFrame], page: Path) -> None:
    """Log a study's report as the end of the study does."""
    StudySource(folder, config.train, study=config).keep(tables, page)


def probed(root: Path) -> tuple[Run, pl.DataFrame]:
    """A run that was trained and probed."""
    folder = Study(root).run(["pos", "dep"], 1)
    (folder / "history.csv").write_text("epoch,update,loss/pos,dev/mean\n1,40,2.0,50.0\n2,80,1.5,60.0\n")
    heads, _ = table.read_heads_table(folder / "heads.parquet")
    return Run(folder), heads


def shown(log: Log, key: str) -> pl.DataFrame:
    """A table as it was logged."""
    kept = [
        entry
        for artifact in log.artifacts["run_table"]
        for entry in artifact.manifest.contents
        if entry.path == f"{key}.table.json"
    ]
    content = json.loads(Path(kept[0].local_path).read_text())
    return pl.DataFrame(content["data"], schema=content["columns"], orient="row")


def test_what_is_logged_is_of_the_tasks_that_a_run_was_trained_on_beside_chance(tmp_path, monkeypatch):
    """A study probes every run for all of its tasks."""
    run, heads = probed(tmp_path)
    view = Mock()
    monkeypatch.setattr("mtl.runs.folder.wandb_view.view_of", lambda config, run: view)
    log_probes(TrainConfig(name="run", tasks=("pos",), wandb=OFFLINE), run, heads)
    summary = {key: value for call in view.summarise.call_args_list for key, value in call.args[0].items()}
    [mean] = heads_table.weighted_means(heads_table.best_heads(heads.filter(task="pos"))).rows(named=True)
    logged = {key: value for key, value in summary.items() if key.startswith("probes/")}
    assert logged == {"probes/pos/attention": mean["value"], "probes/pos/attention/chance": mean["chance"]}
    [shown] = [call.args[0] for call in view.log.call_args_list]
    assert set(shown["probes/best_heads"]["task"]) == {"pos"}


@pytest.mark.slow
def test_probes_go_to_the_run_s_own_wandb_run(tmp_path):
    run, heads = probed(tmp_path)
    run.update_status({"wandb_id": "run-0123"})
    log_probes(TrainConfig(name="run", wandb=OFFLINE), run, heads)
    (log,) = logs(run.folder)
    assert (log.run.run_id, log.run.run_group, log.run.job_type) == ("run-0123", "s STL", "train")
    assert set(log.run.tags) == {"s", "pos"}
    (row,) = log.rows
    # Below the rows of training, on whose axis they stand at the last update.
    assert (row["_step"], row["trainer/global_step"]) == (81, 80)
    best = shown(log, "probes/best_heads")
    assert best.columns == heads_table.best_heads(heads).columns
    assert best.rows() == heads_table.best_heads(heads).rows()
    means = heads_table.weighted_means(heads_table.best_heads(heads))
    assert shown(log, "probes/weighted_means").rows() == means.rows()
    for mean in means.iter_rows(named=True):
        assert log.summary[f"probes/{mean['task']}/attention"] == pytest.approx(mean["value"])
    # The second log of a run must say all of it: `wandb sync` keeps only its summary.
    assert log.summary["final/test/pos/accuracy"] == run.metrics()["test"]["pos"]["accuracy"]
    assert (log.summary["loss/pos"], log.summary["dev/mean"]) == (1.5, {"last": 60.0, "max": 60.0})
    assert not [key for key in log.summary if key.startswith("test/")]


@pytest.mark.slow
def test_the_study_has_one_wandb_run_that_goes_on(tmp_path):
    folder = tmp_path / "stem"
    (folder / "tables").mkdir(parents=True)
    page = folder / "report.html"
    page.write_text("<!doctype html><p>one page</p>")
    tables = {
        "overlap-STL-dynamic": pl.DataFrame({"first": ["pos"], "second": ["ner"], "jaccard": [0.25]}),
        "competition-tests": pl.DataFrame({"test": ["Spearman"], "value": [None], "p": [float("nan")]}),
    }
    for name in (*tables, "of-an-earlier-report"):
        for form in ("csv", "parquet"):
            (folder / "tables" / f"{name}.{form}").write_text(name)
    config = StudyConfig(train=TrainConfig(wandb=dataclasses.replace(OFFLINE, group=None, tags=())))
    for _ in range(2):
        log_study(folder, config, tables, page)
    first, second = logs(folder)
    assert first.run.run_id == second.run.run_id == json.loads((folder / "wandb.json").read_text())["id"]
    assert (first.run.run_group, first.run.job_type) == ("stem", "report")
    assert set(first.run.tags) == {"stem", "report"}
    assert (first.run.project, first.run.display_name) == ("stem", "stem report")
    assert [row["_step"] for row in first.rows + second.rows] == [0, 1]
    assert shown(first, "tables/overlap-STL-dynamic").rows() == [("pos", "ner", 0.25)]
    assert shown(first, "tables/competition-tests").rows() == [("Spearman", None, None)]
    assert "report/path" in first.rows[0]
    (artifact,) = first.artifacts["report"]
    assert artifact.name == "report-stem"
    entries = {entry.path: entry.digest for entry in artifact.manifest.contents}
    assert set(entries) == {"report.html"} | {
        f"tables/{name}.{form}" for name in tables for form in ("csv", "parquet")
    }
    assert base64.b64decode(entries["report.html"]) == hashlib.md5(page.read_bytes()).digest()


@pytest.mark.parametrize("damage", ["", "{}", '{"id": "a"}', "[1]", '{"id": "a", "times": "b"}'])
def test_a_damaged_record_of_the_study_s_run_begins_a_new_one(tmp_path, monkeypatch, damage):
    monkeypatch.setitem(sys.modules, "wandb", None)
    (tmp_path / "wandb.json").write_text(damage)
    page = tmp_path / "report.html"
    page.write_text("")
    log_study(tmp_path, StudyConfig(train=TrainConfig(wandb=OFFLINE)), {}, page)
    known = json.loads((tmp_path / "wandb.json").read_text())
    assert known["id"].startswith(f"{tmp_path.name[:20]}")
    assert known["times"] == 1


def test_a_study_goes_on_though_wandb_cannot_be_imported(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)
    run, heads = probed(tmp_path)
    page = tmp_path / "report.html"
    page.write_text("")
    log_probes(TrainConfig(name="run", wandb=OFFLINE), run, heads)
    log_study(tmp_path, StudyConfig(train=TrainConfig(wandb=OFFLINE)), {}, page)
    lines = capsys.readouterr().err.splitlines()
    assert [line.startswith("mtl: logging ") and " to W&B failed (" in line for line in lines] == [True, True]


def test_disabled_leaves_no_trace(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)
    run, heads = probed(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    log_probes(TrainConfig(name="run"), run, heads)
    log_study(tmp_path, StudyConfig(), {}, tmp_path / "report.html")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_a_whole_study_in_wandb(few, tiny_encoder, tmp_path):
    grid = [{"setups": ["STL"], "masks": ["none", "dynamic"]}]
    train = {"wandb": {"mode": "offline", "project": "stem"}}
    file = small.write(tmp_path / "s.yaml", few, tiny_encoder, grid=grid, train=train)
    small.carry_out(file, module="mtl")  # with figures, which are logged
    folder = small.folder(file)
    for name in ("pos-seed1", "ner-seed1"):
        trained, after = logs(folder / "runs" / name)
        assert trained.run.run_id == after.run.run_id == Run(folder / "runs" / name).status()["wandb_id"]
        assert trained.run.run_group == after.run.run_group == "s STL"
        assert trained.rows[-1]["_step"] < after.rows[0]["_step"]
        assert not shown(after, "probes/best_heads").is_empty()
    (masked,) = logs(folder / "runs" / "pos-dynamic-seed1")
    assert set(masked.artifacts) == {"gates", "run_table"}
    (report,) = logs(folder)
    assert (report.run.run_group, report.run.job_type) == ("s", "report")
    tables = {path.stem for path in (folder / "tables").glob("*.csv")}
    assert "scores" in tables
    assert tables == {
        entry.path.removeprefix("tables/").removesuffix(".table.json")
        for artifact in report.artifacts["run_table"]
        for entry in artifact.manifest.contents
    }

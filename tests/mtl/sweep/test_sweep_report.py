"""The report of a sweep's folder; reports without a sweep do not change."""

from __future__ import annotations

import io
import re
import shutil
import xml.etree.ElementTree as ElementTree
from urllib.parse import unquote

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from mtl.commands.report import report
from mtl.probes.figures.style import render
from mtl.runs.report.gather import ReportSource, gather, source_of
from mtl.runs.report.write import write_report
from mtl.sweep.folder import Outcome
from mtl.sweep.report import Axis, _heights, _marks, parallel_coordinates, sweep_section, sweep_source
from mtl.sweep.trial_config import trial_name
from mtl.workers.lease import lease
from tests.mtl.studies import SCORES, TASKS, Study


def performed(sweep, pruning="dynamic"):
    """Carries trials out by making up their runs."""
    study = Study(sweep.folder.path)

    def perform(number, values, look):
        value = 80.0 + 5 * values["gates.penalty"] + values["seed"]
        if look(1, value):
            return Outcome(value, {"shared": 3.0})
        gates = {"scope": "shared", "penalty": values["gates.penalty"]}
        study.run(
            ["dep"], values["seed"], pruning=pruning, name=f"trial-{number:04}", gates=gates, probe=False
        )
        return Outcome(value, {"shared": 12.0 - number})

    sweep.work(perform)
    return study


@pytest.mark.slow
def test_best_trial_and_picture_stand_in_the_report(bench):
    sweep = bench()
    performed(sweep)
    report(sweep.folder.path)
    page = (sweep.folder.path / "report.html").read_text()
    section = page.split('id="sweep"')[1].split("</section>")[0]
    text = " ".join(re.sub(r"<[^>]*>", " ", section).split())
    # The largest penalty with the second seed: 80 + 5 + 2.
    assert "6 trials by grid, to maximize dev/mean . Best: trial-0005 , 87.00" in text
    assert "87.00, gates.penalty 1, seed 2, open heads 7." in text
    assert page.count('href="#sweep"') == 1
    [packed] = re.findall(r"data:image/svg\+xml,([^\"]+)", section)
    drawn = ElementTree.fromstring(unquote(packed))
    assert drawn.tag.endswith("svg")
    # Seeds are means in the scores, settings are rows.
    rows = page.split('id="scores"')[1].split("</section>")[0]
    assert set(re.findall(r"penalty ([0-9.]+)", rows)) == {"0.01", "0.1", "1"}


def test_trials_are_sorted_by_score_and_stopped_ones_left_out_of_the_rest(bench):
    stopping = {"type": "hyperband", "min_iter": 1, "eta": 2}
    values = [1.0, 0.5, 0.2, 0.1]
    sweep = bench(
        parameters={"gates.penalty": {"values": values}, "seed": {"value": 1}}, early_terminate=stopping
    )
    performed(sweep)
    of_sweep = sweep_source(sweep.folder.path)
    evidence = gather(sweep.folder.path, "dev", SCORES, choose=of_sweep.choose)
    table = of_sweep.sweep.table()
    assert table["trial"][0] == "trial-0000"
    assert table["state"].to_list() == ["finished", "stopped", "stopped", "stopped"]
    assert "seed" not in table.columns  # the same in all trials
    section = sweep_section(of_sweep.sweep)
    assert section.best["gates.penalty"] == "1"
    assert section.best["open heads"] == 12.0
    assert evidence.runs["run"].to_list() == ["runs/trial-0000"]


def test_of_many_settings_the_best_are_drawn(bench, monkeypatch):
    monkeypatch.setattr("mtl.sweep.report.MOST_SETTINGS", 2)
    count = 5
    penalties = [round(0.01 * (place + 1), 2) for place in range(count)]
    sweep = bench(parameters={"gates.penalty": {"values": penalties}, "seed": {"value": 1}})
    performed(sweep)
    of_sweep = sweep_source(sweep.folder.path)
    evidence = gather(sweep.folder.path, "dev", SCORES, choose=of_sweep.choose)
    assert {name.rsplit(" ", 1)[1] for name in evidence.scores["setup"]} == {
        str(penalty) for penalty in penalties[3:]
    }
    assert any(f"of {count} settings" in note for note in evidence.notes)
    assert len(of_sweep.sweep.trials) == count


def collected(folder) -> str:
    console = Console(record=True, width=200, file=io.StringIO())
    write_report(folder.path, console, at_end=True)
    return console.export_text()


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_tables_of_an_earlier_report_are_archived_and_one_process_writes_at_a_time(bench):
    sweep = bench()
    performed(sweep)
    assert "archived" not in collected(sweep.folder)
    tables = sweep.folder.path / "tables"
    assert (tables / "trials.csv").exists()
    for name in ("labels.csv", "mine.csv"):
        (tables / name).write_text("old")
    with lease(sweep.folder.path / "report.lease"):
        assert collected(sweep.folder) == "another process is already writing the report\n"
    assert (tables / "labels.csv").exists()
    assert "archived 1 file of" in collected(sweep.folder)
    assert not (tables / "labels.csv").exists()
    assert (tables / "mine.csv").exists()
    assert not list(tables.glob(".*"))


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_a_finished_trial_whose_folder_was_deleted_is_named_and_left_out(bench):
    sweep = bench()
    performed(sweep)
    shutil.rmtree(sweep.folder.run("trial-0000"))
    printed = collected(sweep.folder)
    assert "runs/trial-0000 is gone: figures are drawn without it" in printed.replace("\n", "")
    assert "trial-0000" in pl.read_csv(sweep.folder.path / "tables" / "trials.csv")["trial"].to_list()
    for number in range(1, 6):
        shutil.rmtree(sweep.folder.run(trial_name(number)))
    assert "archived" in collected(sweep.folder)


@pytest.mark.usefixtures("undrawn")
def test_a_folder_without_a_sweep_says_nothing_of_one(tmp_path):
    study = Study(tmp_path)
    study.run(["dep"], 1)
    report(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "#sweep" not in page
    assert 'id="sweep"' not in page
    assert type(source_of(tmp_path)) is ReportSource
    assert set(TASKS) == set(SCORES)


def test_nothing_finished_yet(bench):
    sweep = bench()
    assert sweep_source(sweep.folder.path).sweep is None

    def fails(number, values, look):
        raise ValueError("no")

    sweep.work(fails)
    evidence = sweep_source(sweep.folder.path).sweep
    assert evidence.best is None
    assert evidence.picture() is None
    assert sweep_section(evidence).picture is None
    assert evidence.table()["dev/mean"].to_list() == [None] * 6


def test_heights_are_shares_of_the_axis():
    rank = pl.Series([0, 1, 2]).to_numpy()
    everything = [0, 1, 2]
    assert _heights(Axis("a", "linear", (1.0, 2.0, 5.0)), everything, rank).tolist() == [0, 0.25, 1]
    assert _heights(Axis("a", "log", (1e-4, 1e-3, 1e-2)), everything, rank) == pytest.approx([0, 0.5, 1])
    categories = _heights(Axis("a", "categories", ("x", "y", "x"), ("x", "y")), everything, rank)
    assert categories == pytest.approx([0, 1, 0], abs=0.051)
    assert categories[0] != categories[2]
    assert _heights(Axis("a", "linear", (3.0, 3.0, 3.0)), everything, rank).tolist() == [0.5, 0.5, 0.5]
    assert (
        str(_heights(Axis("a", "linear", (1.0, None, 2.0)), everything, rank).tolist()) == "[0.0, nan, 1.0]"
    )


def test_an_axis_with_a_value_that_has_no_logarithm_is_linear():
    """As `q_log_uniform` draws it, which rounds small values to 0."""
    axis = Axis("a", "log", (0.0, 1.0, None, 4.0))
    assert str(_heights(axis, [0, 1, 2, 3], np.arange(4)).tolist()) == "[0.0, 0.25, nan, 1.0]"
    assert [text for _, text in _marks(axis, [0, 1, 3])[:2]] == ["0", "4"]
    figure = parallel_coordinates([axis], (1.0, 2.0, 3.0, 4.0), "dev/mean", 3)
    assert render(figure, "svg")
    # One without any known value is drawn, too.
    assert render(parallel_coordinates([Axis("a", "log", (None,))], (1.0,), "dev/mean", 0), "svg")


def test_marks_are_both_ends_and_round_numbers_between():
    assert _marks(Axis("a", "log", (1e-4, 2e-2)), [0, 1]) == [
        (0.0, "0.0001"), (1.0, "0.02"), (pytest.approx(0.4346, abs=1e-3), "0.001"),
        (pytest.approx(0.8692, abs=1e-3), "0.01"),
    ]  # fmt: skip
    assert _marks(Axis("a", "categories", ("x",), ("x", "y")), [0]) == [(0.0, "x"), (1.0, "y")]


def test_the_best_line_is_drawn_bold_and_the_worse_below():
    scores = (3.0, 1.0, None, 2.0)
    figure = parallel_coordinates([Axis("a", "linear", (1.0, 2.0, 3.0, 4.0))], scores, "dev/mean", 0)
    lines = [
        line for line in figure.axes[0].lines if len(line.get_xdata()) == 2 and line.get_linewidth() >= 0.9
    ]
    trials = [line for line in lines if line.get_linestyle() == "-"]
    assert [round(float(line.get_ydata()[1]), 2) for line in trials] == [0.0, 0.5, 1.0]
    assert [line.get_linewidth() for line in trials] == [0.9, 0.9, 2.2]
    with pytest.raises(ValueError, match="nothing to draw"):
        parallel_coordinates([], (None,), "dev/mean", None)

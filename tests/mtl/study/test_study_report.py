"""The report of a study, written again and again: the claiming setup, and files of earlier reports."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console

import mtl.study.report as report_module
from mtl.commands.report import report
from mtl.errors import InputError
from mtl.runs.report.write import write_report
from mtl.study.config import ClaimsConfig, GridBlock
from tests.mtl.study.made_up import DYNAMIC, PER_TASK, SINGLE, STATIC, carry_out, config

pytestmark = pytest.mark.usefixtures("undrawn")

HALF = GridBlock(("STL",), ("dynamic",), {"gates.target_open": 6}, "half")


@pytest.fixture
def no_figures(monkeypatch):
    """Drawing takes most of the time."""
    monkeypatch.setattr("mtl.study.report._figures", lambda study, finished: iter(()))


@pytest.fixture
def grey_figures(monkeypatch):
    """Only one kind is drawn."""
    figures = report_module._figures

    def grey(study, finished):
        return (figure for figure in figures(study, finished) if figure[1] == "grey")

    monkeypatch.setattr(report_module, "_figures", grey)


def collected(folder) -> str:
    """What is printed."""
    printed = io.StringIO()
    write_report(folder.path, Console(file=printed, width=500), at_end=True)
    return printed.getvalue()


def decides(page: Path) -> str:
    """The setup below the map of claims."""
    return re.search(r"in more than half of the seeds \((.*?): [a-z]+ \d", page.read_text())[1]


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_block_that_is_added_does_not_change_whose_masks_decide(tmp_path, no_figures):
    """Static masks are of more seeds here, and a second dynamic block changes what setups are called."""
    study = config(SINGLE, DYNAMIC)
    folder = carry_out(tmp_path / "s", study)
    collected(folder)
    assert decides(folder.path / "report.html") == "STL, dynamic"
    for more in ((STATIC,), (STATIC, HALF), (HALF, PER_TASK)):
        study = config(SINGLE, DYNAMIC, *more)
        carry_out(folder.path, study)
        collected(folder)
        assert decides(folder.path / "report.html").startswith("STL, dynamic")
    # And the file's order decides, not what there is most of.
    study = config(SINGLE, PER_TASK, DYNAMIC)
    carry_out(folder.path, study)
    collected(folder)
    assert decides(folder.path / "report.html").startswith("MTL-3, dynamic")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ((SINGLE, STATIC, DYNAMIC), "STL, static"),
        ((SINGLE, HALF, DYNAMIC), "STL, dynamic, target 6"),
        # One mask for all tasks gives no claims, nor do masks of one task.
        ((SINGLE, GridBlock(("MTL", "dep"), ("dynamic",)), STATIC), "STL, static"),
        ((GridBlock(("STL", "MTL"), ("none", "dynamic")), STATIC), "STL, dynamic"),
        ((SINGLE, GridBlock(("pos", "dep"), ("static",))), "STL, static"),
    ],
)
def test_the_first_block_with_masks_that_give_claims_decides(tmp_path, no_figures, grid, message):
    study = config(*grid)
    folder = carry_out(tmp_path / "s", study)
    collected(folder)
    assert decides(folder.path / "report.html") == message


@pytest.mark.slow
def test_mtl_report_on_a_study_goes_by_its_file(tmp_path, no_figures):
    study = config(SINGLE, STATIC, DYNAMIC, split="dev")
    folder = carry_out(tmp_path / "s", study)
    collected(folder)
    first = (folder.path / "report.html").read_bytes()
    report(folder.path)
    assert (folder.path / "report.html").read_bytes() == first
    assert decides(folder.path / "report.html") == "STL, static"
    report(folder.path, claims="STL, dynamic")
    assert decides(folder.path / "report.html") == "STL, dynamic"


@pytest.mark.parametrize(
    "text", ["grid: [", "- a", "grid: [{setups: [singel], masks: [dynamic]}]\ntrain: {tasks: [pos]}", "x: 1"]
)
def test_a_damaged_study_file_is_said(tmp_path, text):
    folder = carry_out(tmp_path / "s", config(SINGLE))
    folder.study_file.write_text(text)
    with pytest.raises(InputError, match=r"study\.yaml|singel"):
        report(folder.path)


@pytest.mark.slow
def test_tables_and_figures_that_a_report_does_not_have_any_more_are_archived(tmp_path, grey_figures):
    study = config(SINGLE, DYNAMIC, STATIC)
    folder = carry_out(tmp_path / "s", study)
    collected(folder)
    tables, figures = folder.path / "tables", folder.path / "figures"
    for own in (tables / "mine.csv", figures / "rgb.svg", figures / "poster.pdf"):
        own.write_text("of a person")
    before = {name: (folder.path / name).read_bytes() for name in names(folder.path) if "/" in name}
    assert "archived" not in collected(folder)  # the same again

    study = config(SINGLE, DYNAMIC)
    carry_out(folder.path, study)
    printed = collected(folder)
    gone = {name for name in before if name.startswith(("tables/", "figures/")) and "static" in name}
    assert {"tables/overlap-STL-static.tex", "figures/grey-STL-static.pdf"} <= gone
    (place,) = (folder.path / ".replaced").glob("report-*")
    assert names(place) == gone
    assert all((place / name).read_bytes() == before[name] for name in gone)
    assert f"archived {len(gone)} files of an earlier report" in printed
    assert not [name for name in names(tables) | names(figures) if "static" in name]
    assert (tables / "mine.csv").exists()
    assert (figures / "poster.pdf").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [lambda path: path.write_bytes(b"no"), lambda path: pl.DataFrame({"a": [1]}).write_parquet(path)],
)
@pytest.mark.slow
def test_a_figure_that_cannot_be_drawn_any_more_is_archived_too(tmp_path, grey_figures, damage):
    study = config(SINGLE, DYNAMIC)
    folder = carry_out(tmp_path / "s", study)
    collected(folder)
    for run in folder.runs.glob("dep-dynamic-*"):
        damage(run / "gates.parquet")
    printed = collected(folder)
    assert "no figure grey-STL-dynamic: " in printed
    assert not (folder.path / "figures" / "grey-STL-dynamic.pdf").exists()
    assert len(list((folder.path / ".replaced").glob("report-*/figures/grey-STL-dynamic.pdf"))) == 1


@pytest.mark.slow
def test_without_a_finished_run_no_old_report_stays(tmp_path, no_figures):
    study = config(SINGLE, DYNAMIC)
    folder = carry_out(tmp_path / "s", study)
    collected(folder)
    for job in folder.jobs():
        folder.write_progress(job.name, replace(folder.last_progress(job.name), state="waiting"))
    assert "nothing is finished: no report" in collected(folder)
    assert not (folder.path / "report.html").exists()
    assert not names(folder.path / "tables")
    assert len(list((folder.path / ".replaced").glob("report-*/report.html"))) == 1


@pytest.mark.slow
def test_claims_are_of_the_seeds_that_the_study_names(tmp_path, no_figures):
    study = config(SINGLE, replace(DYNAMIC, seeds=(1, 2, 11)), claims=ClaimsConfig((1, 11)))
    folder = carry_out(tmp_path / "s", study)
    printed = collected(folder)
    assert "claims of STL, dynamic are those of seeds 1, 11: masks of 1 other seed are left out" in printed
    carry_out(folder.path, replace(study, claims=ClaimsConfig()))
    assert "masks of 1 other seed" not in collected(folder)

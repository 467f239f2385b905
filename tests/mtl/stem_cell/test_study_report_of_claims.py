"""Whose claims the verdict in a study's report goes by."""

from __future__ import annotations

import json
import re

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from mtl.commands.report import report
from mtl.features import features
from tests.kit.absent import needs

if "study" in features():
    from tests.mtl.study.made_up import DYNAMIC, SINGLE, STATIC, carry_out, config
    from tests.mtl.study.test_study_report import collected

of_studies = needs("study")

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture
def no_figures(monkeypatch):
    """Drawing takes most of the time."""
    monkeypatch.setattr("mtl.study.report._figures", lambda study, finished: iter(()))


@pytest.mark.slow
@of_studies
def test_no_other_masks_take_the_place_of_those_that_decide(tmp_path, no_figures):
    study = config(SINGLE, DYNAMIC, STATIC)
    folder = carry_out(tmp_path / "s", study, but="STL, dynamic")
    printed = collected(folder)
    assert "lose more of their skill" not in printed
    page = (folder.path / "report.html").read_text()
    assert "No verdict: claims are to be those of STL, dynamic" in page
    record = json.loads((folder.path / "answers.json").read_text())
    verdict = "no verdict on competition: claims are to be those of STL, dynamic"
    assert any(note.startswith(verdict) for note in record["notes"])
    told = record["answers"]
    assert all(each["question"] in " ".join(printed.split()) for each in told)
    assert "<td>STL, static</td>" in page.split("By whose claims")[1]


@of_studies
@pytest.mark.slow
def test_a_block_that_is_added_does_not_change_the_verdict(tmp_path, no_figures, capsys):
    study = config(SINGLE, DYNAMIC)
    folder = carry_out(tmp_path / "s", study)
    assert "; kept heads are those of STL, dynamic\n" in collected(folder)
    tests = folder.path / "tables" / "competition-tests.csv"
    first = pl.read_csv(tests)
    study = config(SINGLE, DYNAMIC, STATIC)
    carry_out(folder.path, study)
    collected(folder)
    assert_frame_equal(pl.read_csv(tests), first)
    page = (folder.path / "report.html").read_text()
    match = re.search(r"The claims are those of <b>STL, dynamic</b>: (.*?)\.</p>", page)
    assert "fixed beforehand as those of the first block with masks in the study" in match[1]
    report(folder.path, claims="STL, static")
    page = (folder.path / "report.html").read_text()
    assert "<b>STL, static</b>: chosen with --claims" in page
    assert "file fixes those of STL, dynamic" in page
    assert "; kept heads are those of STL, static\n" in capsys.readouterr().out

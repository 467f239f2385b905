"""All files of a study's report agree, whatever command wrote them; its file says split and order."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import polars as pl
import pytest

from mtl.commands.report import report
from tests.mtl.runs.report.agreement import agree, agree_after_every_command, all_have_units, on_dev
from tests.mtl.runs.report.test_one_number import cells
from tests.mtl.study.made_up import DYNAMIC, SINGLE, STATIC, carry_out, config

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A study's folder."""
    monkeypatch.setattr("mtl.study.report.CHANNELS", 99)  # fewer figures
    folder = carry_out(tmp_path / "s", config(SINGLE, STATIC, DYNAMIC)).path
    on_dev(folder)
    return folder


@pytest.mark.slow
def test_page_answers_tables_and_figures_agree_after_every_command(made, drawn, tmp_path):
    agree_after_every_command(made, "test", True, drawn, tmp_path)


@pytest.mark.slow
def test_a_report_without_options_is_of_test(made, drawn):
    report(made)
    agree(made, "test", None, drawn)


@pytest.mark.slow
def test_every_place_in_every_table_has_a_unit_and_its_printed_form_follows(made):
    all_have_units(made)


@pytest.mark.slow
def test_a_split_of_the_study_holds_where_none_is_chosen(tmp_path, drawn):
    folder = carry_out(tmp_path / "s", config(SINGLE, DYNAMIC, split="dev")).path
    on_dev(folder)
    report(folder)
    agree(folder, "dev", None, drawn)


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [("srl", "pos", "dep"), ("dep", "srl", "pos")])
def test_tasks_have_the_order_of_the_studys_file_everywhere(tmp_path, drawn, capsys, tasks):
    study = config(SINGLE, DYNAMIC)
    study = replace(study, train=replace(study.train, tasks=tasks))
    folder = carry_out(tmp_path / "s", study).path
    report(folder)
    html, tables = (folder / "report.html").read_text(), folder / "tables"
    assert (tables / "scores-by-setup.md").read_text().splitlines()[0].split(" | ")[1:4] == list(tasks)
    assert [cell.split()[0] for cell in cells(html, "scores")[0][1:4]] == list(tasks)
    assert [row[0] for row in cells(html, "cost") if row[0] in tasks] == list(tasks)
    for path in tables.glob("*.csv"):
        table = pl.read_csv(path)
        if "task" in table.columns and path.stem not in ("runs", "choices"):
            groups = [name for name in ("setup", "comparison") if name in table.columns]
            for part in table.partition_by(groups) if groups else [table]:
                listed = [task for task in part["task"].unique(maintain_order=True) if task in tasks]
                assert listed == [task for task in tasks if task in listed], path
    [rising] = re.findall(r"undertrained.*?: STL \((.*?)\)", capsys.readouterr().out)
    assert re.findall(r"[a-z]+", rising) == list(tasks)


def lacking(folder):
    """The notes of a study's report on scores that it lacks."""
    notes = json.loads((folder.path / "answers.json").read_text())["notes"]
    return [note for note in notes if "no scores of" in note]


@pytest.mark.slow
def test_seeds_that_a_block_does_not_ask_for_are_not_missing(tmp_path, drawn):
    study = config(SINGLE, replace(DYNAMIC, seeds=(1,)))
    folder = carry_out(tmp_path / "s", study)
    report(folder.path)
    assert not lacking(folder)
    # Of a seed that it does ask for, one note names all tasks.
    carry_out(folder.path, replace(study, grid=(SINGLE, replace(DYNAMIC, seeds=(1, 2)))))
    for run in folder.runs.glob("*-dynamic-seed2"):
        shutil.rmtree(run)
    report(folder.path)
    assert lacking(folder) == ["no scores of pos, dep, srl in STL, dynamic with seed 2"]

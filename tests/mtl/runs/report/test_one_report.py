"""All files of a report have one split, one set of claims and one appearance, whatever command wrote them."""

from __future__ import annotations

import polars as pl
import pytest

from mtl.commands.report import report
from mtl.errors import InputError
from mtl.probes.tables.table_files import FORMATS, ColumnUnit, latex, markdown_table, write_table_file
from mtl.workers.lease import lease
from tests.mtl.runs.report.agreement import agree, agree_after_every_command, all_have_units, on_dev
from tests.mtl.runs.report.test_one_number import cells
from tests.mtl.studies import Study

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture
def made(tmp_path):
    """A folder with runs."""
    study = Study(tmp_path / "s")
    for seed in (1, 2, 3):
        for task in ("pos", "dep"):
            for pruning in ("none", "dynamic", "static"):
                study.run([task], seed, pruning=pruning)
        study.run(["pos", "dep"], seed, pruning="none")
    on_dev(study.root)
    return study.root


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
def test_the_order_of_tasks_is_that_of_page_tables_and_figures(tmp_path, drawn):
    study = Study(tmp_path)
    for task in ("pos", "dep", "srl"):
        study.run([task], 1)
    for order in (("dep", "srl", "pos"), ("srl", "pos", "dep")):
        report(tmp_path, order=order)
        text = (tmp_path / "tables" / "scores-by-setup.md").read_text()
        assert text.splitlines()[0].split(" | ")[1:4] == list(order)
        shown = cells((tmp_path / "report.html").read_text(), "scores")[0][1:4]
        assert [cell.split()[0] for cell in shown] == list(order)
        titles = [axes.get_title() for axes in drawn["heads-kept"].figure.axes]
        assert [title for title in titles if title] == list(order)


def test_files_of_a_person_are_kept_and_two_processes_do_not_mix(tmp_path, drawn):
    study = Study(tmp_path)
    study.run(["pos"], 1, pruning="none")
    own = tmp_path / "tables" / "scores.csv"
    own.parent.mkdir()
    own.write_text("mine")
    report(tmp_path)
    assert own.read_text() != "mine"
    assert [path.read_text() for path in tmp_path.glob(".replaced/*/tables/scores.csv")] == ["mine"]
    with lease(tmp_path / "report.lease"):
        with pytest.raises(
            InputError, match=r"another process is writing the report .*: try again, or give --out"
        ):
            report(tmp_path)
        report(tmp_path, out=tmp_path / "another.html")
    report(tmp_path)
    assert (tmp_path / "another.html").read_text()


def test_a_paper_gets_estimate_interval_and_number_and_the_other_files_get_all(tmp_path):
    table = pl.DataFrame(
        {
            "task": ["pos", "dep"],
            "runs": [3, 1],
            "loss": [0.02, -0.5],
            "low": [-0.01, None],
            "high": [0.05, None],
        }
    )
    units = ColumnUnit.CHANGE.of("loss", "low", "high")
    for kind in FORMATS:
        paper = ("task", "runs", "loss", "low high", "absent")
        write_table_file(table, tmp_path / f"t.{kind}", kind, units=units, paper=paper)
    assert (tmp_path / "t.tex").read_text().splitlines()[2:6] == [
        r"task & runs & loss, points & interval, points \\", r"\midrule",
        r"pos & 3 & 2.00 & $-$1.00 to 5.00 \\", r"dep & 1 & $-$50.00 & -- \\",
    ]  # fmt: skip
    assert pl.read_parquet(tmp_path / "t.parquet").columns[:5] == table.columns
    assert pl.read_csv(tmp_path / "t.csv").columns[:5] == table.columns


def test_a_name_with_an_underscore_is_never_changed(tmp_path):
    table = pl.DataFrame({"setup": ["STL"], "ner_fine": ["90.00"], "p_holm": [0.5]})
    units = ColumnUnit.NAMED.of("ner_fine")
    assert "ner_fine" in markdown_table(table, units=units)
    assert r"ner\_fine & p holm" in latex(table, units=units)
    write_table_file(table, tmp_path / "t.tex", "tex", units=units)
    assert r"ner\_fine & p holm" in (tmp_path / "t.tex").read_text()

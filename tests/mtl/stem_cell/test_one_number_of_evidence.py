"""Two places that show one quantity of the laboratory show one number."""

from __future__ import annotations

import polars as pl
import pytest

from mtl.probes.report.page_part import signed
from mtl.probes.report.report import report_page
from mtl.probes.stem_cell.figures import wanted_figure
from mtl.probes.tables.table_files import in_print
from mtl.runs.figures.table import page_parts
from tests.mtl.runs.report.test_one_number import cells, forced_study, words

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The evidence and the page of a study whose masks were forced in part."""
    evidence = forced_study(tmp_path_factory.mktemp("one") / "study")
    return evidence, report_page(evidence, parts=page_parts())


def printed(page, name):
    """The table as LaTeX has it."""
    return in_print(page.tables[name], page.about[name].units)


def test_claims_are_counted_alike_everywhere(made):
    _, page = made
    alone = page.tables["claims"].filter(setup="STL, dynamic")
    in_words = ", ".join(
        f"{task} {claimed}" + (f" (training chose {claimed - opened})" if opened else "")
        for task, claimed, opened in alone.select("task", "claimed", "opened_by_force").iter_rows()
    )
    # On the first screen, below the map of claims, and where claims meet losses.
    assert words(page.html).count(in_words) >= 3


def test_the_first_screen_is_its_table_and_its_axis_says_what_is_compared(made):
    _, page = made
    table = page.tables["wanted"]
    means = table.group_by("kind").agg(pl.col("jaccard", "learned").mean())
    for kind, name in (("between tasks", "Jaccard between tasks"), ("by chance", "by chance, layers kept")):
        _, every, learned = means.row(by_predicate=pl.col("kind") == kind)
        assert f"{name} {every:.2f} (learned heads alone {learned:.2f})" in words(page.html)
    # Claims are votes of seeds; what is drawn are masks of single seeds.
    assert "claim" not in wanted_figure(table).axes[0].get_ylabel()


def test_losses_have_the_pages_units_in_latex(made):
    _, page = made
    claims = printed(page, "competition-by-claims")
    for row in claims.iter_rows(named=True):
        found = [cells for cells in rows_of(page.html) if cells and cells[0] == row["claims"]]
        [shown] = [cells for cells in found if len(cells) == 10]  # with learned claims, as masks were forced
        assert shown[-2] == f"{signed(row['difference, points'], 2)} points"
    tests = printed(page, "competition-tests")
    points = tests.filter(unit="points").row(0, named=True)
    assert any(f"{signed(points['value'], 2)} points" in cells for cells in rows_of(page.html))


def rows_of(html):
    return cells(html, "competition")

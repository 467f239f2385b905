"""All files of a sweep's report agree, whatever command wrote them."""

from __future__ import annotations

import pytest

from mtl.commands.report import report
from tests.mtl.runs.report.agreement import agree, agree_after_every_command, all_have_units, on_dev
from tests.mtl.sweep.test_sweep_report import performed

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture
def made(bench):
    """A sweep's folder."""
    sweep = bench()
    performed(sweep)
    on_dev(sweep.folder.path)
    return sweep.folder.path


@pytest.mark.slow
def test_page_answers_tables_and_figures_agree_after_every_command(made, drawn, tmp_path):
    agree_after_every_command(made, "dev", False, drawn, tmp_path)


def test_a_report_without_options_is_of_dev(made, drawn):
    report(made)
    agree(made, "dev", None, drawn)


def test_every_place_in_every_table_has_a_unit_and_its_printed_form_follows(made):
    all_have_units(made)

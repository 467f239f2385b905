"""Every function that the laboratory's table names is there, and no figure has a name of the core's."""

from __future__ import annotations

from pkgutil import resolve_name

import pytest

from mtl.runs.figures.table import FIGURES, evidence
from mtl.stem_cell.feature import EVIDENCE


def test_reports_have_the_laboratorys_evidence_in_its_order():
    assert [name for name in evidence() if name in EVIDENCE] == list(EVIDENCE)


@pytest.mark.parametrize("name", EVIDENCE)
def test_functions_are_there(name):
    piece = EVIDENCE[name]
    for function in filter(None, (piece.table, piece.of_report, piece.answer, piece.shown)):
        assert callable(resolve_name(function))
    for figure, row in piece.figures.items():
        assert FIGURES[figure] is row
        assert callable(resolve_name(row.draw))

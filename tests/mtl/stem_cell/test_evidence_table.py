"""Every function that the laboratory's table names is there, and no figure has a name of the core's."""

from __future__ import annotations

from pkgutil import resolve_name

import pytest

from mtl.runs.evidence import evidence
from mtl.runs.figures.table import FIGURES
from mtl.stem_cell.evidence import EVIDENCE


def test_the_registry_is_the_table():
    assert evidence() == EVIDENCE


@pytest.mark.parametrize("name", EVIDENCE)
def test_functions_are_there(name):
    piece = EVIDENCE[name]
    for function in filter(None, (piece.table, piece.of_study, piece.answer, piece.shown)):
        assert callable(resolve_name(function))
    for figure, row in piece.figures.items():
        assert FIGURES[figure] is row
        assert callable(row.loaded(row.draw))

"""A report is written without Python's search for cycles."""

from __future__ import annotations

import gc

import pytest

from mtl.runs.report.uncollected import uncollected


def _look(inside: list[bool]) -> None:
    with uncollected():
        inside.append(gc.isenabled())
        raise KeyError


@pytest.mark.parametrize("before", [True, False])
def test_the_search_for_cycles_is_as_it_was(before: bool) -> None:
    known = gc.isenabled()
    try:
        (gc.enable if before else gc.disable)()
        inside: list[bool] = []
        with pytest.raises(KeyError):
            _look(inside)
        assert (inside, gc.isenabled(), gc.get_freeze_count()) == ([False], before, 0)
    finally:
        (gc.enable if known else gc.disable)()

"""Work that is done without Python's search for cycles."""

from __future__ import annotations

import gc

import pytest

from mtl.workers.collector import without_collector


def _look(inside: list[bool]) -> None:
    with without_collector():
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
        assert (inside, gc.isenabled()) == ([False], before)
    finally:
        (gc.enable if known else gc.disable)()

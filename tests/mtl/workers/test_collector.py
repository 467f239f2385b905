"""Work that is done without Python's search for cycles."""

from __future__ import annotations

import gc
import sys

import pytest

from mtl.workers.collector import importing, without_collector


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


def test_the_first_imports_are_not_searched_for_garbage_and_later_ones_as_ever(monkeypatch):
    frozen = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(gc.isenabled()))
    monkeypatch.delitem(sys.modules, "pytorch_lightning", raising=False)
    with importing():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert frozen == [True]
    monkeypatch.setitem(sys.modules, "pytorch_lightning", sys)
    with importing():
        assert gc.isenabled()
    assert frozen == [True]

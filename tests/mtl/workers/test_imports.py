"""What a process of the program imports is left out of collections of garbage, once."""

from __future__ import annotations

import gc
import sys

from mtl.workers.imports import importing


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

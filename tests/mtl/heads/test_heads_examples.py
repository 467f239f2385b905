"""The examples in docstrings."""

from __future__ import annotations

import doctest
import importlib

import pytest
import torch


@pytest.mark.parametrize("module", ["gates", "prune", "target"])
def test_examples_in_docstrings(module: str) -> None:
    torch.manual_seed(0)
    failed, tried = doctest.testmod(
        importlib.import_module(f"mtl.heads.{module}"), optionflags=doctest.ELLIPSIS
    )
    assert tried
    assert not failed

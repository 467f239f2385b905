"""The examples in docstrings."""

from __future__ import annotations

import doctest
import importlib

import pytest
import torch

import mtl.heads


@pytest.mark.parametrize("module", ["gates", "prune", "target"])
def test_examples_in_docstrings(module: str) -> None:
    torch.manual_seed(0)
    failed, tried = doctest.testmod(
        importlib.import_module(f"mtl.heads.{module}"), optionflags=doctest.ELLIPSIS
    )
    assert tried
    assert not failed


def test_public_names_are_there() -> None:
    for name in mtl.heads.__all__:
        assert getattr(mtl.heads, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'prune_layers'"):
        mtl.heads.prune_layers  # noqa: B018

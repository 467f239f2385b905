"""What tests of the core leave out in a copy without some features (`tests.kit.without`)."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

import mtl
from mtl.commands.command_table import COMMANDS
from mtl.features import features
from mtl.runs.figures.table import FIGURES

_PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def absent_features() -> set[str]:
    """The features that pyproject.toml names, and whose folders are not there."""
    contracts = tomllib.loads(_PROJECT.read_text())["tool"]["importlinter"]["contracts"]
    protected = (row["protected_modules"][0] for row in contracts if row["type"] == "protected")
    return {module.rpartition(".")[2] for module in protected} - features().keys()


def needs(feature: str) -> pytest.MarkDecorator:
    """The mark of a test, or of a case, that has something of a feature as its example."""
    return pytest.mark.skipif(feature not in features(), reason=f"there is no {feature}")


def may_be_absent(words: Sequence[str]) -> bool:
    """Whether these are no words of a command, and there is a feature missing that may have it."""
    unknown = not {words[0], " ".join(words[:2])} & COMMANDS.keys()
    undrawn = words[0] == "figure" and len(words) > 1 and words[1] not in FIGURES
    return (unknown or undrawn) and bool(absent_features())


def public_names() -> list[str]:
    """The public names, without those of features that are not there."""
    return [name for name in mtl.__all__ if mtl._PLACES[name].split(".")[1] not in absent_features()]

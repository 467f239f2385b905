"""The registry of evidence: what a package beside the core reads out of many runs, draws, and says of them.

The package `mtl.stem_cell` has the table `EVIDENCE` in its module `evidence`, which imports nothing heavy:
the names of figures are choices of the command line. Without the package the registry is empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec

from mtl.runs.figures.row import FigureRow


@dataclass(frozen=True)
class Evidence:
    """A piece of evidence. Its functions are named `MODULE:FUNCTION`, and imported when they are used."""

    figures: Mapping[str, FigureRow] = field(default_factory=dict)
    """Its figures by name."""


@cache
def evidence() -> Mapping[str, Evidence]:
    """Every piece of evidence by its name."""
    if find_spec("mtl.stem_cell") is None:
        return {}
    table: Mapping[str, Evidence] = import_module("mtl.stem_cell.evidence").EVIDENCE
    return table

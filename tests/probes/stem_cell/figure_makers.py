"""Every figure of the laboratory with made-up numbers, for any number of tasks and setups."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import polars as pl
from matplotlib.figure import Figure

from mtl.probes.stem_cell.competition import ConflictByClaims
from mtl.probes.stem_cell.figures import (
    conflict_figure,
    contest_figure,
    forest,
    sharing_figure,
    wanted_figure,
)
from mtl.probes.stem_cell.sharing import KINDS
from tests.probes.figure_makers import SETUPS, made_table


def _sharing(tasks: tuple[str, ...]) -> Figure:
    rows = [(setup, task, 1.0, 0.5, 1.5, 0.0, 2.0) for setup in SETUPS[1:] for task in (*tasks, "mean")]
    columns = ("setup", "task", "loss", "low", "high", "paired_low", "paired_high")
    return sharing_figure(made_table(rows, *columns))


def _wanted(tasks: tuple[str, ...]) -> Figure:
    rows = [(kind, task, task, 0.3, 0.2) for kind in KINDS for task in tasks]
    return wanted_figure(made_table(rows, "kind", "first", "second", "jaccard", "learned"))


def _contest(tasks: tuple[str, ...]) -> Figure:
    lines = made_table(
        [(task, 1.0 + place, 0.5) for task in tasks for place in range(3)], "task", "apart", "beside"
    )
    means = made_table([(task, 2.0, 0.3, 0.1, 0.5) for task in tasks], "task", "apart", "beta", "low", "high")
    sides = [(task, partner, 1.2, 1.1, 1.3) for task in tasks for partner in ("twin", "control")]
    return contest_figure(lines, means, made_table(sides, "task", "partner", "mean", "low", "high"))


def _forest(tasks: tuple[str, ...]) -> Figure:
    rows = [("unit", "importance, logs", True, 0.02, -0.03, 0.07, "refuted")]
    rows += [("task", f"{task} alone", False, 0.2, 0.1, 0.3, "cannot tell") for task in tasks]
    return forest(
        made_table(rows, "group", "estimate", "primary", "share", "share_low", "share_high", "word")
    )


def _conflict(tasks: tuple[str, ...]) -> Figure:
    heads = made_table(
        [(name, 0.1) for name in ("neither", "one", "both") for _ in tasks], "claims", "cosine"
    )
    return conflict_figure(
        ConflictByClaims(heads, -0.1, -0.2, 0.1, 0.2), pl.DataFrame({"cosine": [0.3, 0.4]})
    )


MAKERS: Mapping[str, Callable[[tuple[str, ...]], Figure]] = {
    "sharing": _sharing, "wanted": _wanted, "contest": _contest, "forest": _forest,
    "conflict": _conflict,
}  # fmt: skip
"""By the name of `mtl figure` where it has one."""

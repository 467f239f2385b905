"""Every figure of the laboratory with made-up numbers, for any number of tasks and setups."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from mtl.probes.stem_cell.figures.conflict import conflict_figure
from mtl.probes.stem_cell.figures.contest import contest_figure
from mtl.probes.stem_cell.figures.dose import dose_figure
from mtl.probes.stem_cell.figures.forest import forest
from mtl.probes.stem_cell.figures.mixing import mixing_figure
from mtl.probes.stem_cell.figures.recovery import recovery
from mtl.probes.stem_cell.figures.sharing import sharing_figure
from mtl.probes.stem_cell.figures.wanted import wanted_figure
from mtl.probes.stem_cell.statistics.conflict import ConflictByClaims
from mtl.probes.stem_cell.statistics.dose import dose
from mtl.probes.stem_cell.statistics.mixing import CLASSES
from mtl.probes.stem_cell.statistics.remedies import CONDITIONS
from mtl.probes.stem_cell.statistics.wanted import KINDS
from tests.probes.figure_makers import LAYERS, SETUPS, made_table


def _sharing(tasks: tuple[str, ...]) -> Figure:
    rows = [(setup, task, 1.0, 0.5, 1.5) for setup in SETUPS[1:] for task in (*tasks, "mean")]
    return sharing_figure(made_table(rows, "setup", "task", "loss", "low", "high"))


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


def _dose(tasks: tuple[str, ...]) -> Figure:
    pairs = list(itertools.combinations((*tasks, "srl", "con")[: max(2, min(len(tasks), 4))], 2))
    rows = [
        (f"{first}+{second}", overlap, 12, f"{first}{second}{overlap}{draw}", task, 80.0 + draw - overlap / 6)
        for first, second in pairs for overlap in (0, 6, 12) for draw in (0, 1) for task in (first, second)
    ]  # fmt: skip
    scores = made_table(rows, "pair", "overlap", "heads", "run", "task", "score")
    return dose_figure(scores, dose(scores, draws=9))


def _conflict(tasks: tuple[str, ...]) -> Figure:
    heads = made_table(
        [(name, 0.1) for name in ("neither", "one", "both") for _ in tasks], "claims", "cosine"
    )
    return conflict_figure(
        ConflictByClaims(heads, -0.1, -0.2, 0.1, 0.2), pl.DataFrame({"cosine": [0.3, 0.4]})
    )


def _mixing(tasks: tuple[str, ...]) -> Figure:
    models = ("jointly trained", "before training", "jointly less before")
    tests = made_table(
        [(model, name, 0.1, 0.0, 0.2, 0.5, 0.5) for model in models for name in CLASSES],
        "models", "claims", "above", "low", "high", "p", "p_holm",
    )  # fmt: skip
    layers = [("self", layer, name, 0.2, models[0]) for layer in range(LAYERS) for name in ("all", *CLASSES)]
    return mixing_figure(
        tests, made_table(layers, "attention", "layer", "claims", "overlap", "models"), models[0]
    )


def _recovery(tasks: tuple[str, ...]) -> Figure:
    random = np.random.default_rng(0)
    level = {"single": 90.0, "A": 85.0}
    rows = [
        (name, task, seed, level.get(name, 87.0) + random.normal(0, 0.1), 22_600_000 + 1000 * place)
        for place, name in enumerate(CONDITIONS) for task in tasks for seed in (1, 2, 3)
    ]  # fmt: skip
    return recovery(made_table(rows, "condition", "task", "seed", "score", "parameters"))


MAKERS: Mapping[str, Callable[[tuple[str, ...]], Figure]] = {
    "sharing": _sharing, "wanted": _wanted, "contest": _contest, "forest": _forest, "dose": _dose,
    "conflict": _conflict, "mixing": _mixing, "recovery": _recovery,
}  # fmt: skip
"""By the name of `mtl figure` where it has one."""

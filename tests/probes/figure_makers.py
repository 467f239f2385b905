"""Every figure with made-up numbers, for any number of tasks and setups."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from mtl.probes.figures.head_maps import (
    correlation_matrix,
    head_label_heatmap,
    head_maps,
    label_map,
    layer_lines,
)
from mtl.probes.figures.masks import gates_over_time, grey_overlap, mask_picture, rgb_overlap
from mtl.probes.figures.scores import (
    comparison_figure,
    heads_kept,
    label_accuracy,
    learning_curves,
    prediction_dots,
)
from mtl.probes.statistics.head_values import PREDICTORS
from mtl.probes.tables import heads_table
from mtl.probes.tables.heads_table import Site

TASKS = ("pos", "ner", "dep", "con", "srl", "cola", "sst2", "mrpc", "rte")
LONG_TASKS = ("universal_morphology", "semantic_role_labels", "dialogue_act_classes")
SETUPS = ("STL", "STL, dynamic, target 24", "MTL-5, dynamic, a mask per task, encoder rate 0.0003")
LAYERS, HEADS = 6, 12
SITES = tuple(Site("self", layer) for layer in range(LAYERS))
SCORES = {"pos": "accuracy", "dep": "las"}


def made_table(rows: list[tuple[object, ...]], *columns: str) -> pl.DataFrame:
    return pl.DataFrame(rows, columns, orient="row")


def _gates(tasks: tuple[str, ...]) -> np.ndarray:
    gate = np.random.default_rng(0).random((len(tasks), LAYERS, HEADS))
    return np.where(gate < 0.5, 0.0, gate)


def _history(tasks: tuple[str, ...]) -> pl.DataFrame:
    """A gates.parquet of three evaluations; some of the last open heads were forced."""
    rows = [
        (
            task,
            100 * step,
            "self",
            layer,
            head,
            float(gate),
            bool(gate > 0),
            bool(gate > 0) and (step < 3 or head % 2 == 0),
        )
        for step in (1, 2, 3)
        for task, mask in zip(tasks, _gates(tasks), strict=True)
        for (layer, head), gate in np.ndenumerate(mask)
    ]
    return made_table(rows, "task", "step", "attention", "layer", "head", "gate", "open", "learned")


def _rgb(tasks: tuple[str, ...]) -> Figure:
    names = (*tasks, "a run with a rather long name, seed 2", "another run with a long name, seed 3")[:3]
    gates = _gates(names)
    forced = gates > 0.9, (gates == 0) & (np.arange(HEADS) == 3)
    return rgb_overlap(gates, SITES, names, gates > 0, forced)


def _grey(tasks: tuple[str, ...]) -> Figure:
    gates = _gates(tasks)
    return grey_overlap(gates, SITES, (gates[0] > 0.8, gates[0] == 0))


def _correlation(tasks: tuple[str, ...]) -> Figure:
    pairs = itertools.combinations_with_replacement(tasks, 2)
    return correlation_matrix(made_table([(*pair, -0.34) for pair in pairs], "first", "second", "paper"))


def _agreement(tasks: tuple[str, ...]) -> Figure:
    names = [f"{task}, {setup}" for task in tasks for setup in SETUPS[:2]]
    pairs = itertools.combinations_with_replacement(names, 2)
    return correlation_matrix(
        made_table([(*pair, 1.0) for pair in pairs], "first", "second", "spearman"), "spearman"
    )


def _learning(tasks: tuple[str, ...]) -> Figure:
    rows = [
        (setup, task, seed, at, 50.0 + at / 100 + seed)
        for setup in SETUPS for task in tasks for seed in (1, 2) for at in (100, 200)
    ]  # fmt: skip
    return learning_curves(made_table(rows, "setup", "task", "run", "update", "score"), SCORES)


def _kept(tasks: tuple[str, ...]) -> Figure:
    rows = [
        (task, setup, "target_open=0.3", 20 + seed, 80.0 + seed)
        for task in tasks for setup in SETUPS for seed in (1, 2)
    ]  # fmt: skip
    return heads_kept(made_table(rows, "task", "setup", "setting", "kept", "score"), LAYERS * HEADS, SCORES)


def _labels(tasks: tuple[str, ...]) -> Figure:
    count = 3 * len(tasks)
    columns = {"label": [f"label:{number}" for number in range(count)], "count": [1234] * count}
    regimes = {name: [0.5] * count for name in ("pretrained", "stl", "pair", "joint", "chance")}
    return label_accuracy(pl.DataFrame(columns | regimes | {"counted": [True] * (count - 1) + [count == 0]}))


def _heatmap(tasks: tuple[str, ...]) -> Figure:
    names = [f"a long label {number}" for number in range(6 * len(tasks))]
    value = np.random.default_rng(0).random((len(names), LAYERS, HEADS))
    rows = heads_table.rows("attention", "dep", names, value, np.full(len(names), 40))
    return head_label_heatmap(rows.with_columns(counted=pl.col("label") != names[0]))


def _skills(tasks: tuple[str, ...]) -> pl.DataFrame:
    names = [f"a long label {number}" for number in range(6 * len(tasks))]
    value = np.random.default_rng(0).random((len(names), LAYERS, HEADS))
    rows = heads_table.rows("attention", "dep", names, value, np.full(len(names), 40))
    return rows.with_columns(counted=True, chance=pl.lit(0.2), skill=(pl.col("value") - 0.2).clip(0))


def _maps(tasks: tuple[str, ...]) -> Figure:
    rows = [
        (task, setup, "self", layer, head, 0.1 * head - 0.3, head == 3)
        for task in tasks for setup in SETUPS[:2] for layer in range(LAYERS) for head in range(HEADS)
    ]  # fmt: skip
    table = made_table(rows, "task", "setup", "attention", "layer", "head", "value", "significant")
    return head_maps(table, "ablation", "score lost, points")


def _prediction(tasks: tuple[str, ...]) -> Figure:
    rows = [
        (task, setup, name, 0.5, 0.3, 0.7, 0.2, 0.0, 0.4)
        for task in tasks
        for setup in SETUPS
        for name in PREDICTORS
    ]
    ends = ("spearman", "low", "high", "within_layers", "within_low", "within_high")
    return prediction_dots(made_table(rows, "task", "setup", "measure", *ends))


def _comparison(tasks: tuple[str, ...]) -> Figure:
    ends = [f"{name}_{end}" for name in ("both", "seeds", "sentences") for end in ("low", "high")]
    table = made_table([(task, 0.5, *[0.0, 1.0] * 3) for task in tasks], "task", "difference", *ends)
    return comparison_figure(table, "STL, dynamic", "MTL-5, dynamic, a mask per task")


MAKERS: Mapping[str, Callable[[tuple[str, ...]], Figure]] = {
    "rgb": _rgb, "grey": _grey, "correlation": _correlation, "agreement": _agreement,
    "gates": lambda tasks: gates_over_time(_history(tasks)),
    "masks": lambda tasks: mask_picture(_history(tasks)), "labels": _labels, "heatmap": _heatmap,
    "map": lambda tasks: label_map(_skills(tasks)), "layers": lambda tasks: layer_lines(_skills(tasks)),
    "heads-kept": _kept, "learning-curves": _learning, "heads": _maps,
    "prediction": _prediction, "comparison": _comparison,
}  # fmt: skip
"""By the name of `mtl figure` where it has one; `animation` and `importance-over-time` are drawn like
`masks` and `gates`."""

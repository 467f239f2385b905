"""Made-up runs: gates and probes in which claims cost skill, or do not, or only to the task that claims."""

from __future__ import annotations

import numpy as np
import polars as pl

TASKS, SEEDS, LAYERS, HEADS, LABELS = ("pos", "ner", "dep", "con"), (1, 2, 3), 4, 8, 3
CHANCE = 0.3
KINDS = ("encoder", "decoder", "cross")


def with_kinds(table: pl.DataFrame, per_kind: int = 2) -> pl.DataFrame:
    """The same table with three kinds of attention, each with `per_kind` of the layers, in their order."""
    kind = (pl.col("layer") // per_kind).replace_strict(dict(enumerate(KINDS)), return_dtype=pl.String)
    return table.with_columns(attention=pl.coalesce(kind, "attention"), layer=pl.col("layer") % per_kind)


def gates(gate: np.ndarray, tasks=TASKS, seeds=SEEDS, step: int = 100) -> pl.DataFrame:
    """Rows of gates (task, seed, layer, head) as those of gates.parquet, with run and seed."""
    task, seed, layer, head = (axis.ravel() for axis in np.indices(gate.shape))
    return pl.DataFrame(
        {
            "task": [tasks[each] for each in task],
            "seed": [seeds[each] for each in seed],
            "attention": "self",
            "layer": layer,
            "head": head,
            "log_alpha": gate.ravel() * 4 - 2,
            "gate": gate.ravel(),
            "open": gate.ravel() > 1e-3,
            "step": step,
        }
    ).with_columns(run=pl.format("{}-{}", "task", "seed"))


def random_gates(rng: np.random.Generator, tasks: int = len(TASKS), seeds: int = len(SEEDS)) -> np.ndarray:
    """Gates that tasks share in part, seeds of a task more, and layers differ in."""
    shape = (tasks, seeds, LAYERS, HEADS)
    wish = sum(
        size * rng.normal(size=[length if axis in axes else 1 for axis, length in enumerate(shape)])
        for size, axes in ((0.7, (2, 3)), (1.0, (0, 2, 3)), (0.5, (0, 1, 2, 3)), (0.5, (2,)))
    )
    gate = 1 / (1 + np.exp(-3 * wish))
    return np.where(gate < 0.4, 0.0, gate)


def heads(value: np.ndarray, regime: str, tasks=TASKS, seeds=SEEDS, chance: float = CHANCE) -> pl.DataFrame:
    """Rows of values (seed, task, label, layer, head) as in heads.parquet, with regime, run and seed."""
    seed, task, label, layer, head = (axis.ravel() for axis in np.indices(value.shape))
    rows = pl.DataFrame(
        {
            "measure": "attention",
            "task": [tasks[each] for each in task],
            "label": [f"label {each}" for each in label],
            "attention": "self",
            "layer": layer,
            "head": head,
            "value": value.ravel(),
            "count": 30 * (label + 1),
            "regime": regime,
            "seed": [seeds[each] for each in seed],
        }
    ).with_columns(run=pl.format("{}-{}", "regime", "seed"))
    lucky = rows.filter((pl.col("layer") == 0) & (pl.col("head") == 0)).with_columns(
        measure=pl.lit("attention_offset"),
        value=pl.lit(chance),
        layer=pl.lit(None, dtype=pl.Int64),
        head=pl.lit(None, dtype=pl.Int64),
    )
    return pl.concat([rows, lucky])


def competition(rng: np.random.Generator, effect: float) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Gates and probes of which joint training costs `effect` of skill per share of tasks that claim a head.

    Beside it, whole layers lose or gain for a reason that has nothing to do with claims.
    """
    gate = random_gates(rng)
    cost = effect * _claimed(gate).sum(0) / len(TASKS)
    return gates(gate), _probed(rng, np.broadcast_to(cost, (len(TASKS), LAYERS, HEADS)))


def own_heads(rng: np.random.Generator, effect: float) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Gates and probes of a world in which tasks do not compete: each loses `effect` on its own heads alone.

    What a task loses on a head is the same whether another task claims the head or not.
    """
    gate = random_gates(rng)
    return gates(gate), _probed(rng, effect * _claimed(gate))


def _claimed(gate: np.ndarray) -> np.ndarray:
    return (gate > 1e-3).mean(1) > 0.5


def _probed(rng: np.random.Generator, cost: np.ndarray) -> pl.DataFrame:
    """Probes of the encoder before training, of tasks alone and jointly; `cost` by task, layer and head."""
    ability = rng.uniform(0.2, 0.6, size=(1, len(TASKS), LABELS, LAYERS, HEADS))
    tables = []
    for regime, seeds in (("pretrained", (0,)), ("stl", SEEDS), ("joint", SEEDS)):
        noise = rng.normal(size=(len(seeds), len(TASKS), LABELS, LAYERS, HEADS))
        value = CHANCE + ability + 0.05 * noise + 0.03 * rng.normal(size=(1, 1, 1, LAYERS, 1))
        if regime == "joint":
            value -= cost[None, :, None]
        tables.append(heads(value, regime, seeds=seeds))
    return pl.concat(tables)

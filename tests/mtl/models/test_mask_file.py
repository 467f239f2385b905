"""Masks from a file: what fits a run, and one line for what does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from mtl.errors import InputError
from mtl.heads.gate_file import SCHEMA, masks_fingerprint, read_masks
from mtl.models.derived import fixed_gates, gates_from_file
from mtl.models.mask_file import check_masks

LAYERS, HEADS = 2, 3
ONES = np.ones((LAYERS, HEADS))


def table(masks: dict[str, np.ndarray], step: int = 4) -> pl.DataFrame:
    rows = [
        {
            "task": task, "step": step, "attention": "self", "layer": layer, "head": head, "log_alpha": None,
            "gate": float(gate), "open": bool(gate > 1e-3), "log_alpha_at_choice": None,
        }
        for task, mask in masks.items()
        for (layer, head), gate in np.ndenumerate(mask)
    ]  # fmt: skip
    return pl.DataFrame(rows, schema=SCHEMA)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "masks.parquet"


def test_the_masks_are_those_of_the_last_step_in_the_order_of_the_runs_tasks(path):
    pos, dep = np.array([[1, 0, 0.25], [0, 1, 1]]), np.array([[0, 1, 0], [0, 0, 1]])
    old = table({"pos": ONES, "dep": ONES}, step=1)
    pl.concat([old, table({"pos": pos, "dep": dep, "srl": ONES})]).write_parquet(path)
    gates = fixed_gates(path, "per_task", ("dep", "pos"), (LAYERS, HEADS))
    assert gates.masks == ("dep", "pos")
    assert gates.train()().tolist() == gates.eval().gate().tolist() == [dep.tolist(), pos.tolist()]
    assert list(gates.parameters()) == []


def test_masks_that_are_equal_can_be_shared(path):
    table({"pos": ONES, "dep": ONES}).write_parquet(path)
    gates = fixed_gates(path, "shared", ("pos", "dep"), (LAYERS, HEADS))
    assert gates.masks == ("shared",)
    assert gates().shape == (1, LAYERS, HEADS)


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ({"pos": ONES, "dep": 0 * ONES}, "has a mask per task: use gates.scope=per_task"),
        ({"pos": ONES}, "has no mask for dep: it has pos; every task of the run needs one"),
        ({"pos": ONES, "dpe": ONES}, "has no mask for dep: it has pos, dpe"),
        (
            {"pos": ONES, "dep": 1.5 * ONES},
            "the gate of dep at L0H0 is 1.5: use a number from 0",
        ),
        ({"pos": ONES, "dep": np.nan * ONES}, "the gate of dep .* is nan"),
        ({"pos": -ONES, "dep": ONES}, "the gate of pos .* is -1.0"),
    ],
)
def test_masks_that_do_not_fit_the_tasks_are_one_line(path, masks, message):
    table(masks).write_parquet(path)
    with pytest.raises(InputError, match=message) as error:
        check_masks(path, "shared", ("pos", "dep"))
    assert "\n" not in str(error.value)


def test_a_mask_of_another_shape_or_with_heads_missing_is_one_line(path):
    table({"pos": ONES}).write_parquet(path)
    with pytest.raises(
        InputError, match="a mask over 2 layers of 3 heads, but the encoder has 6 layers of 12"
    ):
        fixed_gates(path, "shared", ("pos",), (6, 12))
    from_one = table({"pos": ONES}).with_columns(pl.col("layer") + 1)
    from_one.write_parquet(path)
    with pytest.raises(InputError, match="a mask over 3 layers of 3 heads, but the encoder has 2"):
        gates_from_file(path, "pos", (LAYERS, HEADS))
    table({"pos": ONES}).filter(~((pl.col("layer") == 0) & (pl.col("head") == 1))).write_parquet(path)
    with pytest.raises(InputError, match="the mask of pos has 5 of 6 heads"):
        gates_from_file(path, "pos", (LAYERS, HEADS))
    pl.concat([table({"pos": ONES}), table({"pos": ONES})]).write_parquet(path)
    with pytest.raises(InputError, match="has a gate twice"):
        read_masks(path)


def test_the_order_of_rows_does_not_matter(path):
    """Gates are in the order of a model's sites: encoder, decoder, cross attention."""
    gates = np.arange(3 * LAYERS * HEADS).reshape(3, LAYERS, HEADS) / 100
    tables = [
        table({"pos": of_kind}).with_columns(attention=pl.lit(kind))
        for kind, of_kind in zip(("encoder", "decoder", "cross"), gates, strict=True)
    ]
    for rows in (pl.concat(tables), pl.concat(tables).sort("attention", "head"), pl.concat(tables).reverse()):
        rows.write_parquet(path)
        found = gates_from_file(path, "pos", (3 * LAYERS, HEADS))
        np.testing.assert_allclose(found.numpy(), gates.reshape(-1, HEADS), rtol=1e-6)


def test_what_is_no_mask_file_is_one_line(path):
    with pytest.raises(InputError, match="no such mask file"):
        read_masks(path)
    path.write_text("no table")
    with pytest.raises(InputError, match=r"is not a gates\.parquet"):
        read_masks(path)
    table({}).write_parquet(path)
    with pytest.raises(InputError, match="has no masks in it"):
        read_masks(path)


def test_the_last_step_is_that_of_each_task(path):
    """A task whose last rows have a lower step than another's keeps its mask."""
    steps = [table({"pos": 0 * ONES}, step=1), table({"pos": ONES}, step=2), table({"dep": ONES}, step=1)]
    pl.concat(steps).write_parquet(path)
    found = {task: rows["gate"].to_list() for (task,), rows in read_masks(path).group_by("task")}
    assert found == {"pos": ONES.flatten().tolist(), "dep": ONES.flatten().tolist()}


def test_the_fingerprint_is_of_the_gates_and_of_nothing_else(path):
    def fingerprint(rows: pl.DataFrame) -> str:
        rows.write_parquet(path)
        return masks_fingerprint(read_masks(path))

    first = fingerprint(table({"pos": ONES, "dep": 0 * ONES}))
    assert fingerprint(table({"dep": 0 * ONES, "pos": ONES}, step=9).with_columns(note=pl.lit("x"))) == first
    assert fingerprint(table({"pos": ONES, "dep": 0.5 * ONES})) != first

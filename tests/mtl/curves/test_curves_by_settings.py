"""Curves that are measured by settings alone, as a study has them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
import torch
import yaml

from mtl.curves.curve import measure_curves
from mtl.curves.orders import check_measured
from mtl.errors import InputError
from mtl.models.inputs import InputCache
from tests.mtl.analysis import worth


@pytest.mark.parametrize(
    ("orders", "message"),
    [
        ((), r"^probes\.orders is empty: name at least one order"),
        (("radnom",), r"no such order or measure: did you mean 'ra"),
        (("fisher",), r"fisher, which no measure of .*'mtl import"),
    ],
)
def test_orders_that_cannot_be_made_are_refused(orders, message):
    with pytest.raises(InputError, match=message):
        check_measured(SimpleNamespace(orders=orders), {"attention"})
    check_measured(SimpleNamespace(orders=("random", "fisher")), {"fisher"})


def test_draws_are_a_key_of_studies_with_a_least_value():
    config = pytest.importorskip("mtl.study.config")
    grid = pytest.importorskip("mtl.study.grid")
    with pytest.raises(InputError, match=r"^probes\.draws=0: use a number from 1"):
        grid.check_measures(config.ProbesConfig(measures=("curve",), draws=0))
    with pytest.raises(InputError, match=r"^probes\.orders is empty"):
        grid.check_measures(config.ProbesConfig(measures=("curve",), orders=()))
    grid.check_measures(config.ProbesConfig(measures=("importance", "curve"), orders=("fisher",)))


@pytest.mark.slow
def test_curves_are_files_of_the_run(toy: Path, tmp_path: Path) -> None:
    worth.joint_model(toy, ("pos", "dep"), dtype=torch.float32).save(tmp_path / "run" / "model")
    config = {"tasks": ["pos", "dep"], "seed": 1, "corpus": {"path": str(toy)}, "encoder": {"name": "minilm"}}
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(config))
    settings = {
        "target": str(tmp_path / "run"), "sentences": 6, "split": "test", "draws": 2,
        "orders": ("importance", "random"),
    }  # fmt: skip
    measure_curves(settings, InputCache(keep=True))
    points = pl.read_parquet(tmp_path / "run" / "curve.parquet")
    assert set(points.select("by", "draw").unique().iter_rows()) == {
        ("importance", 0), ("random", 0), ("random", 1),
    }  # fmt: skip
    assert set(points["split"]) == {"test"}
    assert not (tmp_path / "run" / "heads.parquet").exists()

"""Pruning curves of a run that translates."""

from __future__ import annotations

import polars as pl
import pytest
from rich.console import Console

from mtl.commands.main import main
from mtl.config.schema import GatesConfig
from mtl.probes.curves import curve_table
from mtl.runs.folder.run import Run
from mtl.training.train import train
from tests.mtl.translation import digits


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that has learned a little (single digits), whose task has a name of its own."""
    folder = tmp_path_factory.mktemp("digits")
    config = digits.named(digits.config(folder, sentences=300, epochs=3, pruning="dynamic"), "names_of")
    return train(config, console=Console(quiet=True))


@pytest.mark.slow
def test_pruning_curves_show_how_many_heads_of_each_kind_are_left(run, tmp_path, capsys):
    words = ["curve", str(run.folder), "--masks=false", "--steps=3", "--draws=2", "--sentences=4"]
    assert main([*words, "--by=importance,recomputed,random,greedy"]) == 0
    printed = " ".join(capsys.readouterr().out.split())  # titles are as narrow as their tables
    assert "greedy: heads of each kind that are kept" in printed
    assert "random: heads of each kind that are kept (means over 2 draws)" in printed
    orders = pl.read_parquet(run.folder / "curve_heads.parquet")
    for (by, _draw), order in orders.group_by("by", "draw"):
        assert sorted(order["rank"]) == [0, 1, 2, 3, 4, 5], by
        kinds = dict(order.group_by("attention").len().iter_rows())
        assert kinds == {"encoder": 2, "decoder": 2, "cross": 2}
    out = tmp_path / "kinds.png"
    assert main(["figure", "curve-kinds", str(run.folder), f"--out={out}"]) == 0
    assert out.is_file()
    means = pl.read_parquet(tmp_path / "kinds.parquet").filter(by="greedy")
    heads = means.group_by("percent").agg(pl.col("surviving").sum() * 2)
    assert dict(heads.iter_rows()) == pytest.approx({100.0: 6.0, 67.0: 4.0, 33.0: 2.0, 0.0: 0.0})


@pytest.mark.slow
def test_learned_gates_of_one_kind_are_points_of_a_curve(run, tmp_path, capsys):
    gates = GatesConfig(kinds=("encoder",), target_open=0.5)
    config = digits.named(digits.config(tmp_path, pruning="dynamic", gates=gates), "names_of")
    other = train(config, console=Console(quiet=True))
    words = ["curve", str(run.folder), "--masks=false", "--steps=1", "--draws=1", "--sentences=4"]
    assert main([*words, "--by=random", f"--gates=[{other.folder}]"]) == 0
    assert "gates: heads of each kind that are kept" in " ".join(capsys.readouterr().out.split())
    table = pl.read_parquet(other.folder / "gates.parquet")
    last = table.filter(pl.col("step") == pl.col("step").max(), pl.col("open"))
    opened = set(last.select("attention", "layer", "head").iter_rows())
    assert len(opened) == 5  # one of the encoder's, and all of those without gates
    orders = pl.read_parquet(run.folder / "curve_heads.parquet")
    assert curve_table.mask_of(orders, "gates", "names_of", 5) == opened


@pytest.mark.slow
def test_a_pruning_curve_of_a_translation_run(run, capsys):
    words = ["curve", str(run.folder), "--by=importance,random", "--draws=1", "--steps=3"]
    assert main([*words, "--masks=false", "--sentences=8", "--cut", "--batches=[2]", "--rounds=1"]) == 0
    kept = pl.read_parquet(run.folder / "curve.parquet").filter(by="importance")["kept"].to_list()
    assert kept == [6, 4, 2, 0]
    assert pl.read_parquet(run.folder / "curve_time.parquet").height == 8

"""Measurements on the heads of a study's finished runs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
import yaml

from mtl.config.effective import plain
from mtl.corpora.toy.corpus import write_toy
from mtl.models.inputs import InputCache
from mtl.probes.tables import heads_table
from mtl.study.config import ProbesConfig
from mtl.study.measure import measure
from tests.mtl.analysis import worth


def settings_of(probes: ProbesConfig, run: Path) -> dict[str, Any]:
    """A job's settings of measurements."""
    return {**plain(asdict(probes)), "target": str(run)}


@pytest.mark.parametrize(
    ("measures", "made"),
    [
        (["importance", "ablation"], {"importance", "taylor", "fisher", "ablation", "ablation_layer"}),
        (["probes", "relevance"], {"clustering", "attention", "relevance"}),
    ],
)
def test_what_is_asked_for_is_measured(toy: Path, tmp_path: Path, measures, made) -> None:
    model = worth.joint_model(toy, ("pos", "dep"), dtype=torch.float32)
    model.save(tmp_path / "run" / "model")
    config = {"tasks": ["pos", "dep"], "seed": 1, "corpus": {"path": str(toy)}, "encoder": {"name": "minilm"}}
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(config))
    settings = settings_of(ProbesConfig(sentences=6, close=("head", "layer")), tmp_path / "run")
    cache = InputCache(keep=True)
    tables = [measure(name, settings, cache) for name in measures]
    table, _ = heads_table.read(tmp_path / "run" / "heads.parquet")
    assert made <= set(table["measure"])
    assert [probed is not None for probed in tables] == [name == "probes" for name in measures]
    assert ("importance" in set(table["measure"])) == ("importance" in measures)


def test_heads_are_probed_on_the_corpus_of_the_study_if_it_names_one(toy: Path, tmp_path: Path) -> None:
    worth.joint_model(toy, ("pos", "dep"), dtype=torch.float32).save(tmp_path / "run" / "model")
    config = {"tasks": ["pos", "dep"], "seed": 1, "corpus": {"path": str(toy)}, "encoder": {"name": "minilm"}}
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(config))
    write_toy(tmp_path / "other", 1, 1, 4, seed=5)
    settings = settings_of(ProbesConfig(sentences=6, corpus=str(tmp_path / "other")), tmp_path / "run")
    for name in ("probes", "importance"):
        measure(name, settings, InputCache(keep=True))
    _, provenance = heads_table.read(tmp_path / "run" / "heads.parquet")
    assert (provenance["sentences"], provenance["importance.sentences"]) == ("4", "6")


def test_curves_and_carry_over_are_files_of_the_run(toy: Path, tmp_path: Path) -> None:
    worth.joint_model(toy, ("pos", "dep"), dtype=torch.float32).save(tmp_path / "run" / "model")
    config = {"tasks": ["pos", "dep"], "seed": 1, "corpus": {"path": str(toy)}, "encoder": {"name": "minilm"}}
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(config))
    write_toy(tmp_path / "other", 1, 1, 4, seed=5)
    probes = ProbesConfig(
        sentences=6, orders=("importance", "random"), draws=2, other=str(tmp_path / "other"), split="test"
    )
    for name in ("curve", "carry_over"):
        measure(name, settings_of(probes, tmp_path / "run"), InputCache(keep=True))
    points = pl.read_parquet(tmp_path / "run" / "curve.parquet")
    assert set(points.select("by", "draw").unique().iter_rows()) == {
        ("importance", 0), ("random", 0), ("random", 1),
    }  # fmt: skip
    assert set(points["split"]) == {"test"}
    tables = []
    for place, sentences in (("own", "6"), ("other", "4")):
        table, provenance = heads_table.read(tmp_path / "run" / f"importance-{place}.parquet")
        assert (provenance["importance.split"], provenance["importance.sentences"]) == ("test", sentences)
        tables.append(table.filter(measure="importance", task="dep")["value"].to_list())
    assert tables[0] != tables[1]
    assert not (tmp_path / "run" / "heads.parquet").exists()

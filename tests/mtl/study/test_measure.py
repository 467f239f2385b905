"""Measurements on the heads of a study's finished runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

from mtl.corpora.toy.corpus import write_toy
from mtl.models.inputs import InputCache
from mtl.study.measure import measure
from probes import heads_table
from tests.mtl.analysis import worth


@pytest.mark.parametrize(
    ("measures", "made"),
    [
        (["importance", "ablation"], {"importance", "taylor", "fisher", "ablation"}),
        (["probes", "relevance"], {"clustering", "attention", "relevance"}),
    ],
)
def test_what_is_asked_for_is_measured(toy: Path, tmp_path: Path, measures, made) -> None:
    model = worth.joint_model(toy, ("pos", "dep"), dtype=torch.float32)
    model.save(tmp_path / "run" / "model")
    config = {"tasks": ["pos", "dep"], "seed": 1, "corpus": {"path": str(toy)}, "encoder": {"name": "minilm"}}
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(config))
    settings = {
        "target": str(tmp_path / "run"), "split": "test", "centroids": "self", "final_special": False,
        "sentences": 6,
    }  # fmt: skip
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
    settings = {
        "target": str(tmp_path / "run"), "split": "test", "centroids": "self", "final_special": False,
        "sentences": 6, "corpus": str(tmp_path / "other"),
    }  # fmt: skip
    for name in ("probes", "importance"):
        measure(name, settings, InputCache(keep=True))
    _, provenance = heads_table.read(tmp_path / "run" / "heads.parquet")
    assert (provenance["sentences"], provenance["importance.sentences"]) == ("4", "6")

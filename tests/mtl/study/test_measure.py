"""Measurements on the heads of a study's finished runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

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
        "measures": measures, "sentences": 6,
    }  # fmt: skip
    probed = measure(settings, InputCache(keep=True))
    table, _ = heads_table.read(tmp_path / "run" / "heads.parquet")
    assert made <= set(table["measure"])
    assert (probed is not None) == ("probes" in measures)
    assert ("importance" in set(table["measure"])) == ("importance" in measures)

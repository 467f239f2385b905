"""What a run records of what it is made of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mtl.config.schema import CorpusConfig, EncoderConfig, TrainConfig
from mtl.training.made_of import made_of


@pytest.mark.parametrize("start", ["cut", "cut/model"])
def test_a_run_that_starts_from_a_cut_one_records_its_heads(
    start: str, toy: Path, tiny_encoder: Path, tmp_path: Path
) -> None:
    (tmp_path / "cut" / "model").mkdir(parents=True)
    (tmp_path / "cut" / "config.yaml").write_text("tasks: [pos]\n")
    (tmp_path / "cut" / "status.json").write_text(json.dumps({"heads_kept": 5}))
    config = TrainConfig(
        tasks=("pos",), init_from=str(tmp_path / start), corpus=CorpusConfig(str(toy)),
        encoder=EncoderConfig(name=str(tiny_encoder)),
    )  # fmt: skip
    assert made_of(config, "corpus", None, None)["heads_kept"] == 5

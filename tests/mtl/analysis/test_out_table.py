"""`mtl importance --out` and `mtl ablate --out`: a table beside the run's own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from mtl.commands.command_table import MEASURES
from mtl.commands.main import main
from mtl.models.inputs import InputCache
from mtl.probes.tables import heads_table
from mtl.runs.compare.heads import worth_of
from tests.mtl.analysis import worth


@pytest.fixture
def run(toy: Path, tmp_path: Path) -> Path:
    """A run's folder as training leaves it: a model and its configuration."""
    import torch

    model = worth.joint_model(toy, ("pos",), dtype=torch.float32)
    folder = tmp_path / "run"
    model.save(folder / "model")
    config = {"tasks": ["pos"], "seed": 1, "corpus": {"path": str(toy)}, "encoder": {"name": "minilm"}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def test_another_table_has_other_sentences_and_knows_its_run(run, tmp_path, capsys) -> None:
    out = tmp_path / "train-split.parquet"
    given = ["--sentences=6", f"--out={out}"]
    assert main(["importance", str(run), "--split=train", *given]) == 0
    assert main(["ablate", str(run), "--split=train", "--draws=10", *given]) == 0
    assert not (run / "heads.parquet").exists()
    table, made_of = heads_table.read_heads_table(out)
    assert {"importance", "ablation", "ablation_q"} <= set(table["measure"])
    assert (made_of["ablation.split"], made_of["ablation.run"]) == ("train", str(run.resolve()))
    values, _ = worth_of([out])
    assert set(values["table"]) == {"train-split"}
    capsys.readouterr()
    assert main(["importance", str(run), f"--out={tmp_path / 'no' / 'such.parquet'}"]) == 2
    assert "in a folder that exists" in capsys.readouterr().err


@pytest.mark.parametrize("command", [*MEASURES, "ablate", "probe"])
def test_a_table_that_cannot_be_written_is_refused_before_anything_is_measured(
    command, run, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(InputCache, "split", lambda *given: pytest.fail("the corpus was read"))
    (run / "heads.parquet").write_bytes(b"PAR1 no table")
    assert main([command, str(run)]) == 2
    assert f"{run / 'heads.parquet'}" in capsys.readouterr().err
    if command == "probe":
        assert main([command, str(run), f"--out={run / 'config.yaml'}"]) == 2
        assert "config.yaml: a part of this path is a file, not a folder" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["importance", "probe", "probe an encoder"])
def test_measures_do_not_replace_those_of_another_run(command, run, tmp_path, capsys) -> None:
    """Its table would be marked as made by its own model."""
    other, out = run.rename(tmp_path / "other"), "" if command.startswith("probe") else "/heads.parquet"
    target = other / "model" if command.endswith("encoder") else shutil.copytree(other, tmp_path / "run")
    given = [str(target), f"--out={other}{out}", f"--corpus={tmp_path}"]
    assert main([command.split()[0], *given]) == 2
    assert f"{other} is a run, and {target} is measured" in capsys.readouterr().err
    assert not (other / "heads.parquet").exists()

"""A run whose files are damaged: every command that reads it says so in one line."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest

from mtl.commands.main import main
from mtl.config.parse import read_mapping
from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.runs.folder.run import Run
from tests.mtl.commands.test_odd_paths import commands_on_runs


def written(folder: Path) -> list[str]:
    """The lines of the configuration of a run that has nothing else."""
    Run(folder).create({**dataclasses.asdict(TrainConfig()), "name": "run", "tasks": ["pos"]})
    return (folder / "config.yaml").read_text().splitlines(keepends=True)


def test_a_configuration_that_was_cut_off_anywhere_is_refused(tmp_path):
    lines = written(tmp_path)
    assert read_mapping(tmp_path / "config.yaml") == Run.open(tmp_path).config()
    for end in range(len(lines)):
        (tmp_path / "config.yaml").write_text("".join(lines[:end]))
        with pytest.raises(InputError, match=r"config.yaml (was cut off|is empty)"):
            Run.open(tmp_path)


@pytest.mark.parametrize("damage", ["half", "empty", "folder"])
def test_every_command_that_reads_a_run_names_the_damaged_configuration(
    damage, tmp_path, capsys, monkeypatch
):
    run, out = tmp_path / "runs" / "run", tmp_path / "out"
    lines = written(run)
    file = run / "config.yaml"
    if damage == "folder":
        file.unlink()
        file.mkdir()
    else:
        file.write_text("".join(lines[: len(lines) // 2 if damage == "half" else 0]))
    out.mkdir()
    run.joinpath("model").mkdir()
    run.joinpath("model/model.json").write_text('{"tasks": {}}')
    run.joinpath("model/encoder.json").write_text('{"pooling": null, "mix": null, "word_dropout": 0}')
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"A dog.\n")))
    words = commands_on_runs(run, tmp_path / "encoder", tmp_path / "corpus", out)
    words["translate"] = [str(run)]
    for name, given in words.items():
        assert main([*name.split(), *given]) == 2, name
        errors = capsys.readouterr().err
        assert errors.count("\n") == 1, (name, errors)
        assert str(file) in errors, (name, errors)
        assert not any(out.iterdir()), name

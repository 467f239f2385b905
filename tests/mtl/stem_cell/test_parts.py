"""Parts of a training that registries name: which code a run is made of, and that a run has one start."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from mtl.config import part
from mtl.config.parse import configured
from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.runs.folder.code_fingerprint import modules_of, used_modules
from mtl.stem_cell.clones_start import CLONES
from mtl.study.jobs.job import Job
from mtl.study.jobs.wanted import codes_of
from mtl.training.check import check_settings

PAIR = ["--tasks=pos,dep", "--encoder.name=bert-base-cased"]
CONFLICT = {"mtl.stem_cell.conflict_meter", "mtl.stem_cell.gradient_conflict"}
COPIES = {f"mtl.stem_cell.{name}" for name in ("claims_file", "clones", "clones_start")}


def values(*words: str) -> dict:
    return dataclasses.asdict(configured("mtl train", TrainConfig, [*PAIR, *words]))


@pytest.mark.parametrize(
    ("words", "modules"),
    [
        ([], set()),
        (["--gradient_conflict_every=5"], CONFLICT),
        (["--clones.kind=rows"], COPIES),
        (["--clones.kind=rows", "--gradient_conflict_every=5"], COPIES | CONFLICT),
    ],
)
def test_a_run_is_made_of_the_parts_that_it_uses(words: list[str], modules: set[str]) -> None:
    made_of = modules_of(*used_modules(values(*words)))
    assert {name for name in made_of if name.startswith("mtl.stem_cell")} == modules
    assert not [name for name in made_of if name.startswith("mtl.study")]


def test_a_changed_part_repeats_the_runs_that_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Path.read_bytes
    configs = [
        configured("mtl train", TrainConfig, words)
        for words in (PAIR, [*PAIR, "--gradient_conflict_every=5"])
    ]
    before = [training_code(config) for config in configs]
    assert before[0] != before[1]

    def read_changed(self: Path) -> bytes:
        return read(self) + (b"\nCHANGED = 1\n" if self.name == "gradient_conflict.py" else b"")

    monkeypatch.setattr(Path, "read_bytes", read_changed)
    monkeypatch.setattr("mtl.study.jobs.wanted.code_fingerprint", _uncached())
    after = [training_code(config) for config in configs]
    assert after[0] == before[0]
    assert after[1] != before[1]


def training_code(config: TrainConfig) -> str:
    return codes_of(Job("run", "all", config))["code"]


def _uncached():
    from mtl.runs.folder.code_fingerprint import code_fingerprint

    return code_fingerprint.__wrapped__


def test_a_run_has_one_start(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(type(CLONES)):  # type: ignore[misc]
        key = "others"

        def used(self, config: object) -> bool:
            return True

    monkeypatch.setattr(part, "starts", lambda: (CLONES, Other()))
    config = configured("mtl train", TrainConfig, [*PAIR, "--clones.kind=rows"])
    with pytest.raises(InputError, match="clones and others each change the model before training"):
        check_settings(config)

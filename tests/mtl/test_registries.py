"""A package beside the core's rooms adds keys, a preset, a setup and rules by its entries alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mtl import registries
from mtl.registries import entry, module_of, names

PACKAGE = {
    "entries.py": """
ENTRIES = {
    "meters": {"norms": "mtl.example.norms:NORMS"},
    "presets": {"length": "mtl.example.odd:LENGTH"},
    "setups": {"alone": "mtl.example.odd:alone"},
}
""",
    "norms.py": """
from typing import Annotated
from mtl.config.task_slots import Slot
from mtl.errors import InputError
from mtl.tasks.ranges import Range
from mtl.training.parts import Meter

class Norms(Meter):
    key = "norms_every"
    slot = Slot(
        Annotated[int, Range(0, 100)], 0,
        "Measure the norm of each head once per this many updates; 0: never.",
    )

    def used(self, config):
        return bool(config.get(self.key))

    def check(self, config, tasks):
        if config.norms_every and config.pruning == "fixed":
            raise InputError("norms_every and pruning=fixed: use one")

    def unused(self, config):
        return () if config.pruning == "none" else (self.key,)

    def meter(self, config, encoder, tasks):
        raise NotImplementedError

NORMS = Norms()
""",
    "odd.py": """
LENGTH = {"kind": "drawn", "classes": 9}

def alone(tasks):
    return [(f"{task}~a",) for task in tasks]
""",
}
PROGRAM = """
import sys
import mtl

mtl.__path__.append(sys.argv[1])
from pathlib import Path
from mtl.commands.help import help_of
from mtl.config.effective import counting_settings, only_used
from mtl.config.parse import configured
from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.runs.folder.code_fingerprint import used_modules
from mtl.study.config import Block, StudyConfig
from mtl.study.grid.grid import planned
from mtl.training.check import check_settings
from dataclasses import asdict, replace

def of(*words):
    return configured("mtl train", TrainConfig, words)

def refused(*words):
    try:
        check_settings(of(*words))
    except InputError as error:
        return str(error)

assert of("--tasks=length", "--length.draw=3").task("length").draw == 3
assert of("--tasks=length").task("length").classes == 9
assert refused("--norms_every=101") == "norms_every=101: use a number from 0 to 100"
assert refused("--norms_every=5", "--pruning=fixed", "--gates.masks=m") == (
    "norms_every and pruning=fixed: use one"
)
assert refused("--norms_every=5", "--tasks=pos~a,length") is None
assert "did you mean 'norms_every'" in str(refused("--norm_every=5"))
watched = of("--norms_every=5", "--tasks=pos~a,length")
assert counting_settings(asdict(watched))["norms_every"] == 5
assert "norms_every" not in counting_settings(asdict(TrainConfig()))
assert only_used(of("--norms_every=5", "--pruning=dynamic", "--tasks=pos,dep")).norms_every == 0
assert used_modules(asdict(watched))[1:] == ["mtl.example.norms"]
assert used_modules(asdict(of()))[1:] == []
study = StudyConfig(grid=(Block(("alone",)),), seeds=(1,), train=of("--tasks=pos,dep"))
assert [run.name for run in planned(study, Path("x"))] == ["pos~a-seed1", "dep~a-seed1"]
drawn = Block(("pos+length", "pos"), draws={"length": (1, 4)})
assert [run.name for run in planned(replace(study, grid=(drawn,)), Path("x"))] == [
    "pos-seed1", "pos+length-seed1", "pos+length-draw4-seed1",
]
assert "Measure the norm of each head" in help_of("train", "all")
assert not {"torch", "polars"} & set(sys.modules)
"""


def test_a_package_adds_keys_presets_and_setups_by_its_entries(tmp_path: Path) -> None:
    (tmp_path / "example").mkdir()
    for name, text in PACKAGE.items():
        (tmp_path / "example" / name).write_text(text)
    (tmp_path / "example" / "__init__.py").touch()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_every_entry_is_there() -> None:
    tables = {name: names(name) for name in registries.Registry.__args__}
    packages = tuple(f"mtl.{name}." for name in registries.packages())
    assert set(registries._entries()) <= set(tables)
    for registry, found in tables.items():
        for name in found:
            assert entry(registry, name) is not None
            assert module_of(registry, name).startswith(packages)

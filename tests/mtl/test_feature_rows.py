"""A folder adds commands, keys, a preset, a setup and rules by its module `feature` alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

from mtl.commands.command_table import COMMANDS
from mtl.features import Feature, features
from mtl.probes.measures.groups import GROUPS
from mtl.runs.figures.table import FIGURES

PACKAGE = {
    "feature.py": """
from mtl.features import Command, Feature, Keys

FEATURE = Feature(
    commands={"norms": Command("mtl.example.norms:norms", "print the norm of each head", after="probe")},
    keys={"norms_every": Keys(*(f"mtl.example.norms:{name}" for name in ("SLOT", "unused", "check")))},
    setups={"alone": "mtl.example.feature:alone"},
    presets={"length": {"kind": "drawn", "classes": 9}},
)

def alone(tasks):
    return [(f"{task}~a",) for task in tasks]
""",
    "norms.py": """
from typing import Annotated
from mtl.config.instances import Slot
from mtl.errors import InputError
from mtl.tasks.task import Range

SLOT = Slot(
    Annotated[int, Range(0, 100)], 0,
    "Measure the norm of each head once per this many updates; 0: never.",
)

def check(config):
    if config.norms_every and config.pruning == "fixed":
        raise InputError("norms_every and pruning=fixed: use one")

def unused(config):
    return config.pruning != "none"

def norms(run: str):
    \"\"\"Print the norm of each head.\"\"\"
    print(run)
""",
}
PROGRAM = """
import sys
import mtl

mtl.__path__.append(sys.argv[1])
from pathlib import Path
from mtl.commands.command_table import COMMANDS
from mtl.commands.help import help_of
from mtl.config.effective import counting_settings, only_used
from mtl.config.parse import configured
from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.features import features
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
if "study" in features():
    from mtl.study.config import GridBlock, StudyConfig
    from mtl.study.grid import planned

    study = StudyConfig(grid=(GridBlock(("alone",)),), seeds=(1,), train=of("--tasks=pos,dep"))
    assert [run.name for run in planned(study, Path("x"))] == ["pos~a-seed1", "dep~a-seed1"]
    drawn = GridBlock(("pos+length", "pos"), draws={"length": (1, 4)})
    assert [run.name for run in planned(replace(study, grid=(drawn,)), Path("x"))] == [
        "pos-seed1", "pos+length-seed1", "pos+length-draw4-seed1",
    ]
names = list(COMMANDS)
assert names.index("norms") == names.index("probe") + 1
assert "norms RUN" in help_of("norms")
assert "Measure the norm of each head" in help_of("train", "all")
assert not {"torch", "polars"} & set(sys.modules)
"""


def test_a_package_adds_keys_presets_and_setups_by_its_module(tmp_path: Path) -> None:
    (tmp_path / "example").mkdir()
    for name, text in PACKAGE.items():
        (tmp_path / "example" / name).write_text(text)
    (tmp_path / "example" / "__init__.py").touch()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_every_object_that_a_feature_names_is_there() -> None:
    for feature in features().values():
        commands, groups, pieces, keys = (
            getattr(feature, rows).values() for rows in ("commands", "measures", "evidence", "keys")
        )
        figures = [*feature.figures.values(), *(row for piece in pieces for row in piece.figures.values())]
        paths = [
            *(path for row in commands for path in (row.function, row.listing)),
            *(path for row in groups for path in (row.code, row.by_settings, row.check, row.shown)),
            *(path for row in figures for path in (row.draw, row.animate)),
            *(path for row in pieces for path in (row.table, row.of_report, row.answer, row.shown)),
            *(path for row in keys for path in (row.slot, row.unused, row.check, row.meter, row.start)),
            *feature.setups.values(),
            *feature.sources.values(),
            *feature.splitters.values(),
            *feature.tasks.values(),
            *(
                path
                for kind in feature.own_models.values()
                for path in (kind.encoder, kind.heads, kind.copies)
            ),
            *(path for row in feature.formats.values() for path in (row.read, row.paths)),
            *feature.models.values(),
            *(path for row in feature.head_records.values() for path in (row.read, row.put, row.start)),
        ]
        assert all(resolve_name(path) is not None for path in paths if path)


TABLES = {"commands": COMMANDS, "measures": GROUPS, "figures": FIGURES}


def _rows(feature: Feature, table: str) -> dict[str, Any]:
    pieces = feature.evidence.values() if table == "figures" else ()
    return {
        **getattr(feature, table),
        **{name: row for piece in pieces for name, row in piece.figures.items()},
    }


@pytest.mark.parametrize("table", TABLES)
def test_no_feature_has_its_place_by_another(table: str) -> None:
    """A row stands after one of the core or of its own feature, so that no folder's absence moves it."""
    of_features = {name: _rows(feature, table) for name, feature in features().items()}
    of_core = TABLES[table].keys() - {name for rows in of_features.values() for name in rows}
    for feature, rows in of_features.items():
        assert {row.after for row in rows.values()} <= {"", *of_core, *rows}, feature

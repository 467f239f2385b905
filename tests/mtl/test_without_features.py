"""Without the folder of one feature, every other module of product and tests is imported, and works."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest

from mtl.features import features
from tests.kit.without import copy_without
from tests.mtl.forked import ended, forked, printed

OURS = ("mtl", "tests", "benchmarks")
WORKING = (
    "tests/mtl/test_feature_rows.py",
    "tests/mtl/commands/test_startup.py::test_help_loads_nothing_heavy_and_does_little",
)
"""Tests that read all rows of features. `.ci/core` writes reports, without any feature."""


@pytest.mark.slow
@pytest.mark.parametrize("name", features())
def test_the_rest_works_without_a_feature(name: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    copy_without([name], copy)
    variables = {**os.environ, "PYTHONPATH": str(copy)}
    output = tmp_path / "output"
    with forked(__name__, [name], output, environment=variables, folder=copy) as process:
        assert ended(process, 280) == 0, printed(output)[-4000:]


def import_all(absent: str) -> None:
    """Import every module below the current folder; what this process has imported of them is forgotten."""
    for name in [name for name in sys.modules if name.split(".")[0] in OURS]:
        del sys.modules[name]
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(Path.cwd()))
    importlib.invalidate_caches()
    importlib.import_module("tests.conftest")
    assert absent not in importlib.import_module("mtl.features").features()
    roots = [Path("mtl"), Path("mtl/probes"), Path("mtl/tasks"), Path("tests"), Path("benchmarks")]
    for path in sorted({path for root in roots for path in root.rglob("*.py")}):
        if path.name != "__main__.py":
            module = importlib.import_module(".".join(path.with_suffix("").parts))
            assert Path(str(module.__file__)).is_relative_to(Path.cwd())


if __name__ == "__main__":
    import_all(sys.argv[1])
    imported = ["-o", "addopts=", "--assert=plain"]  # nothing is rewritten that is imported already
    sys.exit(pytest.main([*imported, "-q", "-p", "no:cacheprovider", *WORKING]))

"""Without the folder of one feature, every other module of product and tests is imported, and works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mtl.features import features
from tests.kit.without import copy_without

IMPORT_ALL = """
import importlib, sys
from pathlib import Path
from mtl.features import features
import tests.conftest

assert sys.argv[1] not in features()
roots = [Path("mtl"), Path("mtl/probes"), Path("mtl/tasks"), Path("tests"), Path("benchmarks")]
paths = {path for root in roots for path in root.rglob("*.py")}
for path in sorted(paths):
    if path.name != "__main__.py":
        importlib.import_module(".".join(path.with_suffix("").parts))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", features())
def test_the_rest_works_without_a_feature(name: str, tmp_path: Path) -> None:
    copy_without([name], tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}

    def python(*words: str) -> None:
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True,
            check=False, timeout=280,
        )  # fmt: skip
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]

    python("-c", IMPORT_ALL, name)
    python(
        "-m", "pytest", "-n", "0", "-q", "-m", "not slow", "-p", "no:cacheprovider",
        "tests/mtl/test_feature_rows.py", "tests/mtl/commands/test_startup.py",
    )  # fmt: skip

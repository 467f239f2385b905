"""The checks for a GPU run through on a CPU and write their page."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mtl.corpora.toy.corpus import write_toy


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_parts_are_on_the_page(tmp_path: Path):
    write_toy(tmp_path / "toy", 12, 6, 6, seed=1)
    words = ["--sentences=8", "--rounds=1", "--seeds=2", "--epochs=1", "--device=cpu"]
    words += [f"--corpus={tmp_path / 'toy'}", f"--out={tmp_path}"]
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *words], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    page = (tmp_path / "gpu.md").read_text()
    assert run.stdout.endswith(page + "\n")
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert {row["job"] for row in found["speed"]} >= {"training, five tasks", "evaluation, five tasks"}
    assert "importance, five tasks" in found["waits"]
    runs = found["curves"]["CPU, float32"]
    assert all(len(masks) == 14 for run in runs.values() for masks in run["masks"].values())
    assert "| CPU, float32: two seeds |" in page
    assert "| dep, epoch 1 |" in page
    assert "| test dep las |" in page

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
    words = ["--sentences=8", "--rounds=1", "--seeds=2", "--epochs=1", "--device=cpu", "--minutes=14"]
    words += [f"--corpus={tmp_path / 'toy'}", f"--out={tmp_path}"]
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *words], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    page = (tmp_path / "gpu.md").read_text()
    assert run.stdout.endswith(page + "\n")
    found = {
        part: json.loads((tmp_path / f"{part}.json").read_text()) for part in ("speed", "waits", "curves")
    }
    jobs = {(row["job"], row["precision"]) for row in found["speed"]}
    assert jobs >= {("training, five tasks", "32-true"), ("evaluation, five tasks", "32-true")}
    assert "importance, five tasks" in found["waits"]
    runs = found["curves"]["CPU, float32"]
    assert all(len(masks) == 14 for run in runs.values() for masks in run["masks"].values())
    assert "skipped" in page.split("## Speed")[0]
    assert "| CPU, float32: two seeds |" in page
    assert "| dep, epoch 1 |" in page
    assert "| test dep las |" in page


@pytest.mark.slow
def test_a_part_that_fails_and_one_that_takes_too_long_leave_the_others(tmp_path: Path):
    (tmp_path / "dev.jsonl").write_text("no JSON\n")
    words = ["--device=cpu", "--minutes=0.02", f"--corpus={tmp_path}", f"--out={tmp_path}"]
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *words, "--parts", "tests", "speed"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 1, run.stderr
    assert "tests: 1 s, stopped there\nspeed: 1 s, stopped there\n" in run.stdout
    assert "; speed 1 s, stopped there" in (tmp_path / "gpu.md").read_text()
    words[1] = "--minutes=5"
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *words, "--parts", "speed", "waits"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 1, run.stderr
    assert (tmp_path / "gpu.md").read_text().count(", exit code 1") == 2

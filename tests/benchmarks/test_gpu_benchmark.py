"""The checks for a GPU run through on a CPU and write their page."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import gpu
from mtl.corpora.toy.corpus import write_toy
from tests.mtl.forked import ended, forked, printed


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_parts_are_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Parts are forked here; the test below has them in processes of their own."""

    def in_fork(words: Sequence[str], seconds: float) -> str:
        with forked("benchmarks.gpu", words, tmp_path / "part") as process:
            assert ended(process, seconds) == 0, printed(tmp_path / "part")
        return "1 s"

    write_toy(tmp_path / "toy", 4, 2, 2, seed=1)
    words = ["--sentences=2", "--rounds=1", "--seeds=2", "--epochs=1", "--device=cpu", "--minutes=14"]
    words += [f"--corpus={tmp_path / 'toy'}", f"--out={tmp_path}", "--parts", "speed", "waits", "curves"]
    monkeypatch.setattr(sys, "argv", ["gpu", *words])
    monkeypatch.setattr(gpu, "in_process", in_fork)
    with pytest.raises(SystemExit, match=r"^0$"):
        gpu.main()
    page = (tmp_path / "gpu.md").read_text()
    found = {
        part: json.loads((tmp_path / f"{part}.json").read_text()) for part in ("speed", "waits", "curves")
    }
    jobs = {(row["job"], row["precision"]) for row in found["speed"]}
    assert jobs >= {("training, five tasks", "32-true"), ("evaluation, five tasks", "32-true")}
    assert "importance, five tasks" in found["waits"]
    runs = found["curves"]["CPU, float32"]
    assert all(len(masks) == 14 for run in runs.values() for masks in run["masks"].values())
    assert "| CPU, float32: two seeds |" in page
    assert "| dep, epoch 1 |" in page
    assert "| test dep las |" in page


@pytest.mark.slow
def test_a_part_that_fails_and_one_that_takes_too_long_leave_the_others(tmp_path: Path):
    (tmp_path / "dev.jsonl").write_text("no JSON\n")
    where, page = ["--device=cpu", f"--corpus={tmp_path}", f"--out={tmp_path}"], tmp_path / "gpu.md"
    for minutes, parts, code in (("0.02", ["waits", "speed"], 1), ("5", ["speed", "tests"], 1)):
        words = [*where, f"--minutes={minutes}", "--parts", *parts]
        with forked("benchmarks.gpu", words, tmp_path / "said") as process:
            assert ended(process, 280) == code
        said = printed(tmp_path / "said", "out")
        assert said.endswith(page.read_text() + "\n")
        if minutes == "0.02":
            assert "waits: 1 s, stopped there\nspeed: 1 s, stopped there\n" in said
            assert "; speed 1 s, stopped there" in page.read_text()
    assert page.read_text().count(", exit code 1") == 1
    assert "skipped" in page.read_text().split("## Speed")[0]

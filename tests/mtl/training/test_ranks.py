"""Several processes for one run: as many as it is for, and none misled by what the first one changes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import pytorch_lightning as pl

from mtl.config.schema import TrainerConfig
from mtl.errors import InputError
from mtl.runs.folder.run import Run
from mtl.training.assembly import trainer_for
from tests.mtl.forked import ended, forked, printed

WITHIN = 30.0
"""Seconds until no process of a run is left after one of them has died: 5 to end by itself, and slack."""


def test_what_lightning_refuses_is_one_line(monkeypatch, tmp_path):
    def refuse(**_: object) -> None:
        raise ValueError("no such GPU\nmore of it")

    monkeypatch.setattr(pl, "Trainer", refuse)
    config = TrainerConfig(devices=2, accelerator="cpu")
    with pytest.raises(InputError, match=r"^trainer.devices=2, trainer.num_nodes=1: no such GPU$"):
        trainer_for(config, Run(tmp_path), 1, 1, [])


def torchrun(*words: str) -> subprocess.CompletedProcess[str]:
    """Two processes of `mtl train`."""
    program = Path(sys.executable).with_name("torchrun")
    return subprocess.run(
        [
            str(program), "--no-python", "--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2",
            sys.executable, "-m", "mtl", "train", *words,
        ],
        capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


@pytest.mark.slow
def test_a_finished_run_is_overwritten_by_the_processes_of_torchrun(toy, tiny_encoder, tmp_path):
    words = [
        f"--runs={tmp_path}", "--name=run", f"--corpus.path={toy}", f"--encoder.name={tiny_encoder}",
        "--tasks=[pos]", "--max_epochs=1", "--trainer.accelerator=cpu", "--trainer.threads=1",
    ]  # fmt: skip
    alone = torchrun(*words)
    assert alone.returncode != 0
    assert "torchrun started 2 processes, but trainer.devices=1 times" in alone.stderr
    assert not (tmp_path / "run").exists()

    for seed, more in ((1, []), (2, ["--overwrite=true"])):
        done = torchrun(*words, "--trainer.devices=2", f"--seed={seed}", *more)
        assert done.returncode == 0, done.stderr
        assert "finished already" not in done.stdout
        assert "metrics.json" not in done.stdout
        assert len(re.findall(r"accuracy +│", done.stdout)) == 1, done.stdout
        status = json.loads((tmp_path / "run" / "status.json").read_text())
        assert (status["state"], status["seed"]) == ("finished", seed)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raises", "rank 1: RuntimeError: the disk is full"),
        ("exits", "the process of rank 1 ended with exit code 3"),
        ("SIGKILL", "the process of rank 1 was killed (SIGKILL)"),
        ("SIGSEGV", "the process of rank 1 was killed (SIGSEGV)"),
    ],
)
def test_a_rank_that_dies_ends_the_others_with_its_own_error(how, said, rank, toy, tiny_encoder, tmp_path):
    words = [
        f"--runs={tmp_path}", "--name=run", f"--corpus.path={toy}", f"--encoder.name={tiny_encoder}",
        "--tasks=pos", "--max_epochs=3", "--batch.sentences=4", "--trainer.accelerator=cpu",
        "--trainer.threads=1", "--trainer.devices=2",
    ]  # fmt: skip
    note = tmp_path / "dead"
    given = [how, str(rank), str(note), *words]
    with forked("tests.mtl.training.dying", given, tmp_path) as process:
        code = ended(process, 200)
        until = time.monotonic() + WITHIN
        while group_is_there(process.pid) and time.monotonic() < until:
            time.sleep(0.2)
        assert note.exists(), printed(tmp_path)
        assert time.time() - note.stat().st_mtime < WITHIN
        assert not group_is_there(process.pid)
    assert code != 0
    if rank == 1:
        status = json.loads((tmp_path / "run" / "status.json").read_text())
        assert status["state"] == "failed"
        assert said in status["error"]
        assert said in printed(tmp_path)
    elif how == "raises":
        assert "RuntimeError: the disk is full" in printed(tmp_path)


def group_is_there(number: int) -> bool:
    """Whether any process of a group is left."""
    try:
        os.killpg(number, 0)
    except ProcessLookupError:
        return False
    return True

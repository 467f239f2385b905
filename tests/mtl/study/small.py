"""A study small enough for tests: a tiny random encoder, a generated corpus, one epoch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import yaml

SETTINGS = {"max_epochs": 1, "batch": {"sentences": 16}, "trainer": {"accelerator": "cpu", "threads": 1}}


def write(path: Path, corpus: Path, encoder: Path, **study) -> Path:
    """A study's file; its folder is beside it, in `studies`."""
    train = (
        SETTINGS
        | {"corpus": {"path": str(corpus)}, "encoder": {"name": str(encoder)}}
        | study.pop("train", {})
    )
    content = {
        "studies": str(path.parent / "studies"), "seeds": [1],
        "grid": [{"setups": ["STL"], "masks": ["none"]}],
        "train": {"tasks": ["pos", "ner"]} | train, **study,
    }  # fmt: skip
    path.write_text(yaml.safe_dump(content))
    return path


def command(file: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "mtl", "study", str(file), *more]


def carry_out(file: Path, *more: str, code: int = 0) -> str:
    """What `mtl study` prints, in its own process."""
    done = subprocess.run(
        command(file, *more), capture_output=True, text=True, timeout=280, check=False,
        env={**os.environ, "COLUMNS": "200", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def folder(file: Path) -> Path:
    return file.parent / "studies" / file.stem


def progress(file: Path) -> dict[str, dict]:
    """The progress of each job."""
    places = (folder(file) / "jobs").glob("*.progress.json")
    return {place.name.removesuffix(".progress.json"): json.loads(place.read_text()) for place in places}


def metrics(file: Path) -> dict[str, dict]:
    """The scores of each run."""
    return {
        place.parent.name: json.loads(place.read_text())
        for place in (folder(file) / "runs").glob("*/metrics.json")
    }

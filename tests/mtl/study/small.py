"""A study small enough for tests: a tiny random encoder, a generated corpus, one epoch."""

from __future__ import annotations

import json
import os
import sys
from contextlib import AbstractContextManager
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from unittest.mock import patch

import yaml

from mtl.commands.main import main
from tests.mtl.forked import ended, forked, printed

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


def begun(file: Path, *more: str, module: str = __name__) -> AbstractContextManager[ForkServerProcess]:
    """`mtl study`, forked with two workers; what it prints is in FILE.out and FILE.err.

    Figures stay empty, unless the module is `mtl` itself: drawing them takes as long as all the rest.
    """
    environment = {**os.environ, "COLUMNS": "200"}
    return forked(module, ["study", str(file), *more], file, environment=environment, workers=2)


def carry_out(file: Path, *more: str, code: int = 0, module: str = __name__) -> str:
    """What `mtl study` prints."""
    with begun(file, *more, module=module) as process:
        assert ended(process, 280) == code, printed(file)
    return printed(file)


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


if __name__ == "__main__":
    empty = patch("mtl.runs.figures.drawn.render", lambda *_, **__: b"")
    with empty, patch("mtl.probes.report.data.render", lambda *_: b"<svg/>"):
        sys.exit(main())

"""Reports as pages, and a headless Chromium, driven by Playwright, to look at them."""

from __future__ import annotations

import shutil

import numpy as np
import polars as pl
import pytest

from mtl.commands.report import report
from mtl.probes.tables import heads_table
from tests.mtl.studies import Study

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
LAYERS, HEADS = 4, 6
"""Of most of the pages."""


@pytest.fixture(scope="session")
def address(tmp_path_factory):
    folder = Study(tmp_path_factory.mktemp("report") / "study", LAYERS, HEADS, cost=0.01).small()
    report(folder)
    return (folder / "report.html").as_uri()


@pytest.fixture(scope="module")
def browser():
    """Ends with the file's tests, since Playwright keeps a loop of asyncio running in this thread."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install playwright")
    if CHROMIUM is None:
        pytest.skip("no chromium: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture(scope="session")
def kinds_address(tmp_path_factory):
    """A report on three kinds of attention, with a measure that is no skill."""
    study = Study(tmp_path_factory.mktemp("kinds") / "study", 6, 3)
    folder = study.run(["pos"], 1)
    path = folder / "heads.parquet"
    skills, provenance = heads_table.read_heads_table(path)
    value = np.arange(18.0).reshape(1, 6, 3) / 100
    confidence = heads_table.rows("confidence", "pos", [""], value, np.array([9]))
    heads_table.write_heads_table(path, pl.concat([skills, confidence]), provenance)
    report(study.with_kinds())
    return (study.root / "report.html").as_uri()


@pytest.fixture(scope="session")
def long_address(tmp_path_factory):
    """A report on runs with very long names, heads that a target forced open, and what heads are worth."""
    study = Study(tmp_path_factory.mktemp("long") / "study", LAYERS, HEADS)
    for seed in (1, 2, 3):
        for task in ("pos", "dep"):
            folder = study.run([task], seed, name=f"{task}{seed}" + "x" * 100)
            study.force(folder, {task: 2})
            path = folder / "heads.parquet"
            skills, provenance = heads_table.read_heads_table(path)
            rows = [
                heads_table.rows(name, task, [""], study.random.random((1, LAYERS, HEADS)), np.array([90]))
                for name in ("importance", "ablation")
            ]
            heads_table.write_heads_table(path, pl.concat([skills, *rows]), provenance)
        study.run(["pos", "dep"], seed, scope="per_task", name=f"joint{seed}" + "-y" * 50)
    report(study.root)
    return (study.root / "report.html").as_uri()


@pytest.fixture(scope="session")
def named(tmp_path_factory):
    """Reports on two tasks of one's own, by the number of letters in the names of tasks and runs."""
    addresses = {}
    for letters in (3, 8, 20):
        study = Study(tmp_path_factory.mktemp("named") / "study", LAYERS, HEADS)
        names = [first + "wm_8w"[: letters - 1].ljust(letters - 1, "w") for first in "nw"]
        instances = {name: {"kind": "tags", "layer": "tags"} for name in names}
        for known in (study.labels, study.wish, study.able):
            known.update(zip(names, (known["pos"], known["dep"]), strict=True))
        for seed in (1, 2, 3):
            for tasks in ([names[0]], [names[1]], names):
                for pruning in ("none", "dynamic"):
                    name = f"{len(tasks)}{tasks[0][0]}{pruning[0]}{seed}".ljust(letters, "x")
                    folder = study.run(tasks, seed, pruning=pruning, name=name, instances=instances)
                    if pruning == "dynamic":
                        study.force(folder, dict.fromkeys(tasks, 2))
        report(study.root)
        addresses[letters] = (study.root / "report.html").as_uri()
    return addresses

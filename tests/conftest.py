"""Shared fixtures: small corpora, and no network."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Generator, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jaxtyping
import pytest
from hypothesis import HealthCheck, settings

# The tests run side by side; threads on top of that only get in each other's way. Torch reads this when it is
# imported, for all threads of Python.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("POLARS_MAX_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from tests import annotations

jaxtyping.jaxtyped = annotations.jaxtyped

# The same examples everywhere, and no limit in seconds: machines of CI are slow at times.
settings.register_profile(
    "mtl", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("mtl")

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

SHARED = Path(__file__).resolve().parents[2] / "shared"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Tests must pass in any order: `--shuffle=SEED` draws one, of the files and of the tests in each."""
    parser.addoption(
        "--shuffle", type=int, metavar="SEED", help="run files and their tests in a random order"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Draw the order; tests of one file stay together, since they share what is made for the file."""
    seed = config.getoption("--shuffle")
    if seed is not None:
        draw = random.Random(seed)
        by_file: dict[Path, list[pytest.Item]] = {}
        for item in items:
            by_file.setdefault(item.path, []).append(item)
        files = list(by_file.values())
        draw.shuffle(files)
        for tests in files:
            draw.shuffle(tests)
        items[:] = [item for tests in files for item in tests]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays: it is not searched for garbage meanwhile, and never again.

    That takes a fifth of the time of imports, and of every small training, which ends with a collection.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def heap_frozen() -> Iterator[None]:
    """What a file of tests leaves behind (modules, caches) is not searched for garbage after it.

    A process that runs thousands of tests keeps millions of objects, and every training ends with a search.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def as_installed() -> Iterator[None]:
    """Annotated types are not checked, as where the package is installed: wrong arguments get that far."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(autouse=True, scope="session")
def units_declared() -> Iterator[None]:
    """Every column of numbers in every table for papers that any test makes the program write has a unit."""
    from mtl.probes.tables import table_files
    from mtl.probes.tables.table_files import undeclared

    write = table_files.write_table_file

    def checked(
        table: Any, path: Path, kind: str, *given: Any, units: Any = MappingProxyType({}), **named: Any
    ) -> None:
        assert kind != "tex" or undeclared(table, units) == [], path
        write(table, path, kind, *given, units=units, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_files, "write_table_file", checked)
        yield


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures inside a report are made, but stay empty: drawing them takes as long as all the rest."""
    undraw(monkeypatch)


def undraw(patch: pytest.MonkeyPatch) -> None:
    """Leave figures inside a report empty until the patch ends."""
    patch.setattr("mtl.probes.report.data.render", lambda figure, kind: b"<svg/>")
    patch.setattr("mtl.runs.figures.drawn.render", lambda figure, kind, notes=(): b"")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The figures of the last report, by file name, as they were saved."""
    saved: dict[str, Any] = {}

    def save(figure: Any, out: Path, tables: bool = True) -> list[Path]:
        saved[out.stem] = figure
        out.parent.mkdir(exist_ok=True)
        out.write_bytes(b"")
        return [out]

    monkeypatch.setattr("mtl.runs.report.write.save", save)
    return saved


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small generated corpus."""
    from mtl.corpora.toy.corpus import write_toy

    folder = tmp_path_factory.mktemp("toy")
    write_toy(folder, 120, 30, 30, seed=1)
    return folder


@pytest.fixture(scope="session")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with few sentences of such a corpus, for trainings that need no more."""
    from mtl.corpora.toy.corpus import write_toy

    folder = tmp_path_factory.mktemp("few")
    write_toy(folder, 24, 8, 8, seed=1)
    return folder


@pytest.fixture(scope="session")
def upstream() -> Path:
    """The real files of EWT in five layers, where they are."""
    folder = SHARED / "corpora"
    if not folder.is_dir():
        pytest.skip(f"no EWT-5 source files at {folder}: they are not part of the repository")
    return folder


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny random BERT, as a hub would give it."""
    from tests.mtl import tiny

    folder = tmp_path_factory.mktemp("bert")
    tiny.encoder("bert", dtype=torch.float32).save(folder)
    (folder / "encoder.json").unlink()
    return folder

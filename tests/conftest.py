"""Shared fixtures: small corpora, and no network."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import jaxtyping
import pytest
import torch
from hypothesis import HealthCheck, settings

from tests import annotations

os.environ.setdefault("HF_HUB_OFFLINE", "1")
jaxtyping.jaxtyped = annotations.jaxtyped

# The same examples everywhere, and no limit in seconds: machines of CI are slow at times.
settings.register_profile(
    "mtl", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("mtl")

# The tests run side by side; threads on top of that only get in each other's way.
torch.set_num_threads(1)
os.environ.setdefault("POLARS_MAX_THREADS", "1")

SHARED = Path(__file__).resolve().parents[2] / "shared"


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


@pytest.fixture
def as_installed() -> Iterator[None]:
    """Annotated types are not checked, as where the package is installed: wrong arguments get that far."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, object], None]]:
    """Makes a default one that was changed, by its key and the value of before."""
    from mtl.config import effective

    def change(key: str, value: object) -> None:
        monkeypatch.setitem(effective.CHANGED_DEFAULTS, key, value)
        effective.reference.cache_clear()
        effective._defaults.cache_clear()

    yield change
    effective.reference.cache_clear()
    effective._defaults.cache_clear()


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures inside a report are made, but stay empty: drawing them takes as long as all the rest."""
    monkeypatch.setattr("mtl.probes.report.embedded.render", lambda figure, kind: b"<svg/>")


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small generated corpus."""
    from mtl.corpora.toy.corpus import write_toy

    folder = tmp_path_factory.mktemp("toy")
    write_toy(folder, 120, 30, 30, seed=1)
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

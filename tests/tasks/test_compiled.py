"""Compiled functions and their cache, which may have no place, or one that fails."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import pytest
from numba.core.caching import CacheImpl, IndexDataCacheFile

from mtl.tasks.compiled import compiled

ROOT = Path(__file__).parents[2]


def double(number: int) -> int:
    return number * 2


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    return tmp_path


def test_the_next_process_finds_the_function_on_disk(cache: Path) -> None:
    assert compiled(double)(4) == 8
    again = compiled(double)
    assert again(4) == 8
    assert again.stats.cache_hits


def test_without_a_folder_for_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])
    with pytest.raises(RuntimeError, match="no locator available"):
        numba.njit(cache=True)(double)
    assert compiled(double)(4) == 8
    assert compiled(inline="always")(double)(4) == 8


def _damage(path: Path) -> None:
    path.write_bytes(b"damaged")


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def _block(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize("harm", [_damage, _cut, _block])
def test_files_of_the_cache_that_cannot_be_used(cache: Path, harm: Callable[[Path], Any], ending) -> None:
    assert compiled(double)(4) == 8
    found = list(cache.rglob(f"*.{ending}"))
    assert found
    for path in found:
        harm(path)
    assert compiled(double)(4) == 8


def test_a_full_disk(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Any, path: str) -> Any:
        raise OSError(28, "No space left on device", path)

    monkeypatch.setattr(IndexDataCacheFile, "_open_for_write", full)
    assert compiled(double)(4) == 8


def test_no_function_is_compiled_in_another_way() -> None:
    found = [
        path
        for room in ("mtl", "tasks", "probes")
        for path in (ROOT / room).rglob("*.py")
        if re.search(r"\bn?jit\(|@(numba\.)?n?jit\b", path.read_text()) and path.name != "compiled.py"
    ]
    assert not found

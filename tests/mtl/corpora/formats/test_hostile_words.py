"""Hostile words come back from every format as they were written, or in one error with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtl.corpora.formats.table import FORMATS
from tests.mtl.corpora.formats.hostile import UNREADABLE, WRITERS, run


def test_every_format_has_a_writer() -> None:
    assert set(WRITERS) | set(UNREADABLE) == set(FORMATS)


@pytest.mark.parametrize("name", WRITERS)
def test_words_come_back_or_the_line_is_named(name: str, tmp_path: Path) -> None:
    back, refused = run(name, 200, "fast", tmp_path)
    assert back >= 60
    assert refused < 140


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_many_words_come_back_or_the_line_is_named(name: str, tmp_path: Path) -> None:
    back, refused = run(name, 2000, "slow", tmp_path)
    assert back > refused / 3

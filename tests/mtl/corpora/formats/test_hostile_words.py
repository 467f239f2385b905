"""Hostile words come back from every format as they were written, or in one error with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtl.corpora.readers import FORMATS
from tests.mtl.corpora.formats.hostile import UNREADABLE, WRITERS, run


def test_every_format_has_a_writer() -> None:
    assert set(WRITERS) | set(UNREADABLE) == set(FORMATS)


@pytest.mark.parametrize("name", WRITERS)
def test_words_come_back_or_the_line_is_named(name: str, tmp_path: Path) -> None:
    back, refused = run(name, 200, "fast", tmp_path)
    assert back >= 60
    assert refused < 140


AS_OTHERS = {"glue-cola", "glue-mrpc", "glue-rte", "glue-qnli"}
"""Formats that are read as those of sst2 (one sentence) and mnli (two) are, with other classes."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in WRITERS if name not in AS_OTHERS])
def test_many_words_come_back_or_the_line_is_named(name: str, tmp_path: Path) -> None:
    """Of 79 hostile words, one is in a sentence on average: each comes some nine times in a format."""
    back, refused = run(name, 700, "slow", tmp_path)
    assert back > refused / 3

"""Patterns in paths: which names are patterns, and what they find."""

from __future__ import annotations

from mtl.corpora.find_files import matching


def test_a_part_of_a_path_is_a_pattern_only_where_nothing_has_that_name(tmp_path):
    for name in ("lr1", "lr[1]", "lr2", "a [x]/b1", "a [x]/b[1]", "a x/b1"):
        (tmp_path / name).mkdir(parents=True)

    def found(pattern: str) -> list[str]:
        return [path.relative_to(tmp_path).as_posix() for path in matching(tmp_path / pattern)]

    assert found("lr[1]") == ["lr[1]"]
    assert found("lr[12]") == ["lr1", "lr2"]
    assert found("a [x]/b*") == ["a [x]/b1", "a [x]/b[1]"]
    assert found("a [x]/b[1]") == ["a [x]/b[1]"]
    assert found("a [y]/b1") == found("a**") == []
    assert found("**/b1") == ["a [x]/b1", "a x/b1"]

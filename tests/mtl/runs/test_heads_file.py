from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from mtl.errors import InputError
from mtl.runs.heads_file import forget_measures, write_measures
from probes import heads_table as table


def rows(measure: str, value: float) -> pl.DataFrame:
    return table.rows(measure, "pos", ["NN"], np.full((1, 1, 2), value), np.array([3]))


def test_only_the_replaced_measures_change_and_provenance_of_others_stays(tmp_path: Path) -> None:
    path = tmp_path / "run" / "heads.parquet"
    probed = {"split": "test", "precision": "bf16-true"}
    probes = pl.concat([rows("attention", 1.0), rows("clustering", 2.0)])
    write_measures(path, probes, ["attention", "clustering"], probed)
    write_measures(path, rows("relevance", 3.0), ["relevance"], {"relevance.split": "dev"})
    write_measures(path, rows("relevance", 4.0), ["relevance"], {"relevance.split": "train"})
    heads, provenance = table.read(path)
    assert heads["measure"].to_list() == ["attention"] * 2 + ["clustering"] * 2 + ["relevance"] * 2
    assert heads["value"].to_list() == [1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
    assert provenance == probed | {"relevance.split": "train"}

    # A measure of which no row is made any more leaves none; a key set to None goes.
    again: dict[str, str | None] = {"split": "dev", "precision": None}
    write_measures(path, rows("attention", 5.0), ["attention", "clustering"], again)
    heads, provenance = table.read(path)
    assert heads["value"].to_list() == [4.0, 4.0, 5.0, 5.0]
    assert provenance == {"split": "dev", "relevance.split": "train"}


def test_forgetting_the_last_measure_removes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "heads.parquet"
    both = pl.concat([rows("attention", 1.0), rows("relevance", 2.0)])
    write_measures(path, both, ["attention", "relevance"], {"split": "test"})
    forget_measures(path, ["attention"])
    heads, provenance = table.read(path)
    assert heads["measure"].unique().to_list() == ["relevance"]
    assert provenance == {"split": "test"}
    forget_measures(path, ["relevance"])
    assert not path.exists()


def test_a_file_that_is_no_table_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "heads.parquet"
    path.write_text("not a table")
    with pytest.raises(InputError, match="cannot be read"):
        write_measures(path, rows("attention", 1.0), ["attention"], {})
    assert path.read_text() == "not a table"
    with pytest.raises(ValueError, match="rows of 'attention'"):
        write_measures(tmp_path / "new.parquet", rows("attention", 1.0), ["relevance"], {})
    assert list(tmp_path.iterdir()) == [path]

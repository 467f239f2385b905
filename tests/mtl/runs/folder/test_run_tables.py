""""""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from mtl.analysis.trained import KeyedTable
from mtl.errors import InputError
from mtl.probes.tables import heads_table as table
from mtl.runs.folder.run import Run
from mtl.runs.folder.run_tables import forget_measures, write_measures
from mtl.workers.lease import Holder


def rows(measure: str, value: float) -> pl.DataFrame:
    return table.rows(measure, "pos", ["NN"], np.full((1, 1, 2), value), np.array([3]))


def test_only_the_replaced_measures_change_and_provenance_of_others_stays(tmp_path: Path) -> None:
    path = tmp_path / "run" / "heads.parquet"
    probed = {"split": "test", "precision": "bf16-true"}
    probes = pl.concat([rows("attention", 1.0), rows("clustering", 2.0)])
    write_measures(path, probes, ["attention", "clustering"], probed)
    write_measures(path, rows("importance", 3.0), ["importance"], {"importance.split": "dev"})
    write_measures(path, rows("importance", 4.0), ["importance"], {"importance.split": "train"})
    heads, provenance = table.read_heads_table(path)
    assert heads["measure"].to_list() == ["attention"] * 2 + ["clustering"] * 2 + ["importance"] * 2
    assert heads["value"].to_list() == [1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
    assert provenance == probed | {"importance.split": "train"}

    # A measure of which no row is made any more leaves none; a key set to None goes.
    again: dict[str, str | None] = {"split": "dev", "precision": None}
    write_measures(path, rows("attention", 5.0), ["attention", "clustering"], again)
    heads, provenance = table.read_heads_table(path)
    assert heads["value"].to_list() == [4.0, 4.0, 5.0, 5.0]
    assert provenance == {"split": "dev", "importance.split": "train"}


def test_forgetting_the_last_measure_removes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "heads.parquet"
    both = pl.concat([rows("attention", 1.0), rows("importance", 2.0)])
    write_measures(path, both, ["attention", "importance"], {"split": "test"})
    forget_measures(path, ["attention"])
    heads, provenance = table.read_heads_table(path)
    assert heads["measure"].unique().to_list() == ["importance"]
    assert provenance == {"split": "test"}
    forget_measures(path, ["importance"])
    assert not path.exists()


def test_a_file_that_is_no_table_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "heads.parquet"
    path.write_text("not a table")
    with pytest.raises(InputError, match="cannot be read"):
        write_measures(path, rows("attention", 1.0), ["attention"], {})
    assert path.read_text() == "not a table"
    with pytest.raises(ValueError, match="rows of 'attention'"):
        write_measures(tmp_path / "new.parquet", rows("attention", 1.0), ["importance"], {})
    assert list(tmp_path.iterdir()) == [path]


WRITER = """
import sys, time
from pathlib import Path
from tests.mtl.runs.folder.test_run_tables import write_all
write_all(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
"""


PARTS = pl.Schema({"by": pl.String, "draw": pl.Int32, "value": pl.Float64})


def parts_in(folder: Path) -> KeyedTable:
    return KeyedTable(folder / "parts.parquet", PARTS, "mtl parts")


def write_all(folder: Path, name: str, start: float) -> None:
    """Write what a command writes, from a given time on: measures, parts of a table, and the status."""
    time.sleep(max(0.0, start - time.time()))
    part = pl.DataFrame([{"by": name, "draw": 0, "value": 0.5}], schema=PARTS)
    for number in range(5):
        measure = f"{name}-{number}"
        write_measures(
            folder / "heads.parquet", rows(measure, float(number)), [measure], {f"{measure}.split": "dev"}
        )
        parts_in(folder).put({"by": name, "draw": number}, "key", part.with_columns(draw=number))
        Run(folder).update_status({measure: number})


def written(folder: Path) -> set[str]:
    """The names that a writer left in all three files."""
    heads, provenance = table.read_heads_table(folder / "heads.parquet")
    parts = pl.read_parquet(folder / "parts.parquet")
    names = [f"{by}-{draw}" for by, draw in parts.select("by", "draw").iter_rows()]
    assert set(heads["measure"]) == {key.removesuffix(".split") for key in provenance} == set(names)
    assert set(Run(folder).status()) == {*names, "state"}
    return set(names)


def test_threads_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    barrier = threading.Barrier(4)
    failures: list[BaseException] = []

    def work(name: str) -> None:
        try:
            barrier.wait()
            write_all(tmp_path, name, 0.0)
        except BaseException as error:  # the thread's own, which would otherwise be printed only
            failures.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert written(tmp_path) == {f"{name}-{number}" for name in "abcd" for number in range(5)}
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "heads.parquet", "parts.parquet", "status.json",
    ]  # fmt: skip


@pytest.mark.slow
def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    start = time.time() + 10
    root = Path(__file__).parents[4]
    processes = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), name, str(start)], cwd=root)
        for name in "ab"
    ]
    assert [process.wait(timeout=250) for process in processes] == [0, 0]
    assert written(tmp_path) == {f"{name}-{number}" for name in "ab" for number in range(5)}


def test_a_killed_holder_of_the_lock_does_not_block_the_next(tmp_path: Path) -> None:
    path = tmp_path / "heads.parquet"
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    dead = dataclasses.replace(Holder.me(), pid=done.pid, started="0")
    (tmp_path / ".heads.parquet.lock").write_text(json.dumps(dataclasses.asdict(dead)))
    write_measures(path, rows("attention", 1.0), ["attention"], {})
    assert list(tmp_path.iterdir()) == [path]

"""The tables of pruning curves on disk, whose parts are replaced one by one or reused."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from mtl.errors import as_input_error
from mtl.files import whole_file
from mtl.probes import curve_table
from mtl.probes.table_files import write_parquet
from mtl.runs.heads_file import require_finite
from mtl.workers.lease import changing

Part = Mapping[str, str | int]
"""Values of columns that select a part of a table."""


@dataclass(frozen=True)
class KeyedTable:
    """A table in a run's folder, in parts; each part has a key, a hash of what it was made from.

    A killed process leaves finished parts and beginnings of parts; the next process continues from them.
    """

    path: Path

    def read(self, part: Part, key: str) -> pl.DataFrame:
        """The rows of a part; none if its key is another one."""
        table, keys = self._all()
        if keys.get(_name(part)) != key:
            return table.clear()
        return table.filter(curve_table.part_of(table, part))

    def holds(self, part: Part, key: str) -> bool:
        """Whether there is a part with this key."""
        return self._all()[1].get(_name(part)) == key

    def put(self, part: Part, key: str, rows: pl.DataFrame) -> None:
        """Replace the rows and the key of a part."""
        require_finite(rows, self.path)
        with changing(self.path):
            table, keys = self._all()
            others = table.filter(~curve_table.part_of(table, part))
            fitting = rows.select(table.columns).cast(table.schema)
            self._write(pl.concat([others, fitting]), {**keys, _name(part): key})

    def forget(self, part: Part) -> None:
        """Remove all parts with these values."""
        with changing(self.path):
            table, keys = self._all()
            gone = [name for name in keys if set(part.items()) <= set(json.loads(name).items())]
            if gone:
                rest = {name: key for name, key in keys.items() if name not in gone}
                self._write(table.filter(~curve_table.part_of(table, part)), rest)

    def draws(self, by: str, task: str) -> Collection[int]:
        """The numbers of the draws of a method that are in the table."""
        table, _ = self._all()
        return set(table.filter(curve_table.part_of(table, {"by": by, "task": task}))["draw"])

    def _all(self) -> tuple[pl.DataFrame, dict[str, str]]:
        if not self.path.exists():
            return pl.DataFrame(schema=curve_table.SCHEMAS[self.path.name]), {}
        with as_input_error():
            table, keys = curve_table.read(self.path)
        return table, {name: key for name, key in keys.items() if name.startswith("{")}

    def _write(self, table: pl.DataFrame, keys: Mapping[str, str]) -> None:
        with whole_file(self.path) as temporary:
            write_parquet(table, temporary, keys)


@dataclass(frozen=True)
class CurveFiles:
    """The three tables of a run."""

    folder: Path

    @property
    def scores(self) -> KeyedTable:
        """curve.parquet, in parts of a method, draw, task and number of epochs."""
        return KeyedTable(self.folder / "curve.parquet")

    @property
    def orders(self) -> KeyedTable:
        """curve_heads.parquet, in parts of a method, draw and task."""
        return KeyedTable(self.folder / "curve_heads.parquet")

    @property
    def times(self) -> KeyedTable:
        """curve_time.parquet, in parts of a method, draw and task."""
        return KeyedTable(self.folder / "curve_time.parquet")

    def begin(self, by: str, draws: int, task: str) -> None:
        """Remove draws of the method with a number of `draws` or more, left by an earlier call."""
        for table in (self.scores, self.orders, self.times):
            for draw in table.draws(by, task):
                if draw >= draws:
                    table.forget(part(by, draw, task))

    def begin_order(self, by: str, draw: int, task: str, key: str) -> None:
        """Remove the draw's parts if they were made from an order of heads with another key."""
        rests = part(by, draw, task)
        if not self.orders.holds(rests, key):
            for table in (self.scores, self.orders, self.times):
                table.forget(rests)


def part(by: str, draw: int, task: str, trained_epochs: int | None = None) -> dict[str, str | int]:
    """The part of a method's draw and a task; parts of curve.parquet also have the number of epochs."""
    values: dict[str, str | int] = {"by": by, "draw": draw, "task": task}
    return values if trained_epochs is None else {**values, "trained_epochs": trained_epochs}


def _name(part: Part) -> str:
    return json.dumps(dict(sorted(part.items())))

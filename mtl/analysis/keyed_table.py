"""A table of results in parts that are replaced one by one, from which a stopped command resumes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from mtl.errors import InputError
from mtl.files import whole_file
from mtl.probes.tables.curve_table import part_of
from mtl.probes.tables.table_files import read_complete, write_parquet
from mtl.runs.folder.heads_file import require_finite
from mtl.runs.folder.run import mark_of
from mtl.workers.lease import changing

Part = Mapping[str, str | int]
"""Values of columns that select a part of a table; without values, the whole table."""


@dataclass(frozen=True)
class KeyedTable:
    """A table in a file, in parts; each part has a key, a hash of what it was made from.

    A killed process leaves finished and unfinished parts; the next process continues from them. A part with
    another key, such as one of an older version, is not read.
    """

    path: Path
    schema: Mapping[str, Any]
    command: str
    """What makes the table, for messages: `mtl curve`."""
    scratch: bool = False
    """Whether the file is deleted when the command ends. If so, a damaged one is ignored; if not, it is an
    `InputError`."""

    def read(self, part: Part, key: str) -> pl.DataFrame:
        """The rows of a part; none if it has another key."""
        table, keys = self._all()
        if keys.get(_name(part)) != key:
            return table.clear()
        return table.filter(part_of(table, part))

    def holds(self, part: Part, key: str) -> bool:
        """Whether there is a part with this key."""
        return self._all()[1].get(_name(part)) == key

    def put(self, part: Part, key: str, rows: pl.DataFrame) -> None:
        """Replace the rows and the key of a part."""
        require_finite(rows, self.path)
        with changing(self.path):
            table, keys = self._all()
            others = table.filter(~part_of(table, part))
            fitting = rows.select(table.columns).cast(table.schema)
            self._write(pl.concat([others, fitting]), {**keys, _name(part): key})

    def forget(self, part: Part) -> None:
        """Remove all parts that have these values."""
        with changing(self.path):
            table, keys = self._all()
            gone = [name for name in keys if set(part.items()) <= set(json.loads(name).items())]
            if gone:
                rest = {name: key for name, key in keys.items() if name not in gone}
                self._write(table.filter(~part_of(table, part)), rest)

    def values(self, column: str, part: Part) -> set[int]:
        """The values of a column in the rows of a part, whatever its key."""
        table, _ = self._all()
        return set(table.filter(part_of(table, part))[column])

    def _all(self) -> tuple[pl.DataFrame, dict[str, str]]:
        if not self.path.exists():
            return pl.DataFrame(schema=self.schema), {}
        try:
            table, keys = read_complete(self.path, self.schema, self.command)
        except ValueError as error:
            if self.scratch:
                return pl.DataFrame(schema=self.schema), {}
            raise InputError(str(error)) from error
        return table, {name: key for name, key in keys.items() if name.startswith("{")}

    def _write(self, table: pl.DataFrame, keys: Mapping[str, str]) -> None:
        with whole_file(self.path) as temporary:
            write_parquet(table, temporary, {**keys, **mark_of(self.path.parent)})


def _name(part: Part) -> str:
    return json.dumps(dict(sorted(part.items())))

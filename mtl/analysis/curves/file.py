"""The tables of pruning curves on disk, whose parts are replaced one by one or reused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mtl.analysis.keyed_table import KeyedTable
from mtl.probes.tables.curve_table import SCHEMAS


@dataclass(frozen=True)
class CurveFiles:
    """The three tables of a run."""

    folder: Path

    @property
    def scores(self) -> KeyedTable:
        """curve.parquet, in parts of a method, draw, task and number of epochs."""
        return self._table("curve.parquet")

    @property
    def orders(self) -> KeyedTable:
        """curve_heads.parquet, in parts of a method, draw and task."""
        return self._table("curve_heads.parquet")

    @property
    def times(self) -> KeyedTable:
        """curve_time.parquet, in parts of a method, draw and task."""
        return self._table("curve_time.parquet")

    def _table(self, name: str) -> KeyedTable:
        return KeyedTable(self.folder / name, SCHEMAS[name], "mtl curve")

    def begin(self, by: str, draws: int, task: str) -> None:
        """Remove draws of the method with a number of `draws` or more, left by an earlier call."""
        for table in (self.scores, self.orders, self.times):
            for draw in table.values("draw", {"by": by, "task": task}):
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

"""The tables of pruning curves on disk; their parts are reused or replaced one by one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mtl.analysis.keyed_table import KeyedTable
from mtl.probes.tables.curve_table import SCHEMAS


@dataclass(frozen=True)
class CurveFiles:
    """The three tables of a run's curves."""

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
        """Remove draws of the method from number `draws` on, which an earlier call with more draws left."""
        for table in (self.scores, self.orders, self.times):
            for draw in table.values("draw", {"by": by, "task": task}):
                if draw >= draws:
                    table.forget(part(by, draw, task))

    def begin_order(self, by: str, draw: int, task: str, key: str) -> None:
        """Remove the draw's parts unless its order of heads has this key."""
        of_draw = part(by, draw, task)
        if not self.orders.holds(of_draw, key):
            for table in (self.scores, self.orders, self.times):
                table.forget(of_draw)


def part(by: str, draw: int, task: str, trained_epochs: int | None = None) -> dict[str, str | int]:
    """The part of a method's draw for a task; parts of curve.parquet also have the number of epochs."""
    values: dict[str, str | int] = {"by": by, "draw": draw, "task": task}
    return values if trained_epochs is None else {**values, "trained_epochs": trained_epochs}

"""Sweeps over planted objectives, in a folder, without training."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from alembic.util import pyfiles
from sqlalchemy import event

from mtl.sweep.file import Sweep, sweep_from
from mtl.sweep.folder import Engine, Outcome, Perform, SweepFolder, SweepView, trials_of

GRID = {
    "method": "grid",
    "metric": {"name": "dev/mean", "goal": "maximize"},
    "parameters": {
        "gates": {"parameters": {"penalty": {"values": [0.01, 0.1, 1.0]}}},
        "seed": {"values": [1, 2]},
    },
}
PRODUCT = [(penalty, seed) for penalty in (0.01, 0.1, 1.0) for seed in (1, 2)]
MADE_OF = {"corpus": "c", "version": "d"}


def sweep_of(name: str = "s", **changes: Any) -> Sweep:
    """The grid with changes; `None` removes a key."""
    words = {"name": name, **GRID, **changes}
    return sweep_from({key: value for key, value in words.items() if value is not None})


def point_of(values: Any) -> tuple[Any, ...]:
    return values["gates.penalty"], values["seed"]


@event.listens_for(sqlalchemy.Engine, "connect")
def no_waiting_for_the_disk(connection: Any, _record: Any) -> None:
    """Tests do not cut the power."""
    connection.execute("PRAGMA synchronous = OFF")


@pytest.fixture(scope="session", autouse=True)
def versions_read_once() -> Iterator[None]:
    """A storage that is opened reads all versions of Optuna's tables, each a module."""
    load = pyfiles.load_module_py
    read = functools.cache(load)

    def load_once(name: str, path: Path) -> Any:
        return (read if path.parent.name == "versions" else load)(name, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pyfiles, "load_module_py", load_once)
        yield


class Bench:
    """A sweep in a folder, and every trial that was performed in this process."""

    def __init__(self, root: Path, sweep: Sweep, limit: int | None = None):
        self.sweep, self.folder = sweep, SweepFolder(root / sweep.name)
        self.limit = limit or sweep.points() or 1
        self.performed: list[tuple[int, Any]] = []
        self.folder.start(sweep, {}, MADE_OF)

    def work(self, perform: Perform | None = None) -> None:
        def recorded(number, values, look):
            self.performed.append((number, values))
            if perform is not None:
                return perform(number, values, look)
            return Outcome(1.0, {"shared": 5.0})

        Engine(self.folder, self.sweep, recorded, self.limit).work()

    @property
    def study(self):
        return self.folder.study(self.sweep)

    def view(self, limit: int = 0) -> SweepView:
        return SweepView(self.folder, self.sweep, self.study, limit)

    def states(self) -> list[str]:
        return [self.folder.state(trial) for trial in trials_of(self.study)]


@pytest.fixture
def bench(tmp_path):
    """Makes a sweep in a folder."""

    def make(limit=None, **changes):
        return Bench(tmp_path, sweep_of(**changes), limit)

    return make

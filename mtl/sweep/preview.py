"""What a sweep would do, told without doing it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from mtl.sweep.distributions import described
from mtl.sweep.engine import point
from mtl.sweep.file import Sweep
from mtl.sweep.folder import SweepFolder, usable
from mtl.sweep.status import totals, value_text
from mtl.sweep.trial_config import trial_name

MOST_POINTS = 1000
"""Points of a grid that are printed."""


def preview(sweep: Sweep, folder: SweepFolder, limit: int | None) -> Iterator[str]:
    """Lines: the trials of a grid, or what the parameters are drawn from, and all that concerns them.

    `limit` is the number of trials at most; `None`: nobody has said.
    """
    target = "" if sweep.metric.target is None else f", until {sweep.metric.target:g}"
    yield f"sweep {sweep.name}: {sweep.method}, to {sweep.metric.goal} {sweep.metric.name}{target}"
    yield f"trials have in common: mtl train {' '.join(sweep.base)}".rstrip()
    yield f"early termination: {'none' if sweep.stopping is None else sweep.stopping}"
    points = sweep.points()
    if points is None:
        yield f"trials: {limit or 'no limit; with --local, give run_cap or --trials=N'}"
        for key, text in described(sweep.given["parameters"]).items():
            yield f"  {key}: {text}"
    else:
        count = min(points, limit or points)
        yield f"trials: {count}" + (f" of the grid's {points} points" if count < points else "")
        for number in itertools.islice(range(count), MOST_POINTS):
            drawn = point(sweep, number)
            values = (f"{each.key}={_exact(each.value(drawn[each.key]))}" for each in sweep.parameters)
            yield f"  {trial_name(number)}: {', '.join(values)}"
        if count > MOST_POINTS:
            yield f"  … and {count - MOST_POINTS} more"
    yield f"with --local in {folder.path}: {_so_far(folder, min(filter(None, (points, limit)), default=0))}"


def _exact(value: Any) -> str:
    return repr(value) if isinstance(value, float) else value_text(value)


def _so_far(folder: SweepFolder, limit: int) -> str:
    if not folder.plan.exists():
        return "not begun"
    kept, _, _ = folder.kept()
    with usable(folder.storage):
        return totals(folder, folder.study(kept), limit)

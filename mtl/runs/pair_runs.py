"""Which runs are pairs of tasks, trained jointly without masks: what the contest for heads is read from."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from mtl.runs.comparable import RunWithSetup
from probes.report.data import PAIRS
from probes.statistics.contest_cells import CONTROL, TWIN
from tasks.twins import task_of


def pairs_of(runs: Sequence[RunWithSetup], notes: list[str]) -> pl.DataFrame | None:
    """A row per pair run and task: run, setup, seed, task (as the run names it), of, partner; `None` if none.

    `of` is the task that a twin is half of, else the task; the partner of a twin is `twin`. A control task
    has no row. If pairs were trained in several ways (more updates, copied heads), the way with the most
    pairs of tasks is taken; among equals the one with the shortest run name, since labels lengthen names. A
    note names the others.
    """
    by_variant: dict[str, list[RunWithSetup]] = {}
    for run in runs:
        plain = run.config.get("pruning", "none") == "none" and not run.run.derivation()
        if plain and len(run.config["tasks"]) == 2:
            by_variant.setdefault(_variant(run), []).append(run)
    if not by_variant:
        return None
    chosen = max(by_variant, key=lambda name: (_pairs(by_variant[name]), -_shortest(by_variant[name])))
    if len(by_variant) > 1:
        others = "; ".join(name or "the plain ones" for name in by_variant if name != chosen)
        notes.append(
            f"the contest is read from pairs trained as {chosen or 'all others are'}; not from {others}"
        )
    rows = []
    for run in by_variant[chosen]:
        tasks = list(run.config["tasks"])
        for task, other in (tasks, reversed(tasks)):
            of, partner = (task_of(name) for name in (task, other))
            partner = TWIN if partner == of else partner
            if of != CONTROL:
                rows.append((str(run.run.folder), run.setup.name, int(run.config["seed"]), task, of, partner))
    return pl.DataFrame(rows, schema=PAIRS, orient="row")


def _variant(run: RunWithSetup) -> str:
    """What the name of the run's setup adds to its tasks."""
    return run.setup.name.partition(", ")[2]


def _pairs(runs: Sequence[RunWithSetup]) -> int:
    return len({tuple(run.config["tasks"]) for run in runs})


def _shortest(runs: Sequence[RunWithSetup]) -> int:
    return min(len(run.run.folder.name) for run in runs)

"""Masks with a forced overlap, which a study draws for its pairs from the heads that given runs rank best."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
from jaxtyping import Bool, Float

from mtl.corpora.find_files import matching
from mtl.errors import InputError, as_input_error
from mtl.heads.gate_file import SCHEMA, last_log_alphas
from mtl.probes.sites import Site, grid, shape_text, sites_of
from mtl.probes.stem_cell.statistics.forced_overlap import best_of_both, draw_pair, layer_counts
from mtl.probes.tables import heads_table
from mtl.runs.folder.run import Run
from mtl.stem_cell.overlap import Draw, OverlapConfig
from mtl.study.jobs.job import Job
from mtl.study.made_masks import MadeMasks
from mtl.tasks.in_words import counted


def drawn_masks(runs: Sequence[Job]) -> dict[str, MadeMasks]:
    """The masks of these runs, by path (the value of `gates.masks`); the same in every call.

    Raises `InputError` if the given runs have no ranking for a task, or masks of this size cannot be drawn.
    """
    best_of, drawn = functools.cache(_Best), {}
    for run in runs:
        assert run.makes is not None
        draw, path = run.makes.settings, str(run.config.gates.masks)
        assert isinstance(draw, Draw)
        drawn[path] = _drawn(Path(path), draw, run.config.tasks, run.config.seed, best_of(draw.overlap))
    return drawn


def _drawn(path: Path, draw: Draw, tasks: Sequence[str], seed: int, best: _Best) -> MadeMasks:
    overlap, shared = draw.overlap, draw.shared
    first, second = tasks
    pair = "+".join(tasks)
    rng = np.random.default_rng([overlap.seed, zlib.crc32(pair.encode()), shared, seed])
    size = 2 * overlap.heads if overlap.pool is None else overlap.pool
    with as_input_error(f"overlap of {pair}"):
        pool = best_of_both(best.of(first), best.of(second), size)
        counts = layer_counts(pool, overlap.heads)
        masks = draw_pair(pool, counts, shared, rng)
    record = {
        "tasks": list(tasks),
        "heads": overlap.heads,
        "overlap": shared,
        "draw": seed,
        "seed": overlap.seed,
        "pool": size,
        "layers": list(counts),
        "by": overlap.by,
        "runs": [path.name for path in best.folders],
    }
    return MadeMasks(path, _table(tasks, masks, best.sites), record)


def _table(
    tasks: Sequence[str], masks: Bool[np.ndarray, "mask site head"], sites: Sequence[Site]
) -> pl.DataFrame:
    rows = [
        {
            "task": task, "step": 0, "attention": sites[site].attention, "layer": sites[site].layer,
            "head": head, "log_alpha": None, "gate": float(mask[site, head]), "open": bool(mask[site, head]),
            "log_alpha_at_choice": None, "unit": "head",
        }
        for task, mask in zip(tasks, masks, strict=True)
        for site, head in np.ndindex(*mask.shape)
    ]  # fmt: skip
    return pl.DataFrame(rows, schema=SCHEMA)


class _Best:
    """How the runs in `overlap.runs` rank heads for a task; raises `InputError` if there are no such runs."""

    def __init__(self, overlap: OverlapConfig) -> None:
        self.overlap = overlap
        self.folders = sorted(
            {
                path
                for pattern in map(Path, overlap.runs)
                for path in matching(pattern)
                if (path / "config.yaml").exists()
            }
        )
        if not self.folders:
            raise InputError(
                f"overlap.runs={','.join(overlap.runs) or '[]'}: no runs to rank a task's heads by; "
                "use folders or globs of finished runs with masks of each task"
            )
        self.sites: tuple[Site, ...] = ()
        self._heads = 0
        self._known: dict[str, Float[np.ndarray, "site head"]] = {}

    def of(self, task: str) -> Float[np.ndarray, "site head"]:
        """The mean over runs of the heads' log alpha, or of their importance over the mean of a run's heads.

        Raises `InputError` if no run has such values for the task.
        """
        if task not in self._known:
            of_runs = [self._of_run(Run.open(path), task) for path in self.folders]
            values = [value for value in of_runs if value is not None]
            if not values:
                raise InputError(
                    f"overlap.runs: none of {counted(len(self.folders), 'run')} has {self.overlap.by} of "
                    f"heads for {task}: use runs in which this task has a mask of its own, or runs that "
                    "'mtl importance' has measured"
                )
            self._known[task] = np.mean(values, axis=0)
        return self._known[task]

    def _of_run(self, run: Run, task: str) -> Float[np.ndarray, "site head"] | None:
        """The values of one run; `None` if it has none for the task."""
        config = run.config()
        if run.status().get("state") != "finished":
            raise InputError(f"overlap.runs: {run.folder} is not finished: wait for it, or leave it out")
        has_own_mask = len(config["tasks"]) == 1 or config["gates"]["scope"] == "per_task"
        by_masks = self.overlap.by == "log_alpha"
        file = run.folder / ("gates.parquet" if by_masks else "heads.parquet")
        if task not in config["tasks"] or not file.is_file() or (by_masks and not has_own_mask):
            return None
        try:
            table = last_log_alphas(file) if by_masks else heads_table.read(file)[0]
        except InputError:
            raise
        except (ValueError, OSError, pl.exceptions.PolarsError) as error:
            raise InputError(f"overlap.runs: {file}: cannot be read ({error})") from error
        rows = table.filter(measure=self.overlap.by, task=task, label="")
        if rows.is_empty():
            return None
        sites, heads = sites_of(rows), 1 + int(rows["head"].to_numpy().max())
        if not self.sites:
            self.sites, self._heads = sites, heads
        if (sites, heads) != (self.sites, self._heads):
            raise InputError(
                f"overlap.runs: {run.folder} has {shape_text(sites, heads)}, others "
                f"{shape_text(self.sites, self._heads)}; use runs of one encoder"
            )
        value = grid(rows, "value", sites, heads)
        # The scale of importance differs between runs.
        return value / np.nanmean(value) if self.overlap.by == "importance" else value

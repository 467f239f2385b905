"""What each claimed head is worth beside partners that claim it and beside others, for the figure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from mtl.probes.sites import KEYS
from mtl.probes.statistics.resampling import student
from mtl.probes.stem_cell.statistics.contest import estimate
from mtl.probes.stem_cell.statistics.contest_cells import CONTROL, TWIN, ContestCells
from mtl.probes.stem_cell.statistics.contest_model import TaskBlock, in_unit
from mtl.probes.stem_cell.statistics.worth_units import STANDARDISED_LOGS, Unit


def head_lines(cells: ContestCells, unit: Unit = STANDARDISED_LOGS) -> pl.DataFrame:
    """Per task and own head the mean worth beside partners that do not claim it, and beside those that do.

    The effects of partners on whole layers are taken out (partial residuals of the task's own fit), since
    they would move lines for other reasons. Only heads with both kinds of partners have a row. Columns: task,
    attention, layer, head, apart, beside.
    """
    rows = []
    for of in cells.tasks:
        values = in_unit(of, unit).mean(0)
        block = TaskBlock(cells, of, values)
        square = block.with_claims(block.claim[None]).item()
        beta = -block.with_worth(block.claim, values[None]).item() / square if square > 1e-9 else 0.0
        level = values[:, block.own] + beta * block.claim
        of_partner = level @ (np.eye(len(block.own)) - block.within)
        adjusted = values[:, block.own] - of_partner + of_partner.mean(0)
        for number, cell in enumerate(block.own):
            claims = block.claim[:, number] > 0
            if claims.any() and not claims.all():
                site = cells.sites[cells.strata[cell]]
                rows.append(
                    {
                        "task": of.task, "attention": site.attention, "layer": site.layer,
                        "head": int(cell) % cells.heads,
                        "apart": float(adjusted[~claims, number].mean()),
                        "beside": float(adjusted[claims, number].mean()),
                    }
                )  # fmt: skip
    schema = {"task": pl.String, "attention": pl.String, "layer": pl.Int32, "head": pl.Int32}
    return pl.DataFrame(rows, schema=schema | {"apart": pl.Float64, "beside": pl.Float64})


def task_means(
    cells: ContestCells, unit: Unit = STANDARDISED_LOGS, level: float = 0.05, draws: int = 1999
) -> pl.DataFrame:
    """Per task the mean of the column `apart` of `head_lines`, and beta with its interval for the task alone.

    Columns: task, heads, apart, beta, low, high, share, word. A task without a head to compare has no row.
    """
    lines = head_lines(cells, unit)
    rows = []
    for of in cells.tasks:
        of_task = lines.filter(pl.col("task") == of.task)
        if of_task.is_empty():
            continue
        found = estimate(replace(cells, tasks=(of,)), unit, level=level, draws=draws)
        rows.append(
            {
                "task": of.task, "heads": found.heads, "apart": of_task["apart"].mean(), "beta": found.beta,
                "low": found.low, "high": found.high, "share": found.share, "word": found.word,
            }
        )  # fmt: skip
    schema = {"task": pl.String, "heads": pl.Int64, "apart": pl.Float64, "beta": pl.Float64}
    return pl.DataFrame(
        rows, schema=schema | {"low": pl.Float64, "high": pl.Float64, "share": pl.Float64, "word": pl.String}
    )


def side_means(worth: pl.DataFrame, heads: pl.DataFrame, unit: Unit = STANDARDISED_LOGS) -> pl.DataFrame:
    """What heads are worth on average to a task beside its twin and beside the control task.

    The mean is over `heads` (task, attention, layer, head: those of `head_lines`); before that, worth is put
    into the unit over all heads of the run. `mean` is over seeds, with Student's 95 % interval (null for one
    seed). Effects on whole layers are not taken out: a twin claims every head of the task, so its effect on
    layers cannot be separated. `worth` as `contest_cells` takes it. Columns: task, partner, seeds, mean, low,
    high.
    """
    rows = []
    beside = worth.filter(pl.col("partner").is_in([TWIN, CONTROL]))
    for (task, partner), runs in beside.group_by("task", "partner", maintain_order=True):
        means = []
        for _, run in runs.group_by("seed", maintain_order=True):
            scaled = run.with_columns(scaled=unit.scaled(run["worth"].to_numpy()))
            chosen = scaled.join(heads.filter(pl.col("task") == task), on=["task", *KEYS], how="semi")
            if chosen.height:
                means.append(chosen["scaled"].to_numpy().mean())
        if means:
            low, high = student(np.array(means))
            rows.append((str(task), str(partner), len(means), float(np.mean(means)), low, high))
    schema = {"task": pl.String, "partner": pl.String, "seeds": pl.Int64}
    return pl.DataFrame(
        rows, schema=schema | dict.fromkeys(("mean", "low", "high"), pl.Float64), orient="row"
    ).fill_nan(None)

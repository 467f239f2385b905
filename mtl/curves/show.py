"""Pruning curves as tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from rich.console import Console
from rich.table import Table

from mtl.commands.common import print_table
from mtl.curves.curve import CurvePoint, CurveStart
from mtl.probes.curves import curve_table
from mtl.probes.curves.curve_table import surviving_kinds, surviving_roles
from mtl.probes.sites import kinds_in_order, several_kinds
from mtl.probes.statistics.head_values import ROLES, heads_with_roles
from mtl.runs.folder.run_tables import read_measures
from mtl.tasks.in_words import counted


def show_scores(
    start: CurveStart,
    points: Sequence[CurvePoint],
    trained: Sequence[CurvePoint],
    epochs: int | None,
    console: Console,
) -> None:
    """A table per task: a row for each number of heads, a column for each method."""
    for task, metric in start.scoring.tasks.items():
        of_task = [point for point in points if point.task == task]
        methods = list(dict.fromkeys(point.by for point in of_task))
        sentences = counted(len(start.scoring.corpus), "sentence")
        shown = Table(title=f"{task}: {metric.score} in % on {start.scoring.split} ({sentences})")
        shown.add_column("heads kept", justify="right")
        for name in methods:
            number = len({point.draw for point in of_task if point.by == name})
            several = number > 1 and name != "gates"
            shown.add_column(
                f"{name}\n({counted(number, 'draw')}: mean ± sd)" if several else name, justify="right"
            )
            if epochs and any(point.by == name for point in trained):
                shown.add_column(f"{name}, cut,\n{counted(epochs, 'epoch')} on", justify="right")
        for kept in sorted({len(point.kept) for point in of_task}, reverse=True):
            here = [point for point in of_task if len(point.kept) == kept]
            cells = []
            for name in methods:
                scores = [point.score for point in here if point.by == name]
                spread = f" ± {np.std(scores, ddof=1):.2f}" if len(scores) > 1 else ""
                cells.append(f"{np.mean(scores):.2f}{spread}" if scores else "")
                if epochs and any(point.by == name for point in trained):
                    on = [point.score for point in trained if point.by == name and len(point.kept) == kept]
                    cells.append(f"{on[0]:.2f}" if on else "")
            shown.add_row(f"{kept} ({here[0].share:.0%})", *cells)
        print_table(shown, console)
    if message := more_than_at_start(points):
        console.print(message, highlight=False, soft_wrap=True)


def more_than_at_start(points: Sequence[CurvePoint]) -> str | None:
    """A note on gates that keep more heads than the curves start from, as under a run's own masks."""
    tasks = dict.fromkeys(point.task for point in points if point.share > 1)
    if not tasks:
        return None
    return (
        f"note: gates keep more heads for {', '.join(tasks)} than the run's masks leave open, which is where "
        "the curves start: shares exceed 100 %; use --masks=false to start from all heads"
    )


def show_roles(start: CurveStart, by: Sequence[str], console: Console) -> None:
    """Which roles survive, if heads.parquet has roles: a table per method over all tasks."""
    folder = start.scoring.run.folder
    if not start.scoring.table.exists():
        return
    heads, _ = read_measures(start.scoring.table)
    with_roles = heads_with_roles(heads)
    if with_roles.is_empty():
        return
    orders, _ = curve_table.read_curve_table(folder / "curve_heads.parquet")
    points, _ = curve_table.read_curve_table(folder / "curve.parquet")
    points = points.filter(pl.col("by").is_in(list(by)) & pl.col("task").is_in(list(start.base)))
    survival = surviving_roles(orders, points, with_roles)
    methods: list[str] = survival["by"].unique(maintain_order=True).to_list()
    for method in methods:
        of_method = survival.filter(pl.col("by") == method)
        roles = [role for role in ROLES if role in set(of_method["role"])]
        shown = Table(title=f"{method}: heads with a role that are kept")
        shown.add_column("all heads kept", justify="right")
        for role in roles:
            at_start = max(of_method.filter(role=role)["with_role"].to_list())
            shown.add_column(f"{role.replace('_', ' ')} ({at_start})", justify="right")
        means = of_method.group_by("role", "share").agg(pl.col("surviving").mean())
        for share in means["share"].unique().sort(descending=True):
            cells = [means.filter(role=role, share=share)["surviving"] for role in roles]
            shown.add_row(f"{share:.0%}", *(f"{cell[0]:.0%}" if len(cell) else "" for cell in cells))
        print_table(shown, console)


def show_kinds(start: CurveStart, methods: Sequence[str], console: Console) -> None:
    """How many heads of each kind of attention are kept, if there are several: a table per method."""
    if not several_kinds(start.scoring.model.encoder.tap.sites):
        return
    folder = start.scoring.run.folder
    orders, _ = curve_table.read_curve_table(folder / "curve_heads.parquet")
    points, _ = curve_table.read_curve_table(folder / "curve.parquet")
    points = points.filter(pl.col("by").is_in(list(methods)) & pl.col("task").is_in(list(start.base)))
    survival = surviving_kinds(orders, points)
    for method in methods:
        of_method = survival.filter(by=method)
        number = of_method["draw"].n_unique()
        title = f"{method}: heads of each kind that are kept"
        shown = Table(title=f"{title} (means over {counted(number, 'draw')})" if number > 1 else title)
        shown.add_column("all heads kept", justify="right")
        kinds = kinds_in_order(of_method["attention"])
        for kind in kinds:
            shown.add_column(f"{kind} ({max(of_method.filter(attention=kind)['at_start'])})", justify="right")
        heads = pl.col("surviving") * pl.col("at_start")
        for (kept,), at in of_method.group_by("kept", maintain_order=True):
            means = dict(at.group_by("attention").agg(heads.mean()).iter_rows())
            shown.add_row(str(kept), *(f"{means.get(kind, 0):.3g}" for kind in kinds))
        print_table(shown, console)


def show_times(times: pl.DataFrame, points: Sequence[CurvePoint], console: Console) -> None:
    """A table of cut models per method and task, and how far their scores are from those of masked models."""
    masked = {(point.by, point.draw, point.task, len(point.kept)): point.score for point in points}
    methods: list[tuple[str, str]] = times.select("by", "task").unique(maintain_order=True).rows()
    for by, task in methods:
        rows = times.filter(by=by, task=task)
        time = f"encoder's time per sentence over the uncut one's ({rows['device'][0]})"
        shown = Table(title=f"{task}, heads cut out by {by}: {time}")
        sizes = list(rows["batch"].unique().sort())
        for column in ("heads kept", "score, %", "parameters", "operations", *(f"batch {s}" for s in sizes)):
            shown.add_column(column, justify="right")
        for (_kept,), at in rows.group_by("kept", maintain_order=True):
            first = at.row(0, named=True)
            shares = dict(at.select("batch", "seconds_of_whole").iter_rows())
            shown.add_row(
                f"{first['kept']} ({first['share']:.0%})", f"{first['score']:.2f}",
                f"{first['parameters']:,}",
                f"{first['operations_of_whole']:.1%}", *(f"{shares[size]:.1%}" for size in sizes),
            )  # fmt: skip
        print_table(shown, console)
    keys = times.select("by", "draw", "task", "kept", "score").iter_rows()
    largest = max(abs(score - masked[by, draw, task, kept]) for by, draw, task, kept, score in keys)
    console.print(f"largest difference between cut and masked scores: {largest:.2g} points", highlight=False)

"""`mtl figure`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rich.console import Console

from mtl.errors import InputError

Figures = Literal[
    "rgb", "grey", "correlation", "gates", "masks", "animation", "labels", "heatmap", "heads-kept", "heads",
    "prediction", "agreement", "importance-over-time", "curve", "curve-roles", "curve-time",
]  # fmt: skip


def figure(
    name: Figures,
    runs: list[Path],
    out: Path,
    tasks: tuple[str, ...] = (),
    split: Literal["dev", "test"] = "test",
    measure: str = "ablation",
    tables: bool = True,
) -> None:
    """Draw a figure from runs given by hand.

    Args:
        name: rgb (three runs of a task, or three tasks), grey (all masks), correlation (of tasks' masks),
            gates (over time, one run), masks (one run), animation (one run, .gif or .webp), labels (best head
            per label and setup), heatmap (heads by labels), heads-kept (score against open heads), heads (a
            measure per head and task), prediction (how well measures predict ablation), agreement (a measure
            between seeds, tasks and tables), importance-over-time (one run; .gif or .webp: an animation); of
            runs with pruning curves (mtl curve): curve (score), curve-roles (roles that survive), curve-time
            (of cut models).
        runs: Folders of runs; for labels and heatmap also of probed encoders; for heads, prediction and
            agreement also tables that `mtl ablate` and `mtl importance` wrote with --out.
        out: File: .pdf, .png or .svg.
        tasks: Only these tasks, for instance --tasks=[pos,dep,srl].
        split: Split of the scores in heads-kept and curve.
        measure: Measure of the figures heads and agreement: ablation, importance, taylor, relevance, ….
        tables: Whether the figure's numbers are written beside it as .tex, .csv and .parquet.
    """
    from mtl.runs.figures import animate, draw, save
    from probes.figures.style import FORMATS

    console = Console()
    suffix = out.suffix.lower().removeprefix(".")
    moving = ("gif", "webp")
    wanted = {"animation": moving, "importance-over-time": (*FORMATS, *moving)}.get(name, FORMATS)
    if suffix not in wanted:
        raise InputError(f"{out}: give a file that ends in .{', .'.join(wanted[:-1])} or .{wanted[-1]}")
    try:
        if name == "animation" or suffix in moving:
            pictures, notes = animate(runs, tasks, out, "masks" if name == "animation" else "importance")
            written = [f"{out} ({pictures} pictures)"]
        else:
            drawn = draw(name, runs, tasks, split, measure)
            notes, written = drawn.notes, [str(path) for path in save(drawn, out, tables)]
    except ValueError as error:
        raise InputError(str(error)) from error
    for note in notes:
        console.print(f"note: {note}", highlight=False, soft_wrap=True)
    for path in written:
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)

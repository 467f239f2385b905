"""`mtl figure`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rich.console import Console

from mtl.errors import InputError

Figures = Literal[
    "rgb", "grey", "correlation", "gates", "masks", "animation", "labels", "heatmap", "heads-kept",
    "curve", "curve-roles", "curve-time",
]  # fmt: skip


def figure(
    name: Figures,
    runs: list[Path],
    out: Path,
    tasks: tuple[str, ...] = (),
    split: Literal["dev", "test"] = "test",
    tables: bool = True,
) -> None:
    """Draw a figure from runs given by hand.

    Args:
        name: rgb (three runs of a task, or three tasks), grey (all masks), correlation (of tasks' masks),
            gates (over time, one run), masks (one run), animation (one run, .gif or .webp), labels (best head
            per label and setup), heatmap (heads by labels), heads-kept (score against open heads); of runs
            with pruning curves (mtl curve): curve (score), curve-roles (roles that survive), curve-time (of
            cut models).
        runs: Folders of runs; for labels and heatmap also of probed encoders.
        out: File: .pdf, .png or .svg.
        tasks: Only these tasks, for instance --tasks=[pos,dep,srl].
        split: Split of the scores in heads-kept and curve.
        tables: Whether the figure's numbers are written beside it as .tex, .csv and .parquet.
    """
    from mtl.runs.figures import animate, draw, save
    from probes.figures.style import FORMATS

    console = Console()
    suffix = out.suffix.lower().removeprefix(".")
    wanted = ("gif", "webp") if name == "animation" else FORMATS
    if suffix not in wanted:
        raise InputError(f"{out}: give a file that ends in .{', .'.join(wanted[:-1])} or .{wanted[-1]}")
    try:
        if name == "animation":
            pictures, notes = animate(runs, tasks, out)
            written = [f"{out} ({pictures} pictures)"]
        else:
            drawn = draw(name, runs, tasks, split)
            notes, written = drawn.notes, [str(path) for path in save(drawn, out, tables)]
    except ValueError as error:
        raise InputError(str(error)) from error
    for note in notes:
        console.print(f"note: {note}", highlight=False, soft_wrap=True)
    for path in written:
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)

"""`mtl figure`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rich.console import Console

from mtl.errors import InputError, as_input_error
from mtl.runs.figures.row import MOVING
from mtl.runs.figures.table import FIGURES, FigureName, animate, draw
from mtl.tasks.in_words import counted


def figure(
    name: FigureName,
    runs: list[Path],
    out: Path,
    tasks: tuple[str, ...] = (),
    split: Literal["dev", "test"] = "test",
    measure: str = "ablation",
    tables: bool = True,
    title: str = "",
    names: dict[str, str] | None = None,
    size: tuple[float, float] | None = None,
    font: str = "",
    font_size: float | None = None,
) -> None:
    """Draw a figure from chosen runs.

    Args:
        name: Name of the figure; all are described below.
        runs: Folders of runs; for labels and heatmap also of probed encoders; for heads, prediction and
            agreement also tables that `mtl ablate` and `mtl importance` wrote with --out.
        out: File: .pdf, .png or .svg; of a moving figure .gif or .webp.
        tasks: Only these tasks, for instance --tasks=[pos,dep,srl].
        split: Split of the scores in heads-kept and curve.
        measure: Measure of the figures heads and agreement: ablation, importance, taylor, relevance, ….
        tables: Whether the figure's numbers are written beside it as .tex, .csv and .parquet.
        title: Title above the figure.
        names: What is printed instead of words, in any language: --names='{pos: POS tags, layer: Schicht}'.
        size: Width and height in inches, for instance --size=[3.3,2.5].
        font: An installed font, for instance --font="DejaVu Serif".
        font_size: Size of ordinary letters in points; 7 if not given.
    """
    console = Console(markup=False, emoji=False)
    suffix = out.suffix.lower().removeprefix(".")
    kinds = FIGURES[name].kinds()
    if suffix not in kinds:
        raise InputError(f"{out}: use a file that ends in .{', .'.join(kinds[:-1])} or .{kinds[-1]}")
    for run in runs:
        if [other.resolve() for other in runs].count(run.resolve()) > 1:
            raise InputError(f"{run} is given twice: name every run once")
    with as_input_error():
        if suffix in MOVING:
            pictures, notes = animate(name, runs, tasks, out)
            written = [f"{out} ({counted(pictures, 'picture')})"]
        else:
            from mtl.probes.figures.publication import Publication, publish
            from mtl.runs.figures.drawn import check_tables, save

            if tables:
                check_tables(out, FIGURES[name].tables, runs)
            drawn = draw(name, runs, tasks, split, measure)
            publish(drawn.figure, Publication(title, names or {}, size, font, font_size))
            notes, written = drawn.notes, [str(path) for path in save(drawn, out, tables, runs)]
    for note in notes:
        console.print(f"note: {note}", highlight=False, soft_wrap=True)
    for path in written:
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)

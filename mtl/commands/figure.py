"""`mtl figure`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rich.console import Console

from mtl.errors import InputError, as_input_error
from mtl.probes.appearance import Appearance, appearing
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
    palette: str = "",
    colours: dict[str, str] | None = None,
    order: tuple[str, ...] = (),
) -> None:
    """Draw a figure from chosen runs.

    Args:
        name: Name of the figure; all are described below.
        runs: Folders of runs; for labels and heatmap, also of probed encoders; for heads, prediction and
            agreement, also tables that 'mtl ablate' and 'mtl importance' wrote with --out.
        out: File: .pdf, .png or .svg; for a moving figure, .gif or .webp.
        tasks: Only these tasks, for instance --tasks=[pos,dep,srl].
        split: Split of the scores, for instance in heads-kept and curve.
        measure: Measure of the figures heads and agreement: ablation, importance, taylor, relevance, ….
        tables: Whether the figure's numbers are written beside it as .tex, .csv and .parquet.
        title: Title above the figure.
        names: What is printed in place of words, in any language: --names='{pos: POS tags, layer: Schicht}'.
        size: Width and height in inches, for instance --size=[3.3,2.5].
        font: An installed font, for instance --font="DejaVu Serif".
        font_size: Size of ordinary letters in points; default: 7.
        palette: A colour list of matplotlib, for instance Dark2, instead of the usual one.
        colours: Colours by the names in the figure: --colours='{pos: black, STL: "#0072B2"}'.
        order: Names of tasks, setups, methods or masks of rgb in the order in which they are shown:
            --order=[dep,pos].
    """
    from mtl.probes.figures.palette import check_appearance
    from mtl.probes.figures.publication import Publication, names_not_in, publish
    from mtl.runs.figures.drawn import check_tables, save

    console = Console(markup=False, emoji=False)
    suffix = out.suffix.lower().removeprefix(".")
    kinds = FIGURES[name].kinds()
    if suffix not in kinds:
        raise InputError(f"{out}: use a file that ends in .{', .'.join(kinds[:-1])} or .{kinds[-1]}")
    for run in runs:
        if [other.resolve() for other in runs].count(run.resolve()) > 1:
            raise InputError(f"{run} is given twice: name every run once")
    given = {"tasks": tasks != (), "split": split != "test", "measure": measure != "ablation"}
    unused = [f"--{key}" for key, chosen in given.items() if chosen and key not in FIGURES[name].uses]
    if unused:
        raise InputError(f"the figure {name} does not depend on {' and '.join(unused)}: leave it out")
    published = Publication(title, names or {}, size, font, font_size)
    chosen = Appearance(palette, colours or {}, order)
    with as_input_error():
        check_appearance(chosen)
        if suffix in MOVING:
            if published != Publication() or chosen != Appearance():
                raise InputError(
                    f"{out}: a moving figure is drawn as it is; without title, names, size, font, palette, "
                    "colours and order"
                )
            pictures, notes = animate(name, runs, tasks, out)
            written = [f"{out} ({counted(pictures, 'picture')})"]
        else:
            if tables:
                check_tables(out, FIGURES[name].tables, runs)
            with appearing(chosen) as shown:
                drawn = draw(name, runs, tasks, split, measure)
            for fault in shown.faults(f"the figure {name}"):
                raise InputError(fault)
            absent = names_not_in(drawn.figure, published.names)
            publish(drawn.figure, published)
            notes = (*drawn.notes, *(f"the figure has no '{name}' to rename" for name in absent))
            written = [str(path) for path in save(drawn, out, tables, runs)]
    for note in notes:
        console.print(f"note: {note}", highlight=False, soft_wrap=True)
    for path in written:
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)

"""`mtl report`, `mtl compare` and `mtl figure`."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.console import Console
from rich.table import Table

from mtl.commands.common import print_table
from mtl.config.arguments import OutFile
from mtl.errors import InputError, as_input_error
from mtl.probes.appearance import Appearance, appearing
from mtl.runs.figures.table import FIGURES, MOVING, FigureName, animate, draw, file_kinds_of
from mtl.runs.folder.run import Run
from mtl.tasks.in_words import counted
from mtl.tasks.task import Range, Seed

if TYPE_CHECKING:
    from mtl.runs.compare.scores import RunComparison
    from mtl.tasks.sentence import Sentence


def report(
    folder: Path,
    out: OutFile | None = None,
    split: Literal["dev", "test"] | None = None,
    claims: str | None = None,
    palette: str = "",
    colours: dict[str, str] | None = None,
    order: tuple[str, ...] = (),
    json_out: OutFile | None = None,
    log: bool = False,
) -> None:
    """Write one self-contained HTML page about all runs and probes in a folder, with tables and figures.

    Args:
        folder: Folder that holds, directly or in its runs/, folders of runs and of probed encoders.
        out: Another place for the page; only the page is written then. Default: FOLDER/report.html, with
            answers.json, tables/ and figures/ beside it.
        split: Split of the scores; default: the one that the folder's runs were made for, otherwise test.
        claims: The setup, by its name in the report, whose masks are claims; default: the one that
            the runs were made for, otherwise the single-task setup that has masks of the most tasks and
            seeds.
        palette: A colour list of matplotlib, for instance Dark2; default, also for the next two options: as
            the folder's own configuration says.
        colours: Colours by name of a task, setup or run: --colours='{STL: black, MTL-3: "#0072B2"}'.
        order: Tasks in the order in which they are shown, for instance --order=[dep,pos].
        json_out: JSON file for the answers on the first screen and their estimates.
        log: Also log page, tables and figures to a W&B run of the report, beside those of its runs.
    """
    from mtl.errors import as_input_error
    from mtl.files import check_file_place
    from mtl.probes.figures.style import check_appearance
    from mtl.runs.report.write import write_report

    if log and out is not None:
        raise InputError("--log logs the folder's own report, with its tables and figures: leave out --out")
    check_file_place(out or folder / "report.html")
    appearance = Appearance(palette, colours or {}, order)
    with as_input_error():
        check_appearance(appearance)
    console = Console(markup=False, emoji=False, highlight=False)
    page = write_report(
        folder, console, split=split, claims=claims, appearance=appearance, out=out, json_out=json_out,
        log=log,
    )  # fmt: skip
    if json_out is not None:
        console.print(f"wrote {json_out}", soft_wrap=True)
    if page is not None:
        console.print(f"wrote {page} ({page.stat().st_size / 1e6:.2f} MB)", soft_wrap=True)


_PICTURES, _TABLES = (".pdf", ".png", ".svg"), (".tex", ".csv", ".parquet")


def compare(
    runs: list[Path],
    *,
    against: list[Path],
    split: Literal["dev", "test"] = "test",
    tasks: tuple[str, ...] = (),
    level: Annotated[float, Range(0, 1, open_low=True, open_high=True)] = 0.95,
    draws: Annotated[int, Range(100, inf)] = 10_000,
    seed: Seed = 0,
    corpus: Path | None = None,
    names: tuple[str, ...] = (),
    out: OutFile | None = None,
    log: bool = False,
) -> None:
    """Test whether two sets of runs score differently, task by task.

    Args:
        runs: Runs of the first side, for instance one setup with several seeds.
        against: Runs of the second side. For each task, the runs that have it are compared.
        split: Split of the scores.
        tasks: Only these tasks, for instance --tasks=[pos,dep].
        level: Level of the intervals.
        draws: Resamples of documents, or of sentences where documents are not known.
        seed: Random seed for the resamples.
        corpus: Folder with .jsonl files that say which document a sentence is from, for runs that were
            scored before their corpus said it.
        names: Names of the two sides in table and figure; default: those of their setups, or first and
            second if one side has several setups.
        out: File for the table (.tex, .csv, .parquet), or for a figure (.pdf, .png, .svg) with the table
            beside it in all three formats.
        log: Also log table and figure to the W&B run of each run.
    """
    from mtl.commands.common import log_to_wandb, runs_to_log
    from mtl.runs.compare.scores import compare_runs, known_of_runs

    if names and not len(names) == len({*names}) == 2:
        raise InputError(
            f"--names=[{','.join(names)}]: use two different names, of the first and of the second side"
        )
    if out is not None:
        if out.suffix.lower() not in (*_PICTURES, *_TABLES):
            raise InputError(f"{out}: use a file that ends in {', '.join((*_PICTURES, *_TABLES))}")
        if out.suffix.lower() in _PICTURES:
            from mtl.runs.figures.drawn import check_tables

            check_tables(out, ("",))
    logged = runs_to_log([*dict.fromkeys((*runs, *against))], log)
    first, second = ([Run.open(folder) for folder in side] for side in (runs, against))
    compared = compare_runs(
        first, second, split, tasks, level=level, draws=draws, seed=seed, corpus=_sentences(corpus, split)
    )
    if names:
        compared = replace(compared, names=(names[0], names[1]))
    console = Console(markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = 200
    print_table(_table(compared, split, level), console)
    for note in compared.notes:
        console.print(f"note: {note}", soft_wrap=True)
    if out is not None:
        ours, theirs = compared.names
        units = _units(compared)
        about = (
            f"difference: {ours} (mean) less {theirs} (mean_against), on {split}; {theirs} is after "
            f"--against: {' '.join(map(str, against))}",
            f"intervals of {level:.0%}: over other {units} (sentences), over runs with other seeds (seeds), "
            f"over both; in .tex: over {'both' if known_of_runs(compared.table) else f'other {units}'}",
            f"p is over both; holm, over the tasks, corrects the p over {units} where p is not known",
        )
        compared = replace(compared, notes=(*about, *compared.notes))
        for path in _write(compared, out):
            console.print(f"wrote {path}", soft_wrap=True)
    if logged:
        from mtl.probes.figures.scores import comparison_figure

        key = f"comparison/{'-'.join(names or ('first', 'second'))}"
        drawn = comparison_figure(compared.table, *compared.names)
        log_to_wandb(logged, {key: compared.table, f"figures/{key}": drawn}, console)


def _sentences(corpus: Path | None, split: str) -> list[Sentence] | None:
    """The sentences of a split of a corpus, if one is given."""
    if corpus is None:
        return None
    from mtl.corpora.folder import require_folder
    from mtl.corpora.readers import read_sentences

    require_folder(corpus, f"--corpus={corpus}", "; check the path")
    return read_sentences(corpus / f"{split}.jsonl", "jsonl")


def _write(compared: RunComparison, out: Path) -> list[Path]:
    from mtl.files import whole_file
    from mtl.probes.figures.scores import comparison_figure
    from mtl.probes.tables import table_files
    from mtl.runs.compare.scores import UNITS, columns_of_paper
    from mtl.runs.figures.drawn import FigureWithTables, save

    table, paper = compared.table, columns_of_paper(compared.table)
    names = dict(zip(("mean", "mean_against"), compared.names, strict=True))
    if out.suffix.lower() in _PICTURES:
        figure = comparison_figure(table, *compared.names)
        drawn = FigureWithTables(
            figure, compared.notes, {"": table}, units={"": UNITS}, paper={"": paper}, names={"": names}
        )
        return save(drawn, out)
    kind = next(kind for kind in table_files.FORMATS if out.suffix.lower() == f".{kind}")
    with whole_file(out) as path:
        table_files.write_table_file(
            table, path, kind, notes=compared.notes, units=UNITS, paper=paper, names=names
        )
    return [out]


def _table(compared: RunComparison, split: str, level: float) -> Table:
    first, second = compared.names
    shown = Table(
        title=f"scores on {split} in %, and {first} less {second} (after --against) in points; intervals of "
        f"{level:.0%}"
    )
    for column in ("task", "score"):
        shown.add_column(column)
    units = _units(compared)
    columns = (
        "runs", first, second, "difference", f"other {units}", "other runs", "both", f"p, {units}", "p, both",
        "Holm",
    )  # fmt: skip
    for column in columns:
        shown.add_column(column, justify="right")
    for row in compared.table.iter_rows(named=True):
        intervals = [
            "" if row[f"{key}_low"] is None else f"{row[f'{key}_low']:+.2f} to {row[f'{key}_high']:+.2f}"
            for key in ("sentences", "seeds", "both")
        ]
        chances = [_chance(row[key]) for key in ("p_sentences", "p", "holm")]
        shown.add_row(
            row["task"], row["score"], f"{row['runs']} and {row['runs_against']}", f"{row['mean']:.2f}",
            f"{row['mean_against']:.2f}", f"{row['difference']:+.2f}", *intervals, *chances,
        )  # fmt: skip
    return shown


def _units(compared: RunComparison) -> str:
    """What is resampled: documents where each task's are known."""
    known = compared.table["documents"].is_not_null()
    return "documents" if known.all() else "documents or sentences" if known.any() else "sentences"


def _chance(p: float | None) -> str:
    """A probability with four decimals; a smaller one is `<0.0001`, not 0."""
    if p is None:
        return ""
    return f"{p:.4f}" if p >= 0.0001 else "<0.0001"


def figure(
    name: FigureName,
    runs: list[Path],
    out: OutFile,
    tasks: tuple[str, ...] = (),
    split: Literal["dev", "test"] = "test",
    measure: str = "ablation",
    tables: bool = True,
    title: str = "",
    names: dict[str, str] | None = None,
    size: tuple[float, ...] = (),
    font: str = "",
    font_size: float | None = None,
    palette: str = "",
    colours: dict[str, str] | None = None,
    order: tuple[str, ...] = (),
    log: bool = False,
) -> None:
    """Draw a figure from chosen runs.

    Args:
        name: Name of the figure; all are described below.
        runs: Folders of runs; for labels, heatmap, map and layers, also of probed encoders; for heads,
            prediction and agreement, also tables that 'mtl ablate' and 'mtl importance' wrote with --out.
        out: File: .pdf, .png or .svg; for a moving figure, .gif or .webp.
        tasks: Only these tasks, for instance --tasks=[pos,dep,srl].
        split: Split of the scores, for instance in heads-kept.
        measure: Measure of the figures heads and agreement: ablation, importance, taylor, ….
        tables: Whether the figure's numbers are written beside it as .tex, .csv and .parquet.
        title: Title above the figure.
        names: What is printed in place of words, in any language: --names='{pos: POS tags, layer: Schicht}'.
        size: Width in inches, or width and height, for instance --size=[6.3,4]; most are 3.3 wide.
        font: An installed font, for instance --font="DejaVu Serif".
        font_size: Size of ordinary letters in points; default: 7.
        palette: A colour list of matplotlib, for instance Dark2, instead of the usual one.
        colours: Colours by the names in the figure: --colours='{pos: black, STL: "#0072B2"}'.
        order: Names of tasks, setups, methods or masks of rgb in the order in which they are shown:
            --order=[dep,pos].
        log: Also log figure and numbers to the W&B run of each run.
    """
    from mtl.commands.common import log_to_wandb, runs_to_log
    from mtl.probes.figures.publication import Publication, names_not_in, publish
    from mtl.probes.figures.style import check_appearance
    from mtl.runs.figures.drawn import check_tables, save

    console = Console(markup=False, emoji=False)
    suffix = out.suffix.lower().removeprefix(".")
    kinds = file_kinds_of(name)
    if suffix not in kinds:
        raise InputError(f"{out}: use a file that ends in .{', .'.join(kinds[:-1])} or .{kinds[-1]}")
    for run in runs:
        if [other.resolve() for other in runs].count(run.resolve()) > 1:
            raise InputError(f"{run} is given twice: name every run once")
    given = {"tasks": tasks != (), "split": split != "test", "measure": measure != "ablation"}
    unused = [f"--{key}" for key, chosen in given.items() if chosen and key not in FIGURES[name].uses]
    if unused:
        raise InputError(f"the figure {name} does not depend on {' and '.join(unused)}: leave it out")
    if log and suffix == "webp":
        raise InputError(f"{out}: W&B shows moving figures as .gif: use one, or leave out --log")
    logged = runs_to_log(runs, log)
    values: dict[str, Any] = {}
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
            values[f"figures/{out.stem}"] = out
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
            values[f"figures/{out.stem}"] = drawn.figure
            values |= {f"tables/{out.stem}{end}": table for end, table in drawn.tables.items() if tables}
    for note in notes:
        console.print(f"note: {note}", highlight=False, soft_wrap=True)
    for path in written:
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)
    log_to_wandb(logged, values, console)

"""What commands share: choices, heads by name, tables and progress on the terminal, what they write."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import signature
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress
from rich.table import Table

from mtl.config.arguments import OutPlace
from mtl.errors import InputError, RunError, as_input_error
from mtl.files import check_folder_place
from mtl.tasks.in_words import counted
from mtl.workers.watch import clock

if TYPE_CHECKING:
    import polars as pl

    from mtl.analysis.trained import TrainedRun
    from mtl.config.schema import CorpusConfig
    from mtl.models.batches import Example
    from mtl.models.joint import JointModel
    from mtl.probes.sites import Site
    from mtl.runs.folder.run import Run


Accelerator = Literal["auto", "cpu", "gpu"]
Precision = Literal["32-true", "bf16-true"]


def heads_given(text: str, sites: Sequence[Site], heads: int) -> dict[int, list[int]]:
    """The heads that names separated by commas stand for, per site: `L2H9,L5` or `2.9,5`, from 0.

    `L5` is a whole layer. With several kinds of attention, the kind goes first (`cross L2H9`). The name of a
    kind stands for all of its heads. Raises `InputError` for what is no name, or is not in a model with these
    sites of `heads` heads each.
    """
    from mtl.probes.sites import read_head

    found: dict[int, set[int]] = {}
    for name in text.split(","):
        of_kind = [place for place, site in enumerate(sites) if site.attention == name.strip().lower()]
        found.update((site, {*range(heads)}) for site in of_kind)
        if of_kind:
            continue
        with as_input_error(f"--heads={name.strip() or text}"):
            site, head = read_head(name, sites, heads)
        found.setdefault(site, set()).update(range(heads) if head is None else (head,))
    return {site: sorted(numbers) for site, numbers in sorted(found.items())}


def refuse_unused(command: Callable[..., Any], why: str, **given: Any) -> None:
    """Raise `InputError` for an option of a command that has another value than its default.

    `why` says, after the option's name, that it has no effect beside the others, and what to do.
    """
    known = signature(command).parameters
    for name, value in given.items():
        if value != known[name.replace("-", "_")].default:
            raise InputError(f"--{name} {why}")


def _check_new_folder(out: Path) -> None:
    """Raise `InputError` for an `--out` that is there already, and is no empty folder.

    Raises `OSError` where no folder can be made.
    """
    check_folder_place(out)
    if out.exists() and next(out.iterdir(), None) is not None:
        raise InputError(f"{out} exists, and is no empty folder: use another --out")


NewFolder = Annotated[Path, OutPlace(_check_new_folder)]


@contextmanager
def lines_done(count: Callable[[], int], where: str) -> Iterator[None]:
    """Make an early end of the block report how many lines are done; later ones may be printed in part."""
    try:
        yield
    except (KeyboardInterrupt, RunError) as error:
        done = f"{counted(count(), 'line')} of {where} done: give the later ones to the same command"
        if isinstance(error, RunError):
            raise RunError(f"{error}; {done}") from error
        raise KeyboardInterrupt(done) from None


SECONDS_BETWEEN_LINES = 30
"""The least time before a line on progress where there is no terminal, and between two."""


@contextmanager
def progress_bar(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Progress on standard error, named `what`; yields what receives how many more are done.

    On a terminal it is a bar. Elsewhere, such as in a log, it is a line now and then, if `total` is known.
    """
    quiet = not logging.getLogger().isEnabledFor(logging.WARNING)
    console = Console(markup=False, emoji=False, stderr=True, quiet=quiet)
    if not console.is_terminal:
        yield _now_and_then(what, total, console)
        return
    columns = *Progress.get_default_columns(), MofNCompleteColumn()
    with Progress(*columns, console=console, redirect_stdout=False) as shown:
        bar = shown.add_task(what, total=total)
        yield lambda done: shown.advance(bar, done)


def _now_and_then(what: str, total: int | None, console: Console) -> Callable[[int], None]:
    begin = said = monotonic()
    done = 0

    def advance(more: int) -> None:
        nonlocal said, done
        done, now = done + more, monotonic()
        if total is None or now - said < SECONDS_BETWEEN_LINES or not 0 < done < total:
            return
        said, left = now, (now - begin) / done * (total - done)
        line = f"{what}: {done:,} of {total:,} done, about {clock(left)} remaining"
        console.print(line, highlight=False, soft_wrap=True)

    return advance


@contextmanager
def line_progress(file: Path | None) -> Iterator[Callable[[int], None]]:
    """Progress over the lines of a file, or of standard input, whose number is not known.

    There is no bar if standard output is a terminal, which shows what is made of the lines.
    """
    from mtl.corpora.running_text import lines_in

    if sys.stderr.isatty() and sys.stdout.isatty():
        yield lambda done: None
        return
    with progress_bar("lines", None if file is None else lines_in(file)) as advance:
        yield advance


sentence_progress = partial(progress_bar, "sentences")


def print_scores(
    metrics: Mapping[str, Mapping[str, Mapping[str, float]]], title: str, console: Console | None = None
) -> None:
    """Print scores per task (rows) and split (columns), in per cent; per-type scores are left to files."""
    table = Table(title=f"{title}: scores in %")
    table.add_column("task")
    table.add_column("score")
    for split in metrics:
        table.add_column(split, justify="right")
    tasks = dict.fromkeys(task for scores in metrics.values() for task in scores)
    for task in tasks:
        names = dict.fromkeys(
            name for scores in metrics.values() for name in scores.get(task, {}) if "/" not in name
        )
        for name in names:
            cells = [scores.get(task, {}).get(name) for scores in metrics.values()]
            table.add_row(task, name, *("" if cell is None else f"{cell:.2f}" for cell in cells))
        table.add_section()
    print_table(table, console or Console(markup=False, emoji=False))


def print_table(table: Table, console: Console) -> None:
    """Print a table that has all its digits, also on a narrow terminal: texts are folded, numbers are not.

    If the numbers alone are too wide for the terminal, so is the table.
    """
    for column in table.columns:
        column.overflow = "fold"
        if column.justify == "right":
            column.min_width = max((len(str(cell)) for cell in column.cells), default=0)
    console.print(table, crop=False)


_KINDS = (".parquet", ".csv")


def check_table(path: Path | None) -> None:
    """Raise `InputError` for a file that has another suffix than a table, or whose folder does not exist."""
    if path is None:
        return
    if path.suffix not in _KINDS:
        raise InputError(f"{path}: use a file that ends in {' or '.join(_KINDS)}")
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist: make it, or use another one")


def write_table(table: pl.DataFrame, path: Path, console: Console) -> None:
    """Write a table in the format of its file's suffix, and print a line on it."""
    from mtl.files import whole_file
    from mtl.probes.tables import table_files

    with whole_file(path) as file:
        table_files.write_table_file(table, file, "csv" if path.suffix == ".csv" else "parquet")
    console.print(f"wrote {path}", highlight=False, soft_wrap=True)


def open_measured(
    run: Path,
    task: Sequence[str],
    corpus: Path | None,
    split: str,
    sentences: int | None,
    accelerator: Accelerator,
    out: Path | None = None,
) -> TrainedRun:
    """Open a run by the options of these names; prints which tasks are not measured, and why."""
    from mtl.analysis.trained import open_trained
    from mtl.config.instances import kinds_in
    from mtl.corpora.load import corpus_at
    from mtl.models.found import require_run
    from mtl.runs.folder.run import Run

    require_run(run, "configuration and tables, which this command reads and writes")
    trained = open_trained(
        run,
        None if corpus is None else corpus_at(corpus, kinds_in(Run.open(run).config())),
        split,
        tasks=task or None,
        sentences=sentences,
        accelerator=accelerator,
        out=out,
    )
    print_left_out("measured", trained.left_out)
    return trained


def dev_examples(run: Run, model: JointModel, tasks: Sequence[str]) -> list[Example]:
    """The sentences of a run's dev split with their targets in these tasks.

    Raises `InputError` for a task without gold, and for a sentence that is too long for the run.
    """
    from mtl.config.parse import read_configuration
    from mtl.config.schema import TrainConfig
    from mtl.corpora.load import load_split, require_layers
    from mtl.models.batches import examples, require_limit

    config = read_configuration(TrainConfig, run.folder / "config.yaml")
    chosen = {name: model.tasks[name] for name in tasks}
    gold = load_split(config.corpus, chosen, "dev")
    require_layers(gold, chosen, "dev")
    require_limit(gold, config.batch.max_words, "dev")
    return examples(gold, model.encoder.tokenizer, chosen, model.labels)


def runs_to_log(folders: Sequence[Path], log: bool) -> list[Run]:
    """The runs to which `--log` adds, checked before anything is measured; none without `--log`."""
    if not log:
        return []
    from mtl.runs.folder.wandb_view import runs_in_wandb

    return runs_in_wandb(folders)


def log_to_wandb(runs: Sequence[Run], values: Mapping[str, Any], console: Console) -> None:
    """Log tables and figures to the W&B run of each run, and print a line on each."""
    if not runs:
        return
    from mtl.runs.folder.wandb_view import add_to_wandb

    for line in add_to_wandb(runs, values):
        console.print(line, highlight=False, soft_wrap=True)


def corpus_in_folder(folder: Path | None) -> CorpusConfig | None:
    """The corpus in a folder; `None`, which stands for the run's own, if no folder is given."""
    from mtl.config.schema import CorpusConfig

    return None if folder is None else CorpusConfig(str(folder))


def print_left_out(done: str, reasons: Sequence[str]) -> None:
    """Print a line for each reason why something was not `done`."""
    console = Console(markup=False, emoji=False)
    for reason in reasons:
        console.print(f"not {done}: {reason}", highlight=False, soft_wrap=True)

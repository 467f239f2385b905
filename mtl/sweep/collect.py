"""What follows from a sweep's trials: the report, the picture and the tables."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from mtl.config.parse import configuration_from
from mtl.config.schema import TASK_NAMES, TrainConfig
from mtl.errors import InputError
from mtl.files import write_text
from mtl.runs.figures import FigureWithTables, draw, save
from mtl.runs.gather import gather
from mtl.runs.run import Run
from mtl.sweep.folder import SweepFolder, trials_of
from probes import table_files as tables
from probes.report.report import report


def collect(folder: SweepFolder, console: Console) -> Path | None:
    """Write report, tables and figures; returns the report's page, or `None` if nothing is finished."""
    sweep, base, _ = folder.kept()
    trials = trials_of(folder.study(sweep))
    finished = [folder.run(each.number) for each in trials if folder.state(each) == "finished"]
    if not finished:
        return None
    config = configuration_from(TrainConfig, base, str(folder.plan))
    evidence = gather(folder.path, "dev", {task: getattr(config, task).score for task in TASK_NAMES})
    drawn = report(evidence)
    page = folder.path / "report.html"
    write_text(page, drawn.html)
    for name, table in drawn.tables.items():
        for form in tables.FORMATS:
            path = folder.path / "tables" / f"{name}.{form}"
            path.parent.mkdir(exist_ok=True)
            tables.write(table, path, form)
    picture = None if evidence.sweep is None else evidence.sweep.picture()
    figures = {} if picture is None else {"parallel-coordinates": FigureWithTables(picture)}
    if any(Run(each).config()["pruning"] != "none" for each in finished):
        try:
            figures["heads-kept"] = draw("heads-kept", finished, split="dev")
        except (InputError, ValueError) as error:
            console.print(f"no figure heads-kept: {error}", highlight=False, markup=False, soft_wrap=True)
    for stem, figure in figures.items():
        for kind in ("pdf", "png"):
            save(figure, folder.path / "figures" / f"{stem}.{kind}", tables=False)
    for note in drawn.notes:
        console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)
    return page

"""What follows from a study's runs: the report, made of whatever is finished."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from mtl.config import TASK_NAMES
from mtl.files import write_text
from mtl.reporting import gather
from mtl.study.config import StudyConfig
from mtl.study.folder import StudyFolder
from probes.report.report import report


def collect(study: StudyFolder, config: StudyConfig, console: Console) -> Path | None:
    """Write the report; returns its page, or `None` if nothing is finished."""
    evidence = gather(
        study.path, config.split, {task: getattr(config.train, task).score for task in TASK_NAMES}
    )
    drawn = report(evidence)
    page = study.path / "report.html"
    write_text(page, drawn.html)
    for note in drawn.notes:
        console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)
    if drawn.verdict:
        console.print(f"competition: {drawn.verdict}", highlight=False, markup=False, soft_wrap=True)
    return page

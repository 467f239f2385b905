"""`mtl report`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rich.console import Console


def report(folder: Path, out: Path | None = None, split: Literal["dev", "test"] = "test") -> None:
    """Make one self-contained HTML page of all runs and probes in a folder.

    Args:
        folder: Holds folders of runs (or runs/ with them), and of probed encoders.
        out: The page; FOLDER/report.html if not given.
        split: Scores on which split.
    """
    from mtl.config import TASK_NAMES, TrainConfig
    from mtl.files import write_text
    from mtl.reporting import gather
    from probes.report.report import report as page

    default = TrainConfig()
    evidence = gather(folder, split, {task: getattr(default, task).score for task in TASK_NAMES})
    drawn = page(evidence)
    out = out or folder / "report.html"
    write_text(out, drawn.html)
    console = Console()
    for note in drawn.notes:
        console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)
    if drawn.verdict:
        console.print(f"competition: {drawn.verdict}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"wrote {out} ({len(drawn.html.encode()) / 1e6:.2f} MB)", highlight=False, soft_wrap=True)

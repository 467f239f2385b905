"""A study in W&B: the best heads of its runs, and its report."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from mtl.config.effective import plain
from mtl.config.schema import TrainConfig
from mtl.files import write_json
from mtl.probes.tables.best_heads import best_heads, weighted_means
from mtl.probes.tables.table_files import read_csv
from mtl.runs.folder.run import Run
from mtl.runs.folder.wandb_view import STEP, View, flat_scores, new_identity, view_of
from mtl.study.config import StudyConfig

KNOWN = "wandb.json"
"""The file in a study's folder with the id of its W&B run."""


def log_probes(config: TrainConfig, run: Run, heads: pl.DataFrame) -> None:
    """Add the best head for every label, and the weighted means, to the run's W&B run, if it has one.

    As in reports, only the run's own tasks count.
    """
    if config.wandb.mode == "disabled":
        return
    best = best_heads(heads.filter(pl.col("task").is_in(config.tasks)))
    means = weighted_means(best)
    last = read_csv(run.folder / "history.csv").row(-1, named=True)
    view = view_of(config, run)
    tables = {"probes/best_heads": best, "probes/weighted_means": means}
    view.log({**tables, STEP: last["update"]}, step=last["update"] + 1)
    # If a run has two local logs, `wandb sync` replaces the summary of the first with that of the second.
    view.summarise(last | flat_scores(run.metrics()))
    view.summarise(
        {
            f"probes/{row['task']}/{row['measure']}{end}": row[column]
            for row in means.iter_rows(named=True)
            for end, column in (("", "value"), ("/chance", "chance"))
        }
    )
    view.end()


def log_study(folder: Path, config: StudyConfig, tables: Mapping[str, pl.DataFrame], page: Path) -> None:
    """Log the report and its tables to the study's own W&B run, the same one each time.

    The keys of `tables` are the stems of files in `tables/`, which become an artifact together with the page.
    """
    if config.train.wandb.mode == "disabled":
        return
    name = folder.resolve().name
    wandb = dataclasses.replace(config.train.wandb, group=name, job_type="report", tags=(name, "report"))
    logged = _logged(folder) or {"id": new_identity(f"{name}-report"), "times": 0}
    write_json(folder / KNOWN, {**logged, "times": logged["times"] + 1})
    view = View(folder, wandb, logged["id"], f"{name} report", plain(dataclasses.asdict(config)))
    shown = {f"tables/{key}": table for key, table in tables.items()}
    view.log({**shown, "report": page}, step=logged["times"])
    files = [path for key in tables for path in sorted((folder / "tables").glob("*")) if path.stem == key]
    view.keep(f"report-{name}", "report", [page, *files])
    view.end()


def _logged(folder: Path) -> dict[str, Any] | None:
    """The id of the study's W&B run and the number of reports in it; `None` for no or a damaged record."""
    try:
        values = json.loads((folder / KNOWN).read_bytes())
        return {"id": str(values["id"]), "times": int(values["times"])}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None

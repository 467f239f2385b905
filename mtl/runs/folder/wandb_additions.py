"""What W&B gets after training: measures, figures and comparisons in the runs that they are of; reports."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from mtl.config.parse import read_configuration
from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.files import write_json
from mtl.probes.tables.label_scores import best_heads, weighted_means
from mtl.probes.tables.table_files import read_csv
from mtl.runs.folder.run import Run
from mtl.runs.folder.wandb_view import (
    STEP,
    WandbView,
    final_scores,
    new_identity,
    summary_of,
    view_of,
    wandb_mode,
)

KNOWN = "wandb.json"
"""The file in a folder of runs with the id of the W&B run of its report."""


def runs_in_wandb(folders: Sequence[Path]) -> list[Run]:
    """The runs in these folders; raises `InputError` for one that has no W&B run, or W&B switched off."""
    runs = [Run.open(folder) for folder in folders]
    for run in runs:
        if "wandb_id" not in run.status() or not (run.folder / "history.csv").is_file():
            raise InputError(
                f"--log: {run.folder} has no W&B run: train with --wandb.mode=online, or leave out --log"
            )
        if wandb_mode(config_of(run)) == "disabled":
            raise InputError(f"--log: W&B is switched off (WANDB_MODE), and {run.folder} has a W&B run")
    return runs


def add_to_wandb(runs: Sequence[Run], values: Mapping[str, Any]) -> list[str]:
    """Log tables, figures and files to the W&B run of each run (`runs_in_wandb`); returns lines on it."""
    return [_add(config_of(run), run, values, {}) for run in runs]


def log_probes(config: TrainConfig, run: Run, heads: pl.DataFrame) -> str:
    """Add the best head for every label, and the weighted means, to the run's W&B run; returns a line on it.

    As in reports, only the run's own tasks count. Nothing happens if W&B is off.
    """
    if wandb_mode(config) == "disabled":
        return ""
    best = best_heads(heads.filter(pl.col("task").is_in(config.tasks)))
    means = weighted_means(best)
    numbers = {
        f"probes/{row['task']}/{row['measure']}{end}": row[column]
        for row in means.iter_rows(named=True)
        for end, column in (("", "value"), ("/chance", "chance"))
    }
    return _add(config, run, {"probes/best_heads": best, "probes/weighted_means": means}, numbers)


def _add(config: TrainConfig, run: Run, values: Mapping[str, Any], numbers: Mapping[str, float]) -> str:
    """Log values in a row of their own, after those of training, and numbers of the run as a whole.

    If a run has several local logs, `wandb sync` keeps the summary of the last one. So each has all of it.
    """
    history = read_csv(run.folder / "history.csv").rows(named=True)
    last, added = history[-1]["update"], run.status().get("wandb_additions", {"rows": 0, "numbers": {}})
    numbers = {**added["numbers"], **numbers}
    view = view_of(config, run)
    run.update_status({"wandb_additions": {"rows": added["rows"] + 1, "numbers": numbers}})
    view.log({**values, STEP: last}, step=last + 1 + added["rows"])
    view.summarise(summary_of(config, history) | final_scores(config, run.metrics()) | numbers)
    view.end()
    return f"{'not ' if view.failed else ''}logged to W&B run {view.identity}: {', '.join(values)}"


def report_config(folder: Path) -> TrainConfig:
    """The configuration with W&B's settings for the report of the runs in a folder: that of the first in W&B.

    Raises `InputError` if none is.
    """
    folders = sorted({*folder.glob("*/status.json"), *folder.glob("runs/*/status.json")})
    runs = [Run(path.parent) for path in folders if (path.parent / "config.yaml").is_file()]
    found = next((run for run in runs if "wandb_id" in run.status()), None)
    if found is None:
        raise InputError(f"--log: no run in {folder} has a W&B run: leave it out")
    return config_of(found)


def log_report(
    folder: Path,
    train: TrainConfig,
    settings: Mapping[str, Any],
    tables: Mapping[str, pl.DataFrame],
    page: Path,
) -> str:
    """Log a report, its tables and figures to a W&B run of its own, the same one each time.

    Returns a line on it, which is empty if W&B is off.

    The keys of `tables` are the stems of files in `tables/`, which become an artifact together with the page.
    """
    mode = wandb_mode(train)
    if mode == "disabled":
        return ""
    name = folder.resolve().name
    wandb = dataclasses.replace(
        train.wandb, mode=mode, group=name, job_type="report", tags=(name, "report"), notes=None
    )
    logged = _logged(folder) or {"id": new_identity(f"{name}-report"), "times": 0}
    write_json(folder / KNOWN, {**logged, "times": logged["times"] + 1})
    view = WandbView(folder, wandb, logged["id"], f"{name} report", settings)
    pictures = {f"figures/{path.stem}": path for path in sorted((folder / "figures").glob("*.png"))}
    shown = {f"tables/{key}": table for key, table in tables.items()}
    view.log({**shown, **pictures, "report": page}, step=logged["times"])
    files = [path for key in tables for path in sorted((folder / "tables").glob("*")) if path.stem == key]
    view.keep(f"report-{name}", "report", [page, *files])
    view.end()
    return f"{'not ' if view.failed else ''}logged to W&B run {view.identity}"


def config_of(run: Run) -> TrainConfig:
    """The configuration that a run recorded."""
    return read_configuration(TrainConfig, run.folder / "config.yaml")


def _logged(folder: Path) -> dict[str, Any] | None:
    """The id of the report's W&B run and the number of reports in it; `None` for no or a damaged record."""
    try:
        values = json.loads((folder / KNOWN).read_bytes())
        return {"id": str(values["id"]), "times": int(values["times"])}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None

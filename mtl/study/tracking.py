"""A study in W&B: what its runs' heads are good at, and what follows from all of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from mtl.config import TrainConfig
from mtl.files import write_json
from mtl.run import Run, plain
from mtl.study.config import StudyConfig
from mtl.tracking import view_of
from mtl.wandb_view import View, new_identity
from probes.table import best_heads, weighted_means


def log_probes(config: TrainConfig, run: Run, heads: pl.DataFrame) -> None:
    """Add the best head of every label and the weighted means to the run's W&B run, if it has one."""
    if config.wandb.mode == "disabled":
        return
    best = best_heads(heads)
    means = weighted_means(best)
    view = view_of(config, run)
    view.log_tables({"probes/best_heads": best, "probes/weighted_means": means})
    view.summarise(
        {f"probes/{row['task']}/{row['measure']}": row["value"] for row in means.iter_rows(named=True)}
    )
    view.end()


def log_study(folder: Path, config: StudyConfig, tables: Mapping[str, pl.DataFrame], page: Path) -> None:
    """Show the report and its tables in a W&B run of the study's own, the same one each time.

    `tables` are by name; what stands of them in the folder's `tables/` becomes an artifact with the page.
    """
    if config.train.wandb.mode == "disabled":
        return
    name = folder.resolve().name
    wandb = dataclasses.replace(config.train.wandb, group=name, job_type="report", tags=(name, "report"))
    view = View(folder, wandb, _identity(folder, name), f"{name} report", plain(dataclasses.asdict(config)))
    view.log_tables({f"tables/{key}": table for key, table in tables.items()})
    view.log_page("report", page)
    files = [
        path for key in tables for path in sorted((folder / "tables").glob(f"{key}.*")) if path.stem == key
    ]
    view.log_artifact(f"report-{name}", "report", [page, *files])
    view.end()


def _identity(folder: Path, name: str) -> str:
    """The id of the study's W&B run, kept in its folder."""
    path = folder / "wandb.json"
    try:
        identity: str = json.loads(path.read_bytes())["id"]
    except (OSError, ValueError, KeyError, TypeError):  # none yet, or a damaged file: a new W&B run
        identity = new_identity(f"{name}-report")
        write_json(path, {"id": identity})
    return identity

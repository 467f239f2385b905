"""Masks that a study makes for its runs (`mtl.study.extensions.MaskSource`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtl.files import whole_file, write_json
from mtl.runs.folder.content import DRAWS
from mtl.study.extensions import mask_sources
from mtl.study.jobs.job import Job

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class MadeMasks:
    """The masks of a run, before they are written."""

    path: Path
    """The value of `gates.masks`."""
    table: pl.DataFrame
    """The rows of a gates.parquet."""
    record: dict[str, Any]
    """How they were made, for draws.json."""


def made_masks(runs: Sequence[Job]) -> dict[str, MadeMasks]:
    """The masks that the study makes for these runs, by path."""
    made: dict[str, MadeMasks] = {}
    for source in mask_sources():
        of_source = [run for run in runs if run.makes is not None and run.makes.source == source.key]
        if of_source:
            made |= source.masks(of_source)
    return made


def write_masks(masks: Mapping[str, MadeMasks]) -> None:
    """Write the mask files and, in their folder, draws.json, which records how each was made."""
    from mtl.probes.tables.table_files import write_parquet

    by_folder: dict[Path, dict[str, Any]] = {}
    for made in masks.values():
        made.path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(made.path) as path:
            write_parquet(made.table, path)
        by_folder.setdefault(made.path.parent, {})[made.path.name] = made.record
    for folder, records in by_folder.items():
        write_json(folder / DRAWS, records)

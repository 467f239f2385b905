"""The setup whose masks are a study's claims: that of the first block of its file that learns such masks."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from mtl.config.parse import read_configuration
from mtl.errors import InputError, did_you_mean
from mtl.probes.report.claims import ClaimingSetup
from mtl.probes.report.data import ReportData
from mtl.study.config import KINDS, Block, Masks, StudyConfig
from mtl.study.grid.grid import planned
from mtl.study.grid.task_sets import task_sets
from mtl.study.jobs.job import Job
from mtl.tasks.in_words import counted

RULE = "fixed beforehand as those of the first block with masks in the study's file"


def stored_study(folder: Path) -> StudyConfig | None:
    """The study in a folder, as last planned; `None` if there is none."""
    path = folder / "study.yaml"
    return read_configuration(StudyConfig, path) if path.is_file() else None


def fixed_claims(study: StudyConfig, folder: Path, evidence: ReportData) -> ClaimingSetup | None:
    """The setup whose masks are claims; `None` if no block of the study's file learns such masks.

    If the setup has no runs yet, it has its name in the file; no other setup replaces it.
    """
    runs = _first(study, folder)
    if not runs:
        return None
    folders = {f"runs/{run.name}" for run in runs}
    setups = {row["setup"] for row in evidence.runs.iter_rows(named=True) if row["run"] in folders}
    return ClaimingSetup(min(setups, default=runs[0].grid_cell), RULE)


def only_claiming_seeds(
    study: StudyConfig, evidence: ReportData, claiming: ClaimingSetup | None
) -> ReportData:
    """The evidence without masks of the claiming setup whose seeds are not in `claims.seeds`."""
    seeds = study.claims.seeds
    if seeds is None or claiming is None or evidence.gates is None:
        return evidence
    is_claim, is_other = pl.col("setup") == claiming.setup, ~pl.col("seed").is_in(seeds)
    gates = evidence.gates.filter(~(is_claim & is_other))
    left_out = evidence.gates.filter(is_claim & is_other)["seed"].n_unique()
    note = f"claims of {claiming.setup} are those of seeds {', '.join(map(str, seeds))}"
    if left_out:
        note += f": masks of {counted(left_out, 'other seed')} are left out"
    return dataclasses.replace(
        evidence, gates=None if gates.is_empty() else gates, notes=(*evidence.notes, note)
    )


def chosen_claims(
    name: str, evidence: ReportData, several: Mapping[str, object], fixed: ClaimingSetup | None
) -> ClaimingSetup:
    """The setup that `--claims` names; raises `InputError` if its masks cannot be claims.

    The keys of `several` are the setups with masks of several tasks; `fixed` is the study's own setup.
    """
    if name not in several:
        if not several:
            raise InputError(f"--claims={name}: no setup here has masks of several tasks")
        if name in {setup.name for setup in evidence.setups}:
            raise InputError(
                f"--claims={name} has no masks of several tasks; use one of {'; '.join(several)}"
            )
        completions = [setup for setup in several if setup.startswith(name)]
        nearest = f": did you mean '{completions[0]}'?" if completions else did_you_mean(name, several, "")
        known = f"{' There' if nearest else '; there'} are {'; '.join(several)}"
        raise InputError(f"unknown setup in --claims: '{name}'{nearest}{known}")
    if fixed is not None and fixed.setup == name:
        return fixed
    why = "chosen with --claims when this page was made, so that the corrected p is the one to be read"
    return ClaimingSetup(
        name, why if fixed is None else f"{why}; the study's file fixes those of {fixed.setup}"
    )


def _first(study: StudyConfig, folder: Path) -> list[Job]:
    """The runs of the first block whose masks are claims: of several tasks alone, or of one set of tasks with
    a mask per task; empty if there is no such block."""
    for block in study.grid:
        alone = tuple(
            setup for setup in block.setups if all(len(tasks) == 1 for tasks in task_sets(setup, study))
        )
        for setup, masks in itertools.product(block.setups, block.masks):
            if not KINDS[masks].learned:
                continue  # masks from a file or a draw do not show which heads a task wants
            if setup in alone:
                runs = _masked(study, folder, block, alone, masks)
                if len({run.config.tasks for run in runs}) > 1:
                    return runs
            elif KINDS[masks].per_task and len(task_sets(setup, study)) == 1:
                return _masked(study, folder, block, (setup,), masks)
    return []


def _masked(
    study: StudyConfig, folder: Path, block: Block, setups: tuple[str, ...], masks: Masks
) -> list[Job]:
    """The runs of a block with these masks."""
    part = dataclasses.replace(block, setups=setups, masks=(masks,))
    runs = planned(dataclasses.replace(study, grid=(part,)), folder)
    return [run for run in runs if run.masks == masks]

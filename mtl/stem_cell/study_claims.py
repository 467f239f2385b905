"""The heads that tasks claim in a study: the runs that determine them, and the file for runs with copies."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.stem_cell.claims_file import Claims, Head, write_claims
from mtl.stem_cell.clones_start import clones_of
from mtl.study.jobs.folder import StudyFolder
from mtl.study.jobs.job import Job


def with_claims(runs: Sequence[Job], folder: Path) -> list[Job]:
    """The runs; those that copy claimed heads get the names of the runs whose masks determine the claims.

    These are the study's runs of each task alone with `dynamic` masks, with all of their seeds: if their
    block has seeds of its own, claims and scores come from different runs. Runs with the label of the run
    that copies are preferred, then those without a label, then those of the only label. A run with
    `clones.claims` is not changed. Raises `InputError` for a task that has no such runs, or has runs of
    several labels and none that fits.
    """
    return [_with_claims(run, runs, folder) if _needs_claims(run.config) else run for run in runs]


def _needs_claims(config: TrainConfig) -> bool:
    clones = clones_of(config)
    return clones.copy_claimed_heads and clones.claims is None


def _with_claims(run: Job, runs: Sequence[Job], folder: Path) -> Job:
    sources: list[str] = []
    used: set[str] = set()
    for task in run.config.tasks:
        masked = [other for other in runs if other.config.tasks == (task,) and other.masks == "dynamic"]
        if not masked:
            raise InputError(
                f"run {run.name} copies heads that {task} claims, but the grid has no masks of {task} alone: "
                "add a block with setups: [single] and masks: [dynamic], or set clones.claims"
            )
        labels = {other.label for other in masked}
        chosen = run.label if run.label in labels else None
        if chosen not in labels:
            if len(labels) > 1:
                raise InputError(
                    f"run {run.name} could take the claims of {task} from the runs labelled "
                    f"{' or '.join(sorted(map(str, labels)))}: give its block one of these labels"
                )
            [chosen] = labels
        used |= {chosen} if chosen else set()
        sources += [other.name for other in masked if other.label == chosen]
    path = folder / "claims" / f"{'-'.join(['+'.join(run.config.tasks), *sorted(used)])}.json"
    clones = dataclasses.replace(clones_of(run.config), claims=str(path))
    slot: dict[str, Any] = {"clones": clones}
    config = dataclasses.replace(run.config, **slot)
    return dataclasses.replace(run, config=config, prepared_from=tuple(sources))


def write_claims_of(job: Job, study: StudyFolder) -> None:
    """Write the file of claims that a run reads, from the masks of the runs in `job.prepared_from`.

    Every process writes the same file from the same masks. Raises `InputError` for masks that cannot be read.
    """
    claims, names = claims_of(job, study, {other.name: other for other in study.jobs()})
    path = Path(str(clones_of(job.config).claims))
    path.parent.mkdir(exist_ok=True)
    write_claims(path, claims, names)


def claims_of(job: Job, study: StudyFolder, jobs: Mapping[str, Job]) -> tuple[Claims, dict[str, list[str]]]:
    """The claims of the runs in `job.prepared_from`, and the names of these runs by task.

    Raises `InputError` for masks that cannot be read.
    """
    import polars as pl  # here, so that planning loads nothing heavy

    from mtl.heads.gate_file import LEARNED, read_gates
    from mtl.probes.statistics.masks import final_masks

    tables: dict[str, list[pl.DataFrame]] = {}
    names: dict[str, list[str]] = {}
    for name in job.prepared_from:
        path = study.run(name) / "gates.parquet"
        try:
            gates = read_gates(path).with_columns(learned=LEARNED)
        except (pl.exceptions.PolarsError, OSError) as error:
            raise InputError(f"{path} cannot be read ({error}): train {name} again") from error
        [task] = gates["task"].unique().to_list()
        seed = jobs[name].config.seed
        tables.setdefault(task, []).append(gates.with_columns(run=pl.lit(name), seed=pl.lit(seed)))
        names.setdefault(task, []).append(name)
    claims: dict[str, tuple[Head, ...]] = {}
    learned: dict[str, tuple[Head, ...]] = {}
    for task, parts in tables.items():
        masks, _ = final_masks(pl.concat(parts))
        claimed = masks.claimed()[0]
        claims[task] = _heads(claimed)
        learned[task] = _heads(masks.learned_claims()[0])
    layers, heads = claimed.shape
    return Claims((layers, heads), claims, learned), names


def _heads(chosen: Bool[np.ndarray, "layer head"]) -> tuple[Head, ...]:
    return tuple((int(layer), int(head)) for layer, head in np.argwhere(chosen))

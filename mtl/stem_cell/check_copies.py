"""Check runs with copied heads while planning: their encoder's family, and claims that exist already."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.heads.family_table import FAMILIES, no_copies_because
from mtl.models.known_encoders import encoder_configuration, encoder_shape
from mtl.stem_cell.claims_file import Claims, nothing_contested, read_claims
from mtl.stem_cell.clones_config import ClonesConfig, clones_of
from mtl.stem_cell.study_claims import claims_of
from mtl.study.jobs.folder import StudyFolder
from mtl.study.jobs.job import Job


def check_copies(runs: Sequence[Job]) -> None:
    """Raise `InputError` for a run with copies that cannot be made: by its family, or by its claims.

    Claims are known here where `clones.claims` names a file; see `copies_that_fail` for the study's own.
    """
    for run in runs:
        clones = clones_of(run.config)
        if clones.copy_heads:
            check_family(run.name, run.config)
        if clones.copy_claimed_heads and not run.prepared_from:
            path, tasks = str(clones.claims), tuple(run.config.chosen())
            claims = read_claims(Path(path), tasks, encoder_shape(run.config.encoder.name))
            if not claims.contested(tasks):
                raise InputError(f"run {run.name}: {nothing_contested(tasks, path)}")
            if reason := too_few_heads(claims, tasks, clones):
                raise InputError(f"run {run.name}: {reason}")


def check_family(name: str, config: TrainConfig) -> None:
    """Raise `InputError` if no heads of the run's encoder can be copied, by its config.json alone."""
    encoder = encoder_configuration(config.encoder.name)
    family = FAMILIES.get(str(encoder.get("model_type")))
    if family is None:
        return  # an unknown family is refused when the model is loaded: the message names its modules
    reason = no_copies_because(family, encoder)
    if reason:
        raise InputError(
            f"run {name}: no heads can be copied in {config.encoder.name} ({encoder['model_type']}): "
            f"{reason}; leave the block out, or use another encoder"
        )


def too_few_heads(claims: Claims, tasks: Sequence[str], clones: ClonesConfig) -> str:
    """Why a layer of the uncut encoder has too few heads for these copies; empty if it has enough."""
    from mtl.stem_cell.clones import planned_copies  # it loads torch, and few studies come here

    layers, heads = claims.shape
    try:
        planned_copies(claims, [range(heads)] * layers, tasks, clones)
    except InputError as error:
        return str(error)
    return ""


def copies_that_fail(jobs: Mapping[str, Job], changed: set[str], study: StudyFolder) -> Iterator[str]:
    """A line for each unfinished job that will fail because its tasks contest no head, or too many.

    Only jobs whose claims are known are looked at: the runs that these come from have finished, and neither
    they nor the job are in `changed`.
    """
    known: dict[str, Claims] = {}
    for job in jobs.values():
        sources = job.prepared_from
        if not sources or not changed.isdisjoint({job.name, *sources}) or _finished(study, [job.name]):
            continue
        if not _finished(study, sources):
            continue
        path, tasks = str(clones_of(job.config).claims), job.config.tasks
        try:
            if path not in known:
                known[path], _ = claims_of(job, study, jobs)
        except InputError as error:
            yield f"{job.name} will fail: {error}"
            continue
        if not known[path].contested(tasks):
            yield (
                f"{job.name} will fail: {nothing_contested(tasks, path)}; leave its tasks out, or keep more "
                "heads open in their masks"
            )
        elif reason := too_few_heads(known[path], tasks, clones_of(job.config)):
            yield f"{job.name} will fail: {reason}"


def _finished(study: StudyFolder, names: Sequence[str]) -> bool:
    return all(study.progress(name).state == "finished" for name in names)

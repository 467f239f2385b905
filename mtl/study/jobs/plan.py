"""The plan of a study: its file compared with its folder, and which runs are repeated, and why."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mtl.config.effective import different_keys, plain
from mtl.config.yaml_file import dump
from mtl.errors import InputError
from mtl.files import write_text
from mtl.models.inputs import InputCache
from mtl.study.config import StudyConfig
from mtl.study.extensions import preparation_of, preparations
from mtl.study.jobs.folder import StudyFolder
from mtl.study.jobs.job import MEASURED, Job, Progress, code_part, of_training, trained_alike
from mtl.study.jobs.wanted import digest, wanted_jobs
from mtl.workers.lease import Holder, lease

if TYPE_CHECKING:
    from mtl.study.made_masks import MadeMasks


@dataclass(frozen=True)
class Change:
    """A run in the folder that differs from what the study wants now."""

    name: str
    why: str
    what: Literal["made again", "its training stays", "archived"]
    """The consequence."""
    forgotten: tuple[str, ...] = ()
    """The measures that are removed from its heads.parquet."""

    def __str__(self) -> str:
        return f"{self.name}: {self.why}; {self.what}"


@dataclass(frozen=True)
class Plan:
    """The jobs of a study, and the changes in its folder that they require."""

    folder: StudyFolder
    wanted: tuple[Job, ...]
    """As the study's file, corpora and code define them."""
    keep_code: bool
    jobs: tuple[Job, ...]
    """The wanted jobs; those that keep the results of older code have its fingerprints."""
    changes: tuple[Change, ...]
    text: str
    """The study's file, with all keys."""
    masks: Mapping[str, MadeMasks]
    """The masks that the study makes for runs, by path; they are written when the plan is carried out."""
    notes: tuple[str, ...] = ()
    """Lines about runs that will certainly fail."""


def make_plan(
    study: StudyConfig, folder: StudyFolder, inputs: InputCache | None, keep_code: bool = False
) -> Plan:
    """The study's jobs compared with the folder; raises `InputError` for runs that would fail.

    Without `inputs`, as for a dry run, corpora are read only up to the first annotated sentence of each task.
    With `keep_code`, finished results of other code are kept.
    """
    wanted, masks = wanted_jobs(study, folder, inputs)
    text = dump(plain(dataclasses.asdict(study)))
    jobs, changes = _compared(wanted, folder, keep_code)
    changed = {change.name for change in changes}
    by_name = {job.name: job for job in jobs}
    notes = tuple(note for each in preparations() for note in each.notes(by_name, changed, folder))
    return Plan(folder, wanted, keep_code, jobs, changes, text, masks, notes)


def _compared(
    wanted: Sequence[Job], folder: StudyFolder, keep_code: bool
) -> tuple[tuple[Job, ...], tuple[Change, ...]]:
    """The jobs, and what has to change for them in the folder as it is now."""
    before = {job.name: job for job in folder.jobs()}
    jobs: dict[str, Job] = {}
    changes = []
    for job in wanted:
        made_of = dict(job.made_of)
        if job.needs is not None:  # what that run is made of, perhaps by older code that is kept
            made_of["needs"] = digest(of_training(jobs[job.needs].made_of))
        if job.prepared_from and (preparation := preparation_of(job.settings)) is not None:
            before_it = [of_training(jobs[name].made_of) for name in job.prepared_from]
            made_of[preparation.part] = digest(before_it)
        progress = folder.last_progress(job.name)
        if keep_code and progress.state == "finished":
            made_of = _keep_old_code(made_of, progress.made_of)
        jobs[job.name] = dataclasses.replace(job, made_of=made_of)
        if progress.made_of and progress.made_of != made_of:
            changes.append(_change(before.get(job.name), jobs[job.name], progress))
    changes += [
        Change(name, "no longer in the study", "archived")
        for name in before
        if name not in jobs and (folder.run(name).exists() or folder.last_progress(name).made_of)
    ]
    return tuple(jobs.values()), tuple(changes)


def _keep_old_code(made_of: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    """A job's fingerprints, with those of its old code if nothing else has changed."""
    trained = {**made_of, "code": before.get("code", "")}
    if not trained_alike(trained, before):
        return dict(made_of)
    same = [name for name in MEASURED if name in trained and trained[name] == before.get(name)]
    return trained | {code_part(name): before[code_part(name)] for name in same}


@contextmanager
def carrying_out(plan: Plan) -> Iterator[Plan]:
    """Archive what has changed, write the jobs, and hold the lease of a command until the block ends.

    Yields the plan, compared with the folder again, since another call may have changed the folder after the
    plan was made. Raises `InputError` if other commands work on a different plan.
    """
    folder, me = plan.folder, Holder.me()
    with contextlib.ExitStack() as leases:
        with folder.planning():
            jobs, changes = _compared(plan.wanted, folder, plan.keep_code)
            plan = dataclasses.replace(plan, jobs=jobs, changes=changes)
            _carry_out(plan)
            leases.enter_context(lease(folder.command(me)))
        yield plan


def _carry_out(plan: Plan) -> None:
    folder = plan.folder
    known = {job.name: job for job in folder.jobs()}
    holders = folder.holders(list(known.values()))
    same = {job.name: job.made_of for job in plan.jobs} == {name: job.made_of for name, job in known.items()}
    if not same and (holders or folder.commands()):
        user = next((f"{name}, {holder}" for name, holder in holders.items()), None)
        raise InputError(
            f"{folder.path} is in use for another study file or code ({user or folder.commands()[0]}): "
            "stop that command first, or give this study another name"
        )
    for change in plan.changes:
        if change.name in holders:
            continue  # another command with the same plan works on it
        if change.what in ("made again", "archived"):
            _archive(folder, change.name)
        else:
            _archive_measures(folder, change.name, change.forgotten)
    if plan.masks:
        from mtl.study.made_masks import write_masks

        write_masks(plan.masks)
    wanted = {job.name for job in plan.jobs}
    for name in known.keys() - wanted:
        folder.remove_job(name)
    for job in plan.jobs:
        if known.get(job.name) != job or job.name in {change.name for change in plan.changes}:
            folder.write_job(job)
        progress = folder.progress(job.name)
        if progress.state in ("failed", "interrupted") and not folder.holders([job]):
            folder.write_progress(job.name, dataclasses.replace(progress, state="waiting", tries=0, error=""))
    write_text(folder.study_file, plan.text)


def _archive(folder: StudyFolder, name: str) -> None:
    """Move a run to `.replaced`."""
    run = folder.run(name)
    if run.exists():
        archive = _free_name(folder, name)
        archive.parent.mkdir(exist_ok=True)
        run.rename(archive)
    folder.remove_job(name)


def _archive_measures(folder: StudyFolder, name: str, measures: Sequence[str]) -> None:
    """If a run's heads.parquet has these measures, copy it to `.replaced` and remove them from it."""
    table = folder.run(name) / "heads.parquet"
    if not measures or not table.exists():
        return
    from mtl.probes.measures.table import MADE_BY
    from mtl.runs.folder.heads_file import forget_measures, read_measures

    # Curves and carry-over have their own files, which a new measurement replaces.
    forgotten = {name for maker, names in MADE_BY.items() if maker in measures for name in names}
    if forgotten.isdisjoint(read_measures(table)[0]["measure"]):
        return
    archive = _free_name(folder, name)
    archive.mkdir(parents=True)
    shutil.copy2(table, archive)
    forget_measures(table, forgotten)


def _free_name(folder: StudyFolder, name: str) -> Path:
    """A path in `.replaced` that is not in use."""
    stem = f"{name}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
    paths = (folder.path / ".replaced" / f"{stem}{end}" for end in ("", *(f"-{n}" for n in range(2, 1000))))
    return next(path for path in paths if not path.exists())


def _change(before: Job | None, job: Job, progress: Progress) -> Change:
    """What happens to a run, and why."""
    old, new = progress.made_of, job.made_of
    if trained_alike(old, new):
        return _other_measures(job, old)
    keys: list[str] = []
    if before is not None:
        keys = different_keys(before.settings, job.settings) if job.trained else ["probes"]
    named = f" ({', '.join(keys[:4])})" if keys else ""
    changes = {
        "configuration": f"the configuration changed{named}",
        "encoder": "the encoder's files changed",
        "corpus": "the corpus changed",
        "masks": "the masks in its file changed",
        "code": "the code changed",
        **{each.part: each.changed for each in preparations()},
    }
    reasons = [reason for part, reason in changes.items() if old.get(part) != new.get(part)]
    takes = "has the masks of" if job.config.pruning == "fixed" else "starts from"
    return Change(job.name, ", ".join(reasons or [f"it {takes} {job.needs}, which changed"]), "made again")


def _other_measures(job: Job, old: Mapping[str, str]) -> Change:
    """What happens to a run whose training stays: measures are added, made again, or no longer wanted."""
    new = job.made_of
    added = [name for name in MEASURED if name in new and name not in old]
    dropped = [name for name in MEASURED if name in old and name not in new]
    both = [name for name in MEASURED if name in old and name in new]
    settings = [name for name in both if old[name] != new[name]]
    code = [name for name in both if name not in settings and old[code_part(name)] != new[code_part(name)]]
    reasons = {
        "{} added": added,
        "the settings of {} changed": settings,
        "the code of {} changed": code,
        "{} no longer wanted": dropped,
    }
    why = ", ".join(text.format(" and ".join(names)) for text, names in reasons.items() if names)
    return Change(job.name, why, "its training stays", (*settings, *code, *dropped))

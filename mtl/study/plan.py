"""The plan of a study: its file compared with its folder, and which runs are repeated, and why."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import hashlib
import json
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mtl.config.effective import counting_settings, different_keys, only_used, plain
from mtl.config.keys import shown_key
from mtl.config.parse import dump
from mtl.config.schema import SPLITS, CorpusConfig, TrainConfig
from mtl.corpora.load import Tasks, corpus_at, kinds_of, sources
from mtl.corpora.readers import files
from mtl.errors import InputError
from mtl.files import fingerprint, write_text
from mtl.models.found import check_encoder, encoder_files, is_local
from mtl.models.inputs import InputCache
from mtl.probes.measures.groups import GROUPS
from mtl.runs.folder.run import version
from mtl.study.config import PRETRAINED, ProbesConfig, StudyConfig
from mtl.study.grid import planned, probes_the_encoder
from mtl.study.jobs import MEASURED, Job, JobProgress, StudyFolder, of_training, trained_alike
from mtl.tasks.task import Task
from mtl.training.check import check_inputs, check_settings
from mtl.workers.lease import Holder, lease, remove_dead


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
    """As the study's file and corpora define them."""
    again: frozenset[str]
    """The names of jobs that are made again though nothing has changed."""
    jobs: tuple[Job, ...]
    """The wanted jobs, with the fingerprints of the runs that they need."""
    changes: tuple[Change, ...]
    text: str
    """The study's file, with all keys."""


def make_plan(
    study: StudyConfig, folder: StudyFolder, inputs: InputCache | None, again: Sequence[str] = ()
) -> Plan:
    """The study's jobs compared with the folder; raises `InputError` for runs that would fail.

    Without `inputs`, as for a dry run, corpora are read only up to the first annotated sentence of each task.
    Runs with names or patterns in `again`, and all that start from them, are made again.
    """
    wanted = wanted_jobs(study, folder, inputs)
    repeated = _repeated(wanted, again)
    text = dump(plain(dataclasses.asdict(study)))
    jobs, changes = _compared(wanted, folder, repeated)
    return Plan(folder, wanted, repeated, jobs, changes, text)


def _repeated(wanted: Sequence[Job], again: Sequence[str]) -> frozenset[str]:
    """The names of the jobs that are made again, each after those that it needs.

    Raises `InputError` for a name or a pattern that matches no job.
    """
    names = [job.name for job in wanted]
    for pattern in again:
        if not fnmatch.filter(names, pattern):
            raise InputError(
                f"--again={pattern}: the study has no such run; it has {', '.join(names[:5])}"
                f"{', …' if len(names) > 5 else ''}"
            )
    repeated: set[str] = set()
    for job in wanted:
        named = any(fnmatch.fnmatchcase(job.name, pattern) for pattern in again)
        if named or not repeated.isdisjoint(job.after()):
            repeated.add(job.name)
    return frozenset(repeated)


def _compared(
    wanted: Sequence[Job], folder: StudyFolder, again: Collection[str]
) -> tuple[tuple[Job, ...], tuple[Change, ...]]:
    """The jobs, and what has to change for them in the folder as it is now."""
    before = {job.name: job for job in folder.jobs()}
    jobs: dict[str, Job] = {}
    changes = []
    for job in wanted:
        made_of = dict(job.made_of)
        if job.needs is not None:
            made_of["needs"] = digest(of_training(jobs[job.needs].made_of))
        progress = folder.last_progress(job.name)
        jobs[job.name] = dataclasses.replace(job, made_of=made_of)
        if progress.made_of and progress.made_of != made_of:
            changes.append(_change(before.get(job.name), jobs[job.name], progress))
        elif job.name in again and (progress.made_of or folder.run(job.name).exists()):
            changes.append(Change(job.name, "repeated", "made again"))
    changes += [
        Change(name, "no longer in the study", "archived")
        for name in before
        if name not in jobs and (folder.run(name).exists() or folder.last_progress(name).made_of)
    ]
    return tuple(jobs.values()), tuple(changes)


@contextmanager
def carrying_out(plan: Plan) -> Iterator[Plan]:
    """Archive what has changed, write the jobs, and hold the lease of a command until the block ends.

    Yields the plan, compared with the folder again, since another call may have changed the folder after the
    plan was made. Raises `InputError` if other commands work on a different plan, or at all if runs are to be
    made again.
    """
    folder, me = plan.folder, Holder.me()
    with contextlib.ExitStack() as leases:
        with folder.planning():
            jobs, changes = _compared(plan.wanted, folder, plan.again)
            plan = dataclasses.replace(plan, jobs=jobs, changes=changes)
            _carry_out(plan)
            remove_dead(folder.command(me).parent)  # each command has a lease of its own name
            leases.enter_context(lease(folder.command(me)))
        yield plan


def _carry_out(plan: Plan) -> None:
    folder = plan.folder
    known = {job.name: job for job in folder.jobs()}
    holders = folder.holders(list(known.values()))
    same = {job.name: job.made_of for job in plan.jobs} == {name: job.made_of for name, job in known.items()}
    if (plan.again or not same) and (holders or folder.commands()):
        user = next((f"{name}, {holder}" for name, holder in holders.items()), None)
        use = "in use" if same else "in use for another study file or version of mtl"
        way_out = "" if same else ", or give this study another name"
        raise InputError(
            f"{folder.path} is {use} ({user or folder.commands()[0]}): stop that command first{way_out}"
        )
    for change in plan.changes:
        if change.name in holders:
            continue  # another command with the same plan works on it
        if change.what in ("made again", "archived"):
            _archive(folder, change.name)
        else:
            _archive_measures(folder, change.name, change.forgotten)
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
    from mtl.probes.measures.groups import MADE_BY
    from mtl.runs.folder.run_tables import forget_measures, read_measures

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


def _change(before: Job | None, job: Job, progress: JobProgress) -> Change:
    """What happens to a run, and why."""
    old, new = progress.made_of, job.made_of
    if trained_alike(old, new):
        return _other_measures(job, old)
    keys: list[str] = []
    if before is not None:
        keys = different_keys(before.settings, job.settings) if job.trained else ["probes"]
    named = f" ({', '.join(map(shown_key, keys[:4]))})" if keys else ""
    changes = {
        "configuration": f"the configuration changed{named}",
        "encoder": "the encoder's files changed",
        "corpus": "the corpus changed",
        "masks": "the masks in its file changed",
        "version": "the program's version changed",
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
    reasons = {
        "{} added": added,
        "the settings of {} changed": settings,
        "{} no longer wanted": dropped,
    }
    why = ", ".join(text.format(" and ".join(names)) for text, names in reasons.items() if names)
    return Change(job.name, why, "its training stays", (*settings, *dropped))


def wanted_jobs(study: StudyConfig, folder: StudyFolder, inputs: InputCache | None) -> tuple[Job, ...]:
    """A job for every run, each after those that it needs.

    Without `inputs`, corpora are read only up to the first annotated sentence of each task (`check_inputs`).
    Raises `InputError` for runs that would fail.
    """
    runs = planned(study, folder.path)
    jobs = [_encoder_before_training(study), *runs] if probes_the_encoder(study) else runs
    if not jobs:
        raise InputError("the grid has no runs: add a block, such as {setups: [STL, MTL]}")
    _check(study, runs, inputs)
    contents = _Contents()
    return tuple(
        dataclasses.replace(job, number=number, made_of=_made_of(job, contents))
        for number, job in enumerate(jobs)
    )


def _encoder_before_training(study: StudyConfig) -> Job:
    config = only_used(dataclasses.replace(study.train, tasks=tuple(study.train.chosen())))
    probes = dataclasses.replace(study.probes, masks=(), measures=("probes",), sentences=None)
    return Job(PRETRAINED, PRETRAINED, config, probes=probes, trained=False)


def _check(study: StudyConfig, runs: Sequence[Job], inputs: InputCache | None) -> None:
    """Raise `InputError` for settings, encoders and corpora with which runs would fail."""
    check_encoder(study.train.encoder.name)
    for run in runs:
        try:
            check_settings(run.config)
        except InputError as error:
            raise InputError(f"run {run.name}: {error}") from error
    of_runs = [str(run.config.gates.masks) for run in runs if run.needs is not None]
    check_inputs((run.config for run in runs), inputs, of_runs)


def _made_of(job: Job, contents: _Contents) -> dict[str, str]:
    """What a job is made of, except the fingerprints of the runs that it needs, which the plan adds."""
    settings, config = job_settings(job), job.config
    probes, everyone = job.probes or ProbesConfig(), job.probed_for
    measured = {
        name: probe_settings(probes, name) | contents.probed(probes, name, config.chosen())
        for name in job.measures()
    }
    if everyone is not None and probes.corpus is None:
        instances = {name: dataclasses.asdict(made) for name, made in everyone.instances.items()}
        measured["probes"] |= {
            "probes.source": contents.corpus(everyone.corpus, everyone.chosen()),
            "probes.instances": plain(instances),
        }
    made_of = {
        "configuration": digest(settings if job.trained else settings | measured["probes"]),
        "corpus": contents.corpus(config.corpus, config.chosen()),
        "version": version(),
        **contents.encoder(config.encoder.name),
    }
    if not job.trained:
        return made_of
    return {
        **made_of,
        **(contents.masks(config) if job.needs is None else {}),
        **{name: digest(used) for name, used in measured.items()},
    }


def job_settings(job: Job) -> dict[str, Any]:
    """The settings of a job that are not neutral, without paths and settings of measures.

    Corpora and local encoders count by their content, and the run that training starts from by its name.
    """
    settings, name = job.settings, job.config.encoder.name
    if job.trained:
        counting = {**counting_settings(settings), "init_from": job.needs}
    else:
        counting = counting_settings({key: settings[key] for key in ("corpus", "tasks")})
        counting["encoder.name"] = name
    if is_local(name):
        counting.pop("encoder.name", None)
    return counting


def probe_settings(probes: ProbesConfig, measure: str) -> dict[str, Any]:
    """The settings of a measure that differ from the defaults."""
    given, default = (plain(dataclasses.asdict(config)) for config in (probes, ProbesConfig()))
    used = GROUPS[measure].settings
    return {
        **{f"probes.{key}": given[key] for key in used if given[key] != default[key]},
        **{f"probes.options.{key}": value for key, value in probes.options.get(measure, {}).items()},
    }


class _Contents:
    """Fingerprints of the content of files; every file is read once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Path, ...], str] = {}

    def corpus(self, config: CorpusConfig, tasks: Tasks, splits: Sequence[str] = tuple(SPLITS)) -> str:
        """One fingerprint of all corpus files that a run reads; paths do not count."""
        return digest(
            [
                [list(source.kinds), split, self._of(tuple(files(path, source.files.format)))]
                for source in sources(config, tasks)
                for split, path in source.paths(splits).items()
            ]
        )

    def probed(self, probes: ProbesConfig, measure: str, tasks: Mapping[str, Task]) -> dict[str, str]:
        """The fingerprint of a measure's own corpus, instead of its path; empty if it has none."""
        group = GROUPS[measure]
        place = getattr(probes, group.corpus) if group.corpus else None
        if place is None:
            return {}
        if measure != "probes":
            split = probes.split if "split" in group.settings else "dev"
            return {f"probes.{group.corpus}": self.corpus(corpus_at(place, kinds_of(tasks)), tasks, [split])}
        splits = dict.fromkeys([probes.split, *(["train"] if probes.centroids == "train" else [])])
        files = [Path(place) / f"{split}.jsonl" for split in splits]
        for file in files:
            if not file.is_file():
                raise InputError(
                    f"probes.corpus={probes.corpus}: {file.name}, on which heads are probed, is missing"
                )
        return {"probes.corpus": self._of(tuple(files))}

    def encoder(self, name: str) -> dict[str, str]:
        """The fingerprint of a local encoder's configuration, weights and tokenizer; empty for others."""
        if not is_local(name):
            return {}
        paths = encoder_files(name)
        return {"encoder": digest([[path.name for path in paths], self._of(tuple(paths))])}

    def masks(self, config: TrainConfig) -> dict[str, str]:
        """The fingerprint of a run's fixed masks; empty for other runs."""
        if config.pruning != "fixed":
            return {}
        from mtl.heads.gate_file import masks_fingerprint
        from mtl.models.mask_file import check_masks

        masks = check_masks(Path(str(config.gates.masks)), config.gates.scope, tuple(config.chosen()))
        return {"masks": masks_fingerprint(masks)}

    def _of(self, paths: tuple[Path, ...]) -> str:
        if paths not in self._known:
            self._known[paths] = fingerprint(paths)
        return self._known[paths]


def digest(value: Any) -> str:
    """A fingerprint of plain values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()

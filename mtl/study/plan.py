"""A study's file laid over its folder: what is to do, what is done, and what has to be done again and why."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mtl import pretrained
from mtl.config import TrainConfig
from mtl.corpora.fingerprint import fingerprint
from mtl.corpora.readers import files
from mtl.data import SPLITS, require_layers, sources
from mtl.errors import InputError
from mtl.files import write_text
from mtl.material import Material
from mtl.run import different_keys, plain, without_volatile
from mtl.study.code import PROBING, TRAINING, code_fingerprint
from mtl.study.config import StudyConfig
from mtl.study.folder import Job, Progress, StudyFolder, done
from mtl.study.grid import STATIC, Planned, planned, probes_the_encoder


@dataclass(frozen=True)
class Change:
    """A run that was made, or begun, of other things than the study now asks for."""

    name: str
    why: str
    """What is different, or that the study has no such run any more."""
    wanted: bool
    """Whether the study still has such a run, which is then made again."""

    def __str__(self) -> str:
        return f"{self.name}: {self.why}; {'made again' if self.wanted else 'put away'}"


@dataclass(frozen=True)
class Plan:
    """What a study's folder is to hold."""

    folder: StudyFolder
    jobs: tuple[Job, ...]
    changes: tuple[Change, ...]
    text: str
    """The whole study file."""


def make_plan(study: StudyConfig, folder: StudyFolder, material: Material, keep_code: bool = False) -> Plan:
    """The study's jobs beside what the folder holds; raises `InputError` for what cannot be run.

    With `keep_code`, runs that other code has made are kept.
    """
    runs = planned(study, folder.path)
    if not runs and not probes_the_encoder(study):
        raise InputError("the grid has no runs: give setups, for instance setups: [single, all]")
    _check(study, runs, material)
    jobs = _jobs(study, runs, folder)
    before = {job.name: job for job in folder.jobs()}
    changes = []
    for place, job in enumerate(jobs):
        progress = folder.last_progress(job.name)
        if not progress.made_of or progress.made_of == job.made_of:
            continue
        if keep_code and progress.state == "finished":
            kept = {**job.made_of, "code": progress.made_of.get("code", "")}
            if kept == progress.made_of:
                jobs[place] = dataclasses.replace(job, made_of=kept)
                continue
        changes.append(Change(job.name, _why(before.get(job.name), job, progress), True))
    wanted = {job.name for job in jobs}
    changes += [
        Change(name, "not in the study any more", False)
        for name in before
        if name not in wanted and (folder.run(name).exists() or folder.last_progress(name).made_of)
    ]
    text = yaml.safe_dump(plain(dataclasses.asdict(study)), sort_keys=False, allow_unicode=True)
    return Plan(folder, tuple(jobs), tuple(changes), text)


def carry_out(plan: Plan) -> None:
    """Put what has changed away and write the jobs; raises `InputError` while others work on other jobs."""
    folder = plan.folder
    known = {job.name: job for job in folder.jobs()}
    same = {job.name: job.made_of for job in plan.jobs} == {name: job.made_of for name, job in known.items()}
    if not same:
        owners = folder.owners(list(known.values()))
        if owners:
            name, owner = next(iter(owners.items()))
            raise InputError(
                f"{folder.path} is at work for another study file or code ({name}, {owner}): "
                "stop that first, or give this study another name"
            )
    for change in plan.changes:
        _put_away(folder, change.name)
    wanted = {job.name for job in plan.jobs}
    for name in known.keys() - wanted:
        folder.remove_job(name)
    for job in plan.jobs:
        if known.get(job.name) != job:
            folder.write_job(job)
        progress = folder.progress(job.name)
        if progress.state in ("failed", "interrupted") and not folder.owners([job]):
            folder.write_progress(job.name, dataclasses.replace(progress, state="waiting", tries=0, error=""))
    write_text(folder.plan, plan.text)


def _put_away(folder: StudyFolder, name: str) -> None:
    """Move a run out of the way, where it can still be looked at."""
    run = folder.run(name)
    if run.exists():
        place = folder.path / ".replaced" / f"{name}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
        place.parent.mkdir(exist_ok=True)
        run.rename(place)
    folder.remove_job(name)


def _check(study: StudyConfig, runs: Sequence[Planned], material: Material) -> None:
    """Whether the encoder can be loaded and every task has something to learn from, before the first run."""
    for name in dict.fromkeys([study.train.encoder.name, *(run.config.encoder.name for run in runs)]):
        pretrained.check(name)
    seen = set()
    for run in runs:
        corpus = run.config.corpus
        for task, settings in run.config.chosen().items():
            key = json.dumps([task, plain(dataclasses.asdict(corpus))])
            if key in seen:
                continue
            seen.add(key)
            for split in ("train", "dev"):
                require_layers(material.split(corpus, (task,), split), {task: settings}, split)


def _jobs(study: StudyConfig, runs: Sequence[Planned], folder: StudyFolder) -> list[Job]:
    corpora: dict[tuple[str, ...], str] = {}
    training, probing = code_fingerprint(TRAINING), code_fingerprint(PROBING)

    def corpus_of(config: TrainConfig, tasks: Sequence[str]) -> str:
        paths = tuple(
            str(file)
            for source in sources(config.corpus, tasks)
            for split in SPLITS
            if (path := getattr(source.files, split)) is not None
            for file in files(Path(path), source.files.format)
        )
        if paths not in corpora:
            corpora[paths] = fingerprint(Path(path) for path in paths)
        return corpora[paths]

    probes: dict[str, Any] = {
        "split": study.probes.split,
        "centroids": study.probes.centroids,
        "final_special": study.probes.final_special,
    }
    jobs: list[Job] = []
    if probes_the_encoder(study):
        arguments = {**probes, "target": study.train.encoder.name, "out": str(folder.run(STATIC))}
        arguments["tasks"] = list(study.train.chosen())
        arguments["source"] = plain(dataclasses.asdict(study.train.corpus))
        made_of = {
            "configuration": _digest(arguments),
            "corpus": corpus_of(study.train, tuple(study.train.chosen())),
            "code": probing,
        }
        jobs.append(Job(STATIC, 0, STATIC, {}, made_of, None, arguments))
    made: dict[str, dict[str, str]] = {}
    for run in runs:
        config = plain(dataclasses.asdict(run.config))
        probe = {**probes, "target": str(folder.run(run.name))} if run.probe else None
        made[run.name] = {
            "configuration": _digest(
                [{**without_volatile(config), "init_from": run.needs}, probe and {**probe, "target": ""}]
            ),
            "corpus": corpus_of(run.config, run.config.tasks),
            "code": training + (probing if probe else ""),
        }
        if run.needs is not None:
            made[run.name]["needs"] = _digest(made[run.needs])
        jobs.append(Job(run.name, len(jobs), run.setup, config, made[run.name], run.needs, probe))
    return jobs


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _why(before: Job | None, job: Job, progress: Progress) -> str:
    """What of a run is not as it was."""
    reasons = []
    old = progress.made_of
    if old.get("configuration") != job.made_of["configuration"]:
        keys = [] if before is None else different_keys(before.config, job.config)
        if before is not None and before.probe != job.probe:
            keys.append("probes")
        reasons.append("the configuration changed" + (f" ({', '.join(keys[:4])})" if keys else ""))
    if old.get("corpus") != job.made_of["corpus"]:
        reasons.append("the corpus changed")
    if old.get("code") != job.made_of["code"]:
        reasons.append("the code changed")
    if old.get("needs") != job.made_of.get("needs") and not reasons:
        reasons.append(f"it starts from {job.needs}, which changed")
    return ", ".join(reasons)


def summary(jobs: Sequence[Job], progress: Mapping[str, Progress]) -> str:
    """How many runs are to do and done."""
    finished = sum(done(job, progress[job.name]) for job in jobs)
    return f"{len(jobs)} jobs, {finished} finished"

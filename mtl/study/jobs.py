"""The jobs that a study's file, the corpora and the code ask for, and what each is made of."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mtl.config.effective import only_used
from mtl.config.schema import TrainConfig
from mtl.corpora.load import SPLITS, require_layers, sources
from mtl.corpora.readers import files
from mtl.errors import InputError
from mtl.files import fingerprint
from mtl.models import pretrained
from mtl.models.inputs import InputCache
from mtl.runs.code_fingerprint import PROBING, TRAINING, code_fingerprint
from mtl.runs.run import plain, without_volatile
from mtl.study.config import StudyConfig
from mtl.study.folder import StudyFolder
from mtl.study.grid import STATIC, Planned, planned, probes_the_encoder
from mtl.study.job import Job
from mtl.training.check import check


def wanted_jobs(study: StudyConfig, folder: StudyFolder, material: InputCache) -> tuple[Job, ...]:
    """A job for every run, each after the one that it needs; raises `InputError` for what cannot be run."""
    runs = planned(study, folder.path)
    if not runs and not probes_the_encoder(study):
        raise InputError("the grid has no runs: give setups, for instance setups: [single, all]")
    _check(study, runs, material)
    return tuple(_jobs(study, runs, folder))


def _check(study: StudyConfig, runs: Sequence[Planned], material: InputCache) -> None:
    """Whether the encoder can be loaded and every task has something to learn from, before the first run."""
    for name in dict.fromkeys([study.train.encoder.name, *(run.config.encoder.name for run in runs)]):
        pretrained.check_encoder(name)
    seen = set()
    for run in runs:
        try:
            check(run.config)
        except InputError as error:
            raise InputError(f"run {run.name}: {error}") from error
        corpus = run.config.corpus
        for task, settings in run.config.chosen().items():
            key = json.dumps([task, plain(dataclasses.asdict(corpus))])
            if key in seen:
                continue
            seen.add(key)
            for split in SPLITS:
                sentences = material.split(corpus, (task,), split)
                if split != "test":  # which may be blind
                    require_layers(sentences, {task: settings}, split)


def _jobs(study: StudyConfig, runs: Sequence[Planned], folder: StudyFolder) -> list[Job]:
    contents: dict[tuple[Path, ...], str] = {}

    def content_of(paths: tuple[Path, ...]) -> str:
        if paths not in contents:
            contents[paths] = fingerprint(paths)
        return contents[paths]

    def corpus_of(config: TrainConfig, tasks: Sequence[str]) -> str:
        return digest(
            [
                [list(source.tasks), split, content_of(tuple(files(Path(path), source.files.format)))]
                for source in sources(config.corpus, tasks)
                for split in SPLITS
                if (path := getattr(source.files, split)) is not None
            ]
        )

    probes: dict[str, Any] = {
        "split": study.probes.split,
        "centroids": study.probes.centroids,
        "final_special": study.probes.final_special,
    }
    jobs: list[Job] = []
    if probes_the_encoder(study):
        tasks = tuple(study.train.chosen())
        source = plain(dataclasses.asdict(only_used(study.train).corpus))
        arguments = {**probes, "target": study.train.encoder.name, "tasks": list(tasks), "source": source}
        made_of = {
            "configuration": digest({**arguments, "source": _without_places(source)}),
            "corpus": corpus_of(study.train, tasks),
            "code": code_fingerprint(PROBING),
        }
        arguments["out"] = str(folder.run(STATIC))
        jobs.append(Job(STATIC, 0, STATIC, {}, made_of, None, arguments))
    for run in runs:
        config = plain(dataclasses.asdict(run.config))
        own = {
            **without_volatile(config),
            "corpus": _without_places(config["corpus"]),
            "init_from": run.needs,
        }
        made_of = {
            "configuration": digest(own),
            "corpus": corpus_of(run.config, run.config.tasks),
            "code": code_fingerprint(TRAINING),
        }
        probe = {**probes, "target": str(folder.run(run.name))} if run.probe else None
        if probe is not None:
            made_of |= {"probes": digest(probes), "probing": code_fingerprint(PROBING)}
        jobs.append(Job(run.name, len(jobs), run.setup, config, made_of, run.needs, probe))
    return jobs


def _without_places(corpus: Mapping[str, Any]) -> dict[str, Any]:
    """A corpus's settings without where its files lie; what is in them is looked at itself."""
    return {
        key: {part: part == "format" and own for part, own in value.items()}
        if isinstance(value, Mapping)
        else value is not None
        for key, value in corpus.items()
    }


def digest(value: Any) -> str:
    """A fingerprint of plain values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()

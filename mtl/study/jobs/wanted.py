"""The jobs that a study's file describes, with the fingerprints of their settings, corpora and code."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mtl.config.effective import counting_settings, only_used, plain
from mtl.config.schema import CorpusConfig, TrainConfig
from mtl.corpora.readers import files, reader_modules
from mtl.corpora.sources import Tasks, corpus_at, kinds_of, sources
from mtl.corpora.splits import SPLITS
from mtl.errors import InputError
from mtl.files import fingerprint
from mtl.models.inputs import InputCache
from mtl.models.known_encoders import check_encoder, encoder_files, is_local
from mtl.probes.measures.groups import GROUPS
from mtl.runs.folder.code_fingerprint import code_fingerprint, unused_modules, used_modules
from mtl.study.config import ProbesConfig, StudyConfig
from mtl.study.extensions import preparations
from mtl.study.grid.grid import planned, probes_the_encoder
from mtl.study.grid.task_sets import STATIC
from mtl.study.jobs.folder import StudyFolder
from mtl.study.jobs.job import Job, code_part
from mtl.study.made_masks import MadeMasks, made_masks
from mtl.tasks.task import Task
from mtl.training.check import check_settings
from mtl.training.check_inputs import check_inputs


def wanted_jobs(
    study: StudyConfig, folder: StudyFolder, inputs: InputCache | None
) -> tuple[tuple[Job, ...], Mapping[str, MadeMasks]]:
    """A job for every run, each after those that it needs, and the masks that the study makes, by path.

    Without `inputs`, corpora are read only up to the first annotated sentence of each task (`check_inputs`).
    Raises `InputError` for runs that would fail.
    """
    runs = planned(study, folder.path)
    jobs = [_encoder_before_training(study), *runs] if probes_the_encoder(study) else runs
    if not jobs:
        raise InputError("the grid has no runs: add setups, for instance setups: [single, all]")
    masks = made_masks(runs)
    _check(study, runs, inputs, masks)
    contents = _Contents(masks)
    return tuple(
        dataclasses.replace(job, number=number, made_of=_made_of(job, contents))
        for number, job in enumerate(jobs)
    ), masks


def _encoder_before_training(study: StudyConfig) -> Job:
    config = only_used(dataclasses.replace(study.train, tasks=tuple(study.train.chosen())))
    probes = dataclasses.replace(study.probes, masks=(), measures=("probes",), sentences=None)
    return Job(STATIC, STATIC, config, probes=probes, trained=False)


def _check(
    study: StudyConfig, runs: Sequence[Job], inputs: InputCache | None, masks: Mapping[str, MadeMasks]
) -> None:
    """Raise `InputError` for settings, encoders and corpora with which runs would fail."""
    check_encoder(study.train.encoder.name)
    for run in runs:
        try:
            check_settings(run.config)
        except InputError as error:
            raise InputError(f"run {run.name}: {error}") from error
    for preparation in preparations():
        preparation.check(runs)
    of_runs = [str(run.config.gates.masks) for run in runs if run.needs is not None]
    check_inputs((run.config for run in runs), inputs, {*masks, *of_runs})


def _made_of(job: Job, contents: _Contents) -> dict[str, str]:
    """The fingerprints of a job, except those of the runs that it needs, which the plan adds."""
    codes, settings, config = codes_of(job), settings_of(job), job.config
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
        "code": codes["code"],
        **contents.encoder(config.encoder.name),
    }
    if not job.trained:
        return made_of
    return {
        **made_of,
        **(contents.masks(config) if job.needs is None else {}),
        **contents.prepared(job),
        **{name: digest(used) for name, used in measured.items()},
        **{code_part(name): codes[code_part(name)] for name in measured},
    }


def codes_of(job: Job) -> dict[str, str]:
    """The fingerprints of the code that trains a run (`code`), and of the code of each measure."""
    settings = job.settings
    corpus = settings["corpus"]
    codes = {code_part(name): _measuring_code(name, job.probes, settings) for name in job.measures()}
    if not job.trained:
        return {"code": codes[code_part("probes")]}
    readers = reader_modules(corpus)
    return codes | {
        "code": code_fingerprint(*used_modules(settings), *readers, unused=unused_modules(settings))
    }


def _measuring_code(measure: str, probes: ProbesConfig | None, config: Mapping[str, Any]) -> str:
    """The fingerprint of the code of a measure, its row, the run's tasks, and the readers of its corpora.

    These are the run's corpus and the one that the measure may have (`Group.corpus`). Heads are probed for
    all tasks of a corpus, so that the code of all of them counts for probes.
    """
    group = GROUPS[measure]
    read = {"path": getattr(probes, group.corpus) if group.corpus else None}
    readers = (*reader_modules(config["corpus"]), *reader_modules(read))
    probed = any(made.probes for made in group.measures)
    unused = frozenset[str]() if probed else unused_modules(config)
    code = code_fingerprint(*group.modules, *readers, unused=unused)
    return digest([code, [[*made.names, made.probes] for made in group.measures]])


def settings_of(job: Job) -> dict[str, Any]:
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

    def __init__(self, masks: Mapping[str, MadeMasks]) -> None:
        self._masks = masks
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

        path = str(config.gates.masks)
        if path in self._masks:
            return {"masks": masks_fingerprint(self._masks[path].table)}
        masks = check_masks(Path(path), config.gates.scope, tuple(config.chosen()))
        return {"masks": masks_fingerprint(masks)}

    def prepared(self, run: Job) -> dict[str, str]:
        """The fingerprints of files given to a start; the plan adds those of what the study prepares."""
        found: dict[str, str] = {}
        for preparation in preparations():
            found |= preparation.fingerprints(run, self._of)
        return found

    def _of(self, paths: tuple[Path, ...]) -> str:
        if paths not in self._known:
            self._known[paths] = fingerprint(paths)
        return self._known[paths]


def digest(value: Any) -> str:
    """A fingerprint of plain values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()

"""The jobs that a study's file asks for, with the fingerprints of their settings, corpora and code."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtl.config.effective import counting_settings, only_used, plain
from mtl.config.schema import CorpusConfig, TrainConfig
from mtl.corpora.load import SPLITS, corpus_at, sources
from mtl.corpora.readers import files, reader_modules
from mtl.errors import InputError
from mtl.files import fingerprint
from mtl.models.inputs import InputCache
from mtl.models.known_encoders import check_encoder, encoder_files, is_local
from mtl.runs.folder.code_fingerprint import MEASURING, TRAINING, code_fingerprint, unused_modules
from mtl.study.check_copies import check_copies
from mtl.study.config import MeasureGroup, ProbesConfig, StudyConfig
from mtl.study.folder import StudyFolder
from mtl.study.grid import planned, probes_the_encoder
from mtl.study.job import Job, code_part
from mtl.study.planned import Planned
from mtl.study.task_sets import STATIC, measurable
from mtl.training.check import check_settings
from mtl.training.check_inputs import check_inputs

if TYPE_CHECKING:
    from mtl.study.drawn_masks import DrawnMasks

SETTINGS: Mapping[MeasureGroup, tuple[str, ...]] = {
    "probes": ("corpus", "split", "centroids", "final_special"),
    "importance": ("sentences",),
    "relevance": ("sentences",),
    "ablation": ("split", "sentences", "close"),
    "curve": ("split", "sentences", "orders", "draws"),
    "carry_over": ("split", "sentences", "other"),
}
"""The keys of `ProbesConfig` that change what a measure gives."""
CORPUS_OF: Mapping[MeasureGroup, str] = {"probes": "corpus", "carry_over": "other"}
"""The keys of `ProbesConfig` that name a corpus of the measure's own."""


def wanted_jobs(
    study: StudyConfig, folder: StudyFolder, inputs: InputCache | None
) -> tuple[tuple[Job, ...], Mapping[str, DrawnMasks]]:
    """A job for every run, each after the one that it needs, and the masks that are drawn for them, by path.

    Without `inputs` a corpus is read up to the first annotated sentence of each task only (`check_inputs`).
    Raises `InputError` for runs that would fail.
    """
    runs = planned(study, folder.path)
    if not runs and not probes_the_encoder(study):
        raise InputError("the grid has no runs: give setups, for instance setups: [single, all]")
    masks: Mapping[str, DrawnMasks] = {}
    if any(run.draw is not None for run in runs):
        from mtl.study.drawn_masks import drawn_masks

        masks = drawn_masks(runs)
    _check(study, runs, inputs, masks)
    return tuple(_jobs(study, runs, folder, masks)), masks


def _check(
    study: StudyConfig, runs: Sequence[Planned], inputs: InputCache | None, masks: Mapping[str, DrawnMasks]
) -> None:
    """Raise `InputError` for settings, encoders and corpora that cannot be used, before the first run."""
    check_encoder(study.train.encoder.name)
    for run in runs:
        try:
            check_settings(run.config)
        except InputError as error:
            raise InputError(f"run {run.name}: {error}") from error
    check_copies(runs)
    of_runs = [str(run.config.gates.masks) for run in runs if run.needs is not None]
    check_inputs((run.config for run in runs), inputs, {*masks, *of_runs})


def _jobs(
    study: StudyConfig, runs: Sequence[Planned], folder: StudyFolder, masks: Mapping[str, DrawnMasks]
) -> list[Job]:
    contents = _Contents(masks)
    jobs: list[Job] = []
    if probes_the_encoder(study):
        tasks = tuple(study.train.chosen())
        source = plain(dataclasses.asdict(only_used(study.train).corpus))
        arguments = {
            **_settings_of_probes(study.probes),
            "measures": ["probes"],
            "sentences": None,
            "target": study.train.encoder.name,
            "tasks": list(tasks),
            "source": source,
        }
        arguments["out"] = str(folder.run(STATIC))
        job = Job(STATIC, 0, STATIC, {}, {}, probe=arguments)
        made_of = {
            "configuration": digest({**settings_of(job), **contents.probed(arguments, "probes", tasks)}),
            "corpus": contents.corpus(study.train.corpus, tasks),
            "code": measuring_code("probes", arguments, source),
            **contents.encoder(study.train.encoder.name),
        }
        jobs.append(dataclasses.replace(job, made_of=made_of))
    for run in runs:
        probe: dict[str, Any] | None = None
        if run.probes is not None:
            measures = list(measurable(run.config.tasks, run.probes))
            target = str(folder.run(run.name))
            probe = {**_settings_of_probes(run.probes), "measures": measures, "target": target}
        settings = plain(dataclasses.asdict(run.config))
        claims = list(run.claims_from)
        job = Job(run.name, len(jobs), run.grid_cell, settings, {}, run.needs, probe, claims)
        made_of = {
            "configuration": digest(settings_of(job)),
            "corpus": contents.corpus(run.config.corpus, run.config.tasks),
            "code": training_code(settings),
            **contents.encoder(run.config.encoder.name),
            **(contents.masks(run.config) if run.needs is None else {}),
            **contents.claims(run),
        }
        if probe is not None:
            for measure in job.measures():
                used = {
                    **probe_settings(probe, measure),
                    **contents.probed(probe, measure, tuple(run.config.chosen())),
                }
                made_of[measure] = digest(used)
                made_of[code_part(measure)] = measuring_code(measure, probe, settings["corpus"])
        jobs.append(dataclasses.replace(job, made_of=made_of))
    return jobs


def _settings_of_probes(probes: ProbesConfig) -> dict[str, Any]:
    """The settings of measurements as a job has them."""
    settings: dict[str, Any] = plain(dataclasses.asdict(probes))
    del settings["masks"]
    return settings


def training_code(config: Mapping[str, Any]) -> str:
    """The fingerprint of the code that trains a run with this configuration: of all that it uses."""
    readers = reader_modules(config.get("corpus") or {})
    return code_fingerprint(TRAINING, *readers, unused=unused_modules(config))


def measuring_code(measure: MeasureGroup, probe: Mapping[str, Any], corpus: Mapping[str, Any]) -> str:
    """The fingerprint of the code of a measure and of the readers of what it reads.

    These are the readers of the run's corpus and of another one that the measure reads (`CORPUS_OF`).
    """
    key = CORPUS_OF.get(measure)
    read = {"path": None if key is None else probe.get(key)}
    return code_fingerprint(MEASURING[measure], *reader_modules(corpus), *reader_modules(read))


def settings_of(job: Job) -> dict[str, Any]:
    """The settings of a job that differ from neutral ones, without paths.

    A corpus and a local encoder count by their content, the run that training starts from by its name.
    """
    if job.config:
        settings = {**counting_settings(job.config), "init_from": job.needs}
        name = job.config["encoder"]["name"]
    else:
        assert job.probe is not None
        settings = counting_settings({"corpus": job.probe["source"], "tasks": job.probe["tasks"]})
        settings |= probe_settings(job.probe, "probes")
        name = settings["encoder.name"] = job.probe["target"]
    if is_local(name):
        settings.pop("encoder.name", None)
    return settings


def probe_settings(arguments: Mapping[str, Any], measure: MeasureGroup) -> dict[str, Any]:
    """The settings (`ProbesConfig`) that a measure uses, where they differ from the defaults."""
    default = plain(dataclasses.asdict(ProbesConfig()))
    used = {key: arguments[key] for key in SETTINGS[measure] if key in arguments}
    return {f"probes.{key}": value for key, value in used.items() if value != default[key]}


class _Contents:
    """Fingerprints of files by their content; every file is read once."""

    def __init__(self, masks: Mapping[str, DrawnMasks]) -> None:
        self._masks = masks
        self._known: dict[tuple[Path, ...], str] = {}

    def corpus(
        self, config: CorpusConfig, tasks: Sequence[str], splits: Sequence[str] = tuple(SPLITS)
    ) -> str:
        """One fingerprint of all corpus files that a run reads; their paths do not count."""
        return digest(
            [
                [list(source.tasks), split, self._of(tuple(files(Path(path), source.files.format)))]
                for source in sources(config, tasks)
                for split in splits
                if (path := getattr(source.files, split)) is not None
            ]
        )

    def probed(self, probe: Mapping[str, Any], measure: MeasureGroup, tasks: Sequence[str]) -> dict[str, str]:
        """The fingerprint of a measure's own corpus, which counts instead of its path; empty without one."""
        if measure == "carry_over":
            return {"probes.other": self.corpus(corpus_at(probe["other"], tasks), tasks, [probe["split"]])}
        if measure != "probes" or probe["corpus"] is None:
            return {}
        splits = dict.fromkeys([probe["split"], *(["train"] if probe["centroids"] == "train" else [])])
        files = [Path(probe["corpus"]) / f"{split}.jsonl" for split in splits]
        for file in files:
            if not file.is_file():
                raise InputError(
                    f"probes.corpus={probe['corpus']}: no {file.name} in it, which is to be probed"
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

    def claims(self, run: Planned) -> dict[str, str]:
        """The fingerprint of a given file of claims; the study's own claims are in the plan."""
        given = run.config.clones.claims
        if given is None or run.claims_from:
            return {}
        if not Path(given).is_file():
            raise InputError(f"run {run.name}: clones.claims={given}: no such file")
        return {"claims": self._of((Path(given),))}

    def _of(self, paths: tuple[Path, ...]) -> str:
        if paths not in self._known:
            self._known[paths] = fingerprint(paths)
        return self._known[paths]


def digest(value: Any) -> str:
    """A fingerprint of plain values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()

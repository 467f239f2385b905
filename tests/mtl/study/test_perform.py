"""What one process does of a study, with the version of mtl that the study was planned for.
Measurements on the heads of a study's finished runs.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from mtl.config.effective import plain
from mtl.config.schema import TrainConfig
from mtl.corpora.toy.corpus import write_toy
from mtl.errors import InputError
from mtl.models.inputs import InputCache
from mtl.probes.measures.groups import GROUPS
from mtl.probes.tables import heads_table
from mtl.runs.folder.run import version
from mtl.study import perform as module
from mtl.study.config import ProbesConfig
from mtl.study.jobs import Job, JobProgress, StudyFolder
from mtl.study.perform import StudyJobs, make_measurement
from tests.mtl.analysis import worth

JOB = Job("pos-seed1", "STL", TrainConfig(tasks=("pos",)), probes=ProbesConfig())


@pytest.fixture
def study(tmp_path: Path, monkeypatch) -> StudyFolder:
    """A folder in which nothing is really trained or probed."""
    monkeypatch.setattr(
        StudyJobs, "_perform", lambda self, job, progress, record: replace(progress, state="finished")
    )
    return StudyFolder(tmp_path)


def do(study: StudyFolder, job: Job) -> None:
    study.write_job(job)
    StudyJobs(study, InputCache()).work()


def test_a_process_of_another_version_than_was_planned_begins_nothing(study):
    job = replace(JOB, made_of={"configuration": "c", "version": "other"})
    with pytest.raises(InputError, match="mtl was changed after the study was planned"):
        do(study, job)
    assert study.last_progress(job.name) == JobProgress()
    assert study.holders([job]) == {}


class Measuring:
    """Stands in for the measurements: records those that are requested, and fails at the chosen one."""

    def __init__(self, table: Path) -> None:
        self.table, self.asked, self.fails = table, [], ""

    def __call__(self, name, settings, inputs) -> None:
        self.asked.append(name)
        if name == self.fails:
            raise InputError("no luck")
        self.table.touch()


def test_a_measure_is_made_once_and_again_only_if_it_changed(tmp_path, monkeypatch):
    study = StudyFolder(tmp_path)
    table = study.run("encoder") / "heads.parquet"
    table.parent.mkdir(parents=True)
    measuring = Measuring(table)
    monkeypatch.setattr(module, "make_measurement", measuring)

    def measured(*measures: str, **changed: str) -> list[str]:
        """What is asked for by a job with these measures, and with some fingerprints changed."""
        probes = ProbesConfig(measures=measures)
        job = Job("encoder", "pretrained", TrainConfig(), probes=probes, trained=False)
        job = replace(job, made_of={"version": version()} | dict.fromkeys(measures, "settings") | changed)
        measuring.asked = []
        do(study, job)
        return measuring.asked

    assert measured("probes") == ["probes"]
    measuring.fails = "ablation"
    assert measured("probes", "importance", "ablation") == ["importance", "ablation"]
    progress = study.last_progress("encoder")
    assert (progress.state, progress.error) == ("failed", "no luck")
    assert list(progress.measured) == ["probes", "importance"]
    measuring.fails = ""
    # Of a run that failed or was killed, what was measured stays.
    study.write_progress("encoder", replace(progress, state="running"))
    assert measured("probes", "importance", "ablation") == ["ablation"]
    everything = ("probes", "importance", "ablation")
    assert measured(*everything, importance="other settings") == ["importance"]
    assert measured(*everything) == ["importance"]
    table.unlink()
    assert measured(*everything, probes="other settings") == list(everything)


OTHERS = [name for name, group in GROUPS.items() if group.code and not group.made_by and name != "importance"]
"""Groups that features add by their row alone."""


def settings_of(probes: ProbesConfig, run: Path) -> dict[str, Any]:
    """A job's settings of measurements."""
    return {**plain(asdict(probes)), "target": str(run)}


@pytest.mark.parametrize(
    ("measures", "made"),
    [
        (["importance", "ablation"], {"importance", "taylor", "fisher", "ablation", "ablation_layer"}),
        (
            ["probes", *OTHERS],
            {"clustering", "attention", *({"patterns": "sink"}.get(name, name) for name in OTHERS)},
        ),
    ],
)
def test_what_is_asked_for_is_measured(toy: Path, tmp_path: Path, measures, made) -> None:
    model = worth.joint_model(toy, ("pos", "dep"), dtype=torch.float32)
    model.save(tmp_path / "run" / "model")
    config = {"tasks": ["pos", "dep"], "seed": 1, "corpus": {"path": str(toy)}, "encoder": {"name": "minilm"}}
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(config))
    settings = settings_of(ProbesConfig(sentences=6, close=("head", "layer")), tmp_path / "run")
    cache = InputCache(keep=True)
    tables = [make_measurement(name, settings, cache) for name in measures]
    table, _ = heads_table.read_heads_table(tmp_path / "run" / "heads.parquet")
    assert made <= set(table["measure"])
    assert [probed is not None for probed in tables] == [name == "probes" for name in measures]
    assert ("importance" in set(table["measure"])) == ("importance" in measures)


def test_heads_are_probed_on_the_corpus_of_the_study_if_it_names_one(toy: Path, tmp_path: Path) -> None:
    worth.joint_model(toy, ("pos", "dep"), dtype=torch.float32).save(tmp_path / "run" / "model")
    config = {"tasks": ["pos", "dep"], "seed": 1, "corpus": {"path": str(toy)}, "encoder": {"name": "minilm"}}
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(config))
    write_toy(tmp_path / "other", 1, 1, 4, seed=5)
    settings = settings_of(ProbesConfig(sentences=6, corpus=str(tmp_path / "other")), tmp_path / "run")
    for name in ("probes", "importance"):
        make_measurement(name, settings, InputCache(keep=True))
    _, provenance = heads_table.read_heads_table(tmp_path / "run" / "heads.parquet")
    assert (provenance["sentences"], provenance["importance.sentences"]) == ("4", "6")


def test_carry_over_is_two_files_of_the_run(toy: Path, tmp_path: Path) -> None:
    worth.joint_model(toy, ("pos", "dep"), dtype=torch.float32).save(tmp_path / "run" / "model")
    config = {"tasks": ["pos", "dep"], "seed": 1, "corpus": {"path": str(toy)}, "encoder": {"name": "minilm"}}
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(config))
    write_toy(tmp_path / "other", 1, 1, 4, seed=5)
    probes = ProbesConfig(sentences=6, other=str(tmp_path / "other"), split="test")
    make_measurement("carry_over", settings_of(probes, tmp_path / "run"), InputCache(keep=True))
    tables = []
    for place, sentences in (("own", "6"), ("other", "4")):
        table, provenance = heads_table.read_heads_table(tmp_path / "run" / f"importance-{place}.parquet")
        assert (provenance["importance.split"], provenance["importance.sentences"]) == ("test", sentences)
        tables.append(table.filter(measure="importance", task="dep")["value"].to_list())
    assert tables[0] != tables[1]
    assert not (tmp_path / "run" / "heads.parquet").exists()

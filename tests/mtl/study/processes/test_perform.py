"""What one process does of a study, with the code that the study was planned for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.models.inputs import InputCache
from mtl.study.config import ProbesConfig
from mtl.study.jobs.folder import StudyFolder
from mtl.study.jobs.job import Job, Progress
from mtl.study.jobs.wanted import codes_of
from mtl.study.processes import perform as module
from mtl.study.processes.perform import StudyJobs

JOB = Job("pos-seed1", "single", TrainConfig(tasks=("pos",)), probes=ProbesConfig())


def planned() -> dict[str, str]:
    """The fingerprints of a run with this code."""
    return {"configuration": "c"} | codes_of(JOB)


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


@pytest.mark.parametrize("changed", ["code", "probes.code"])
def test_a_process_with_other_code_than_was_planned_begins_nothing(study, changed):
    job = replace(JOB, made_of={**planned(), changed: "other"})
    with pytest.raises(InputError, match="the code was changed after the study was planned"):
        do(study, job)
    assert study.last_progress(job.name) == Progress()
    assert study.holders([job]) == {}


def test_probes_of_a_run_that_other_code_has_trained_may_be_measured_again(study):
    before = {**planned(), "code": "kept", "probes": "old"}
    study.write_progress("pos-seed1", Progress("finished", 1, made_of=before))
    job = replace(JOB, made_of={**before, "probes": "new"})
    do(study, job)
    assert study.last_progress(job.name).state == "finished"
    assert study.last_progress(job.name).made_of["probes"] == "new"


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
    monkeypatch.setattr(module, "measure", measuring)

    def measured(*measures: str, **changed: str) -> list[str]:
        """What is asked for by a job with these measures, and with some fingerprints changed."""
        probes = ProbesConfig(measures=measures)
        job = Job("encoder", "static", TrainConfig(), probes=probes, trained=False)
        job = replace(job, made_of=codes_of(job) | dict.fromkeys(measures, "settings") | changed)
        measuring.asked = []
        do(study, job)
        return measuring.asked

    assert measured("probes", "importance") == ["probes", "importance"]
    measuring.fails = "relevance"
    assert measured("probes", "importance", "ablation", "relevance") == ["ablation", "relevance"]
    progress = study.last_progress("encoder")
    assert (progress.state, progress.error) == ("failed", "no luck")
    assert list(progress.measured) == ["probes", "importance", "ablation"]
    measuring.fails = ""
    # Of a run that failed or was killed, what was measured stays.
    study.write_progress("encoder", replace(progress, state="running"))
    assert measured("probes", "importance", "ablation", "relevance") == ["relevance"]
    everything = ("probes", "importance", "ablation")
    assert measured(*everything, importance="other settings") == ["importance"]
    assert measured(*everything) == ["importance"]
    table.unlink()
    assert measured(*everything, probes="other settings") == list(everything)

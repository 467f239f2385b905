"""A process's share of a study: by the code that the study was planned for."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtl.errors import InputError
from mtl.models.inputs import InputCache
from mtl.runs.code_fingerprint import PROBING, TRAINING, code_fingerprint
from mtl.study import perform as module
from mtl.study.folder import StudyFolder
from mtl.study.job import Job, Progress

PLANNED = {"configuration": "c", "code": code_fingerprint(TRAINING), "probing": code_fingerprint(PROBING)}


@pytest.fixture
def study(tmp_path: Path, monkeypatch) -> StudyFolder:
    """A folder in which nothing is really trained or probed."""
    monkeypatch.setattr(module, "_perform", lambda study, job, inputs: (0.0, 0.0))
    return StudyFolder(tmp_path)


@pytest.mark.parametrize("changed", ["code", "probing"])
def test_a_process_with_other_code_than_was_planned_begins_nothing(study, changed):
    job = Job("pos-seed1", 0, "single", {"tasks": ["pos"]}, {**PLANNED, changed: "other"}, None, {})
    with pytest.raises(InputError, match="the code was changed after the study was planned"):
        module.attempt(study, job, InputCache())
    assert study.last_progress(job.name) == Progress()
    assert study.holders([job]) == {}


def test_probes_of_a_run_that_other_code_has_trained_may_be_measured_again(study):
    before = {**PLANNED, "code": "kept", "probes": "old"}
    study.write_progress("pos-seed1", Progress("finished", before, 1))
    job = Job("pos-seed1", 0, "single", {"tasks": ["pos"]}, {**before, "probes": "new"}, None, {})
    assert module.attempt(study, job, InputCache())
    assert study.last_progress(job.name).state == "finished"
    assert study.last_progress(job.name).made_of["probes"] == "new"

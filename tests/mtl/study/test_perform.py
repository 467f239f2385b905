"""A process's share of a study: by the code that the study was planned for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mtl.errors import InputError
from mtl.models.inputs import InputCache
from mtl.runs.folder.code_fingerprint import PROBING, code_fingerprint
from mtl.study import perform as module
from mtl.study.folder import StudyFolder
from mtl.study.job import Job, Progress
from mtl.study.jobs import training_code


def planned() -> dict[str, str]:
    """What a run of this code is made of."""
    codes = {"code": training_code({"tasks": ["pos"]}), "probes.code": code_fingerprint(PROBING)}
    return {"configuration": "c"} | codes


@pytest.fixture
def study(tmp_path: Path, monkeypatch) -> StudyFolder:
    """A folder in which nothing is really trained or probed."""
    monkeypatch.setattr(module, "_perform", lambda study, job, inputs, progress: (0.0, 0.0))
    return StudyFolder(tmp_path)


@pytest.mark.parametrize("changed", ["code", "probes.code"])
def test_a_process_with_other_code_than_was_planned_begins_nothing(study, changed):
    job = Job("pos-seed1", 0, "single", {"tasks": ["pos"]}, {**planned(), changed: "other"}, None, {})
    with pytest.raises(InputError, match="the code was changed after the study was planned"):
        module.attempt(study, job, InputCache())
    assert study.last_progress(job.name) == Progress()
    assert study.holders([job]) == {}


def test_probes_of_a_run_that_other_code_has_trained_may_be_measured_again(study):
    before = {**planned(), "code": "kept", "probes": "old"}
    study.write_progress("pos-seed1", Progress("finished", before, 1))
    job = Job("pos-seed1", 0, "single", {"tasks": ["pos"]}, {**before, "probes": "new"}, None, {})
    assert module.attempt(study, job, InputCache())
    assert study.last_progress(job.name).state == "finished"
    assert study.last_progress(job.name).made_of["probes"] == "new"


class Measuring:
    """Stands in for the measurements: it writes down what was asked for, and fails where it shall."""

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
        codes = {f"{name}.code": module.measuring_code(name, {}, {}) for name in measures}
        made_of = {"code": code_fingerprint(PROBING)} | dict.fromkeys(measures, "settings") | codes | changed
        measuring.asked = []
        job = Job("encoder", 0, "static", {}, made_of, probe={"measures": list(measures)})
        assert module.attempt(study, job, InputCache())
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

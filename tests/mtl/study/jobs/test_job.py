"""Jobs and their records: every job is read as it was written, also by older versions."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from mtl.config.parse import configured
from mtl.config.schema import CorpusConfig, EncoderConfig, TrainConfig
from mtl.study.config import KINDS, Block, ProbesConfig, StudyConfig
from mtl.study.grid.grid import planned
from mtl.study.jobs.job import Job

STUDIES = sorted(Path("configs/study").glob("*.yaml"))


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_every_job_is_read_back_as_it_was_written(file: Path) -> None:
    jobs = planned(configured("", StudyConfig, [str(file)]), Path("studies/x"))
    assert jobs
    for job in jobs:
        record = json.loads(json.dumps(dataclasses.asdict(job)))
        assert Job.of(record) == job
        assert Job.of({**record, "colour": "red"}) == job
        assert job.settings == record["config"]


def test_a_job_knows_its_kind_of_masks() -> None:
    every = Block(("pos+dep",), tuple(kind for kind in KINDS if not kind.startswith("fixed")))
    fixed = Block(("pos+dep",), ("fixed", "fixed_per_task"), {"gates.masks": "gates.parquet"})
    jobs = planned(StudyConfig(grid=(every, fixed), seeds=(1,)), Path("x"))
    assert {job.grid_cell.removeprefix("pos+dep").strip() or "none": job.masks for job in jobs} == {
        kind: kind for kind in KINDS
    }


def test_records_of_older_versions_are_read() -> None:
    """A run and the encoder before training as version 0750196 wrote them, and the names of 6a85c4b."""
    run = {
        "name": "pos-seed1", "number": 1, "setup": "single", "needs": None, "claims_from": ["a"],
        "config": {"tasks": ["pos"], "max_epochs": 3, "gates": {"penalty": {"pos": 1.0}}, "gone": 1},
        "made_of": {"configuration": "c", "probing": "p"},
        "probe": {"split": "dev", "sentences": 5, "target": "studies/s/runs/pos-seed1"},
    }  # fmt: skip
    job = Job.of(run)
    assert (job.grid_cell, job.number, job.trained) == ("single", 1, True)
    assert (job.config.tasks, job.config.max_epochs, job.config.gates.penalty) == (("pos",), 3, {"pos": 1.0})
    assert job.made_of == {"configuration": "c", "probes.code": "p"}
    # Jobs of versions that could only probe name no measures.
    assert (job.probes, job.measures()) == (ProbesConfig(split="dev", sentences=5), ["probes"])
    assert job.after() == ["a"]
    encoder = {
        "name": "static", "number": 0, "grid_cell": "static", "config": {}, "made_of": {}, "needs": None,
        "probe": {
            "measures": ["probes"], "target": "tiny", "tasks": ["pos", "dep"], "source": {"path": "toy"},
            "out": "studies/s/runs/static",
        },
    }  # fmt: skip
    config = TrainConfig(tasks=("pos", "dep"), corpus=CorpusConfig("toy"), encoder=EncoderConfig(name="tiny"))
    assert Job.of(encoder) == Job("static", "static", config, probes=ProbesConfig(), trained=False)

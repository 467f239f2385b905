"""Jobs and their records: every job is read as it was written."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from mtl.config.parse import configured
from mtl.study.config import KINDS, GridBlock, StudyConfig
from mtl.study.grid import planned
from mtl.study.jobs import Job

STUDIES = sorted(Path("configs/study").glob("*.yaml"))


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_every_job_is_read_back_as_it_was_written(file: Path) -> None:
    jobs = planned(configured("", StudyConfig, [str(file)]), Path("studies/x"))
    assert jobs
    for job in jobs:
        record = json.loads(json.dumps(dataclasses.asdict(job)))
        assert Job.of(record) == job
        with pytest.raises(TypeError, match="unknown field colour"):
            Job.of({**record, "colour": "red"})
        assert job.settings == record["config"]


def test_a_job_knows_its_kind_of_masks() -> None:
    every = GridBlock(("pos+dep",), tuple(kind for kind in KINDS if not kind.startswith("fixed")))
    fixed = GridBlock(("pos+dep",), ("fixed", "fixed_per_task"), {"gates.masks": "gates.parquet"})
    jobs = planned(StudyConfig(grid=(every, fixed), seeds=(1,)), Path("x"))
    assert {job.grid_cell.removeprefix("pos+dep").strip(", ") or "none": job.masks for job in jobs} == {
        kind: kind for kind in KINDS
    }

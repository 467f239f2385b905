"""A process that works on a study: `python -m mtl.study.processes.worker FOLDER PARENT THREADS [--check]`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mtl.errors import InputError
from mtl.study.jobs.folder import StudyFolder
from mtl.workers.collector import importing
from mtl.workers.worker import run_worker

if TYPE_CHECKING:
    from mtl.models.inputs import InputCache

CHECK = "--check"
"""Makes a worker on a node of a cluster compare the study, planned there, with the folder's jobs."""


def main(folder: str, parent: str, threads: str, *options: str) -> int:
    """Do jobs until none is left."""

    def work() -> None:
        with importing():
            from mtl.models.inputs import InputCache
            from mtl.study.processes.perform import StudyJobs

        study, inputs = StudyFolder(Path(folder)), InputCache(keep=True)
        if CHECK in options:
            check_node(study, inputs)
        StudyJobs(study, inputs).work()

    return run_worker(parent, threads, work)


def check_node(study: StudyFolder, inputs: InputCache) -> None:
    """Raise `InputError` unless the study planned here and now has the folder's jobs.

    This refuses a machine with another version of the code, another corpus at the same path or no access to
    the encoder before it spoils a run. The inputs that are read here are used by the runs, too.
    """
    from mtl.config.parse import read_configuration
    from mtl.study.config import StudyConfig
    from mtl.study.jobs.plan import make_plan

    # Finished runs that were kept despite a change of the code are not repeated.
    plan = make_plan(read_configuration(StudyConfig, study.study_file), study, inputs, keep_code=True)
    wanted = {job.name: job.made_of for job in study.jobs()}
    for job in plan.jobs:
        there = wanted.get(job.name, {})
        unlike = [
            part
            for part in sorted(job.made_of.keys() | there.keys())
            if there.get(part) != job.made_of.get(part)
        ]
        if unlike:
            raise InputError(
                f"{job.name} would have another {' and '.join(unlike)} here: every node needs the same "
                "version of mtl, and the same corpus at the same path"
            )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

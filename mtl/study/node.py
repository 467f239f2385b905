"""A process at work on a study on a node of a cluster: `python -m mtl.study.node FOLDER PARENT THREADS`."""

from __future__ import annotations

import sys
from pathlib import Path

from mtl.errors import InputError
from mtl.models.inputs import InputCache
from mtl.study.folder import StudyFolder
from mtl.study.run_ray import UNLIKE
from mtl.workers.pool import share_of


def main(folder: str, parent: str, threads: str) -> int:
    """Do jobs until none is left, if this machine makes of them what the planning machine does."""
    from mtl.study.perform import work

    study, material = StudyFolder(Path(folder)), InputCache(keep=True)

    def share() -> None:
        check(study, material)
        work(study, material)

    try:
        return share_of(parent, threads, share)
    except InputError as error:
        print(error, file=sys.stderr)
        return UNLIKE


def check(study: StudyFolder, material: InputCache) -> None:
    """Raise `InputError` unless the study planned here and now has the folder's jobs.

    So a machine with another version of the code, another corpus at the same place or no way to the encoder
    is found out before it spoils a run. What is read for that serves the runs as well.
    """
    from mtl.config.parse import read_configuration
    from mtl.study.config import StudyConfig
    from mtl.study.plan import make_plan

    # Finished runs that were kept though the code was changed are wanted as they are.
    plan = make_plan(read_configuration(StudyConfig, study.plan), study, material, keep_code=True)
    wanted = {job.name: job.made_of for job in study.jobs()}
    for job in plan.jobs:
        parts = job.made_of.keys() | wanted.get(job.name, {}).keys()
        unlike = [
            part for part in sorted(parts) if wanted.get(job.name, {}).get(part) != job.made_of.get(part)
        ]
        if unlike:
            raise InputError(
                f"{job.name} would be made of another {' and '.join(unlike)} here: every node needs the same "
                "version of mtl, and the same corpus at the same place"
            )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""What a study prepares for runs that copy claimed heads: the file of the claims."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mtl.errors import InputError
from mtl.stem_cell.check_copies import check_copies, copies_that_fail
from mtl.stem_cell.clones_config import clones_of
from mtl.stem_cell.study_claims import with_claims, write_claims_of
from mtl.study.extensions import Preparation

if TYPE_CHECKING:
    from mtl.study.jobs.folder import StudyFolder
    from mtl.study.jobs.job import Job


class _Claims(Preparation):
    part = "claims"
    changed = "the masks that its claims come from changed"

    def with_sources(self, runs: Sequence[Job], folder: Path) -> list[Job]:
        return with_claims(runs, folder)

    def check(self, runs: Sequence[Job]) -> None:
        check_copies(runs)

    def fingerprints(self, run: Job, of_files: Callable[[tuple[Path, ...]], str]) -> dict[str, str]:
        given = clones_of(run.config).claims
        if given is None or run.prepared_from:
            return {}
        if not Path(given).is_file():
            raise InputError(f"run {run.name}: clones.claims={given}: no such file")
        return {self.part: of_files((Path(given),))}

    def notes(self, jobs: Mapping[str, Job], changed: set[str], study: StudyFolder) -> Iterator[str]:
        return copies_that_fail(jobs, changed, study)

    def prepare(self, job: Job, study: StudyFolder) -> None:
        write_claims_of(job, study)


CLAIMS = _Claims()

"""A study's folder on disk: runs, jobs with their progress, and leases."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from mtl.errors import InputError
from mtl.files import write_json
from mtl.study.jobs.job import Job, Progress, Snapshot
from mtl.workers.lease import Holder, exclusive, holder_of
from mtl.workers.queue import JobFolder
from mtl.workers.records import record_of

T = TypeVar("T", Job, Progress)


@dataclass(frozen=True)
class StudyFolder(JobFolder):
    """The paths of a study's files, and what they contain."""

    @property
    def study_file(self) -> Path:
        """The study's file with all keys, as last planned."""
        return self.path / "study.yaml"

    def lease_file(self, name: str) -> Path:
        """The lease of the process that works on a job."""
        return self.path / "jobs" / f"{name}.lease"

    def command(self, holder: Holder) -> Path:
        """The lease that a call of `mtl study` holds while it works on the folder."""
        # Two containers may have the same host name and process number.
        where = hashlib.sha256(holder.namespace.encode()).hexdigest()[:8]
        return self.path / "commands" / f"{holder.host}-{where}-{holder.pid}.lease"

    def commands(self) -> list[Holder]:
        """The living calls of `mtl study` on the folder, also those that are between two runs."""
        holders = (holder_of(path) for path in sorted((self.path / "commands").glob("[!.]*.lease")))
        return [holder for holder in holders if holder is not None]

    def planning(self) -> AbstractContextManager[None]:
        """The lock under which a process changes the plan, while others wait."""
        return exclusive(self.path / "plan.lease")

    def jobs(self) -> list[Job]:
        """All jobs, in the order in which they are started."""
        files = (self.path / "jobs").glob("*.job.json")
        jobs = (self._record(Job, file) for file in files)  # a command that plans may just have removed one
        return sorted((job for job in jobs if job is not None), key=lambda job: job.number)

    def not_to_probe(self) -> frozenset[Path]:
        """The folders of runs that are not to be probed."""
        return frozenset(self.run(job.name) for job in self.jobs() if "probes" not in job.measures())

    def write_job(self, job: Job) -> None:
        """Write a job."""
        write_json(self._job(job.name), asdict(job))

    def remove_job(self, name: str) -> None:
        """Remove a job and its progress."""
        self._job(name).unlink(missing_ok=True)
        self._progress(name).unlink(missing_ok=True)

    def snapshot(self, jobs: Sequence[Job] | None = None) -> Snapshot:
        """These jobs (`None`: all) and their progress."""
        by_name = {job.name: job for job in (self.jobs() if jobs is None else jobs)}
        return Snapshot(by_name, {name: self.progress(name) for name in by_name})

    def ended(self) -> bool:
        """Whether all jobs have ended."""
        snapshot = self.snapshot()
        return snapshot.ended() == len(snapshot.jobs)

    def progress(self, name: str) -> Progress:
        """The progress of a job; `running` only while its process lives."""
        return self.living(name, self.last_progress(name))

    def last_progress(self, name: str) -> Progress:
        """The progress of a job, as last written."""
        return self._record(Progress, self._progress(name)) or Progress()

    def write_progress(self, name: str, progress: Progress) -> None:
        """Write the progress of a job."""
        write_json(self._progress(name), asdict(progress))

    def holders(self, jobs: Sequence[Job]) -> dict[str, Holder]:
        """The living processes that work on these jobs, by job."""
        holders = {job.name: holder_of(self.lease_file(job.name)) for job in jobs}
        return {name: holder for name, holder in holders.items() if holder is not None}

    def epochs(self, name: str) -> int:
        """The last epoch after which a run was evaluated; 0 if there is none."""
        try:
            lines = (self.run(name) / "history.csv").read_text(encoding="utf-8").splitlines()
            return int(lines[-1].split(",")[0]) if len(lines) > 1 else 0
        except (OSError, ValueError):
            return 0

    def _record(self, kind: type[T], file: Path) -> T | None:
        """A job or progress; `None` if there is no file. Raises `InputError` for a damaged one."""
        try:
            return record_of(file, kind.of)
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            message = " ".join(str(error).split())
            raise InputError(
                f"{file} cannot be read ({message}): it is damaged, or from another version of mtl; remove "
                "it, and run 'mtl study' with the study's file again"
            ) from error

    def _job(self, name: str) -> Path:
        return self.path / "jobs" / f"{name}.job.json"

    def _progress(self, name: str) -> Path:
        return self.path / "jobs" / f"{name}.progress.json"

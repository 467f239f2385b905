"""A study's folder on disk: its runs, what each is made of, and how far it is."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from mtl.files import write_json
from mtl.workers.lease import Owner, claimed, owner_of

PAUSE = 0.1
"""Seconds between looks at a claim that another process holds for a moment."""

State = Literal["waiting", "running", "finished", "failed", "interrupted"]


PROBED = ("probes", "probing")
"""What of a job can change without its training being repeated."""


@dataclass(frozen=True)
class Job:
    """A run, or the probing of the encoder before training, as the study wants it."""

    name: str
    number: int
    setup: str
    config: dict[str, Any]
    """Of the run; empty for the encoder before training."""
    made_of: dict[str, str]
    """Fingerprints: of `configuration`, `corpus`, `code` and the run that it `needs`; if it is probed, of the
    `probes`' settings and of the code for `probing`."""
    needs: str | None = None
    probe: dict[str, Any] | None = None
    """What is probed afterwards and how; `None`: nothing."""


@dataclass(frozen=True)
class Progress:
    """How far a job is; written only by the process that holds its claim."""

    state: State = "waiting"
    made_of: dict[str, str] = field(default_factory=dict)
    """What the job was made of when it was begun."""
    tries: int = 0
    started: float = 0.0
    ended: float = 0.0
    seconds: float = 0.0
    """Work on it, over all tries that came to an end."""
    prepared_seconds: float = 0.0
    """Of these, before the last try's first step: reading, tokenising, loading the encoder."""
    training_seconds: float = 0.0
    """Of these, in Lightning's loop and evaluations."""
    worker: str = ""
    gpu_gigabytes: float = 0.0
    """Most memory in use on a GPU."""
    error: str = ""


@dataclass(frozen=True)
class StudyFolder:
    """Where the parts of a study are."""

    path: Path

    @property
    def runs(self) -> Path:
        """Holds the run folders, and `static` with the probes of the encoder before training."""
        return self.path / "runs"

    @property
    def plan(self) -> Path:
        """The study's file as it was last planned."""
        return self.path / "study.yaml"

    def run(self, name: str) -> Path:
        """The folder of a run."""
        return self.runs / name

    def log(self, name: str) -> Path:
        """What a run printed."""
        return self.path / "logs" / f"{name}.log"

    def claim(self, name: str) -> Path:
        """The claim of the process that works on a job."""
        return self.path / "jobs" / f"{name}.claim"

    def command(self, owner: Owner) -> Path:
        """The claim of a call of `mtl study` as long as it works on the folder."""
        return self.path / "commands" / f"{owner.host}-{owner.pid}.claim"

    def commands(self) -> list[Owner]:
        """The living calls of `mtl study` that work on the folder, between two runs as well."""
        owners = (owner_of(claim) for claim in sorted((self.path / "commands").glob("[!.]*.claim")))
        return [owner for owner in owners if owner is not None]

    @contextmanager
    def planning(self) -> Iterator[None]:
        """One process at a time changes what is to do: waits for the others."""
        while True:
            with claimed(self.path / "plan.claim") as mine:
                if mine:
                    yield
                    return
            time.sleep(PAUSE)

    def jobs(self) -> list[Job]:
        """All jobs, in the order in which they are begun."""
        files = (self.path / "jobs").glob("*.job.json")
        return sorted((Job(**json.loads(file.read_bytes())) for file in files), key=lambda job: job.number)

    def write_job(self, job: Job) -> None:
        """Keep a job."""
        write_json(self._job(job.name), asdict(job))

    def remove_job(self, name: str) -> None:
        """Forget a job and how far it is."""
        self._job(name).unlink(missing_ok=True)
        self._progress(name).unlink(missing_ok=True)

    def progress(self, name: str) -> Progress:
        """How far a job is; `running` only as long as its process lives."""
        progress = self.last_progress(name)
        if progress.state == "running" and owner_of(self.claim(name)) is None:
            return replace(progress, state="interrupted")
        return progress

    def last_progress(self, name: str) -> Progress:
        """How far a job is, as last written."""
        try:
            return Progress(**json.loads(self._progress(name).read_bytes()))
        except FileNotFoundError:
            return Progress()

    def write_progress(self, name: str, progress: Progress) -> None:
        """Keep how far a job is."""
        write_json(self._progress(name), asdict(progress))

    def owners(self, jobs: Sequence[Job]) -> dict[str, Owner]:
        """The living processes at work, by job."""
        owners = {job.name: owner_of(self.claim(job.name)) for job in jobs}
        return {name: owner for name, owner in owners.items() if owner is not None}

    def epochs(self, name: str) -> int:
        """How many epochs of a run are evaluated."""
        try:
            lines = (self.run(name) / "history.csv").read_text().splitlines()
            return int(lines[-1].split(",")[0]) if len(lines) > 1 else 0
        except (OSError, ValueError):
            return 0

    def _job(self, name: str) -> Path:
        return self.path / "jobs" / f"{name}.job.json"

    def _progress(self, name: str) -> Path:
        return self.path / "jobs" / f"{name}.progress.json"


def trained_alike(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether two runs are made of the same things, but for how they are probed."""
    return without_probes(one) == without_probes(other)


def without_probes(made_of: Mapping[str, str]) -> dict[str, str]:
    """What the training of a run is made of."""
    return {part: print_ for part, print_ in made_of.items() if part not in PROBED}


def done(job: Job, progress: Progress) -> bool:
    """Whether a job is finished, and made of what it should be."""
    return progress.state == "finished" and progress.made_of == job.made_of


def given_up(job: Job, progress: Progress) -> bool:
    """Whether a job has failed for good, as it now stands."""
    return progress.state == "failed" and progress.made_of == job.made_of


def ready(job: Job, jobs: Mapping[str, Job], progress: Mapping[str, Progress]) -> bool:
    """Whether a job can be begun: it is not done, has not failed, and the run that it needs is done."""
    own = progress[job.name]
    if done(job, own) or given_up(job, own):
        return False
    return job.needs is None or done(jobs[job.needs], progress[job.needs])


def hopeless(job: Job, jobs: Mapping[str, Job], progress: Mapping[str, Progress]) -> bool:
    """Whether a job cannot be begun since the run that it needs has failed."""
    return job.needs is not None and given_up(jobs[job.needs], progress[job.needs])


def now() -> float:
    """Seconds since 1970."""
    return time.time()

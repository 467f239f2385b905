"""How far a study is, as a table; read from its folder without loading torch."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from mtl.study.folder import StudyFolder
from mtl.study.job import Job, Progress, State, done, given_up, hopeless
from mtl.workers.lease import now
from mtl.workers.pool import STATE_STYLES, clock


def overview(
    study: StudyFolder, jobs: Sequence[Job], workers: int | None = None, rows: int | None = None
) -> Group:
    """A line per job (with `rows`, those that are running, have failed or ended last) and a line for all.

    The remaining time is for this number of `workers`, or for as many as there are now.
    """
    progress = {job.name: study.progress(job.name) for job in jobs}
    by_name = {job.name: job for job in jobs}
    states = {job.name: state_of(job, by_name, progress) for job in jobs}
    table = Table(title=str(study.path), title_justify="left")
    for title in ("run", "setup", "state"):
        table.add_column(title)
    table.add_column("epochs", justify="right")
    table.add_column("time", justify="right")
    table.add_column("remarks", overflow="fold")
    for job in _shown(jobs, states, progress, rows):
        its_progress, state = progress[job.name], states[job.name]
        spent = its_progress.seconds + (now() - its_progress.started if state == "running" else 0.0)
        epochs = f"{study.epochs(job.name)}/{job.config['max_epochs']}" if job.config else ""
        table.add_row(
            job.name,
            job.grid_cell,
            Text(state, style=STATE_STYLES[state]),
            epochs if state in ("running", "interrupted") or its_progress.state == "failed" else "",
            clock(spent) if spent else "",
            _remark(study, job, state, by_name, progress),
        )
    at_work = list(states.values()).count("running")
    return Group(table, Text(totals(jobs, states, progress, workers or at_work)))


def totals(
    jobs: Sequence[Job], states: Mapping[str, State], progress: Mapping[str, Progress], workers: int = 1
) -> str:
    """One line: jobs by state, and how long the rest will take."""
    counts: Counter[str] = Counter(states.values())
    parts = [f"{counts[state]} {state}" for state in STATE_STYLES if counts[state]]
    left = remaining(jobs, progress)
    if left is not None and left > 0:
        parts.append(
            f"about {clock(left / max(1, workers))} to go" + (f" by {workers}" if workers > 1 else "")
        )
    return f"{len(jobs)} jobs: {', '.join(parts)}"


def remaining(jobs: Sequence[Job], progress: Mapping[str, Progress]) -> float | None:
    """Seconds of work left for one process; `None` before the first job is finished.

    Each job counts as long as those of its setup that are finished; other setups are scaled by the number of
    their tasks and epochs.
    """
    finished = [job for job in jobs if done(job, progress[job.name])]
    if not finished:
        return None
    by_cell = {
        cell: statistics.mean(progress[job.name].seconds for job in finished if job.grid_cell == cell)
        for cell in {job.grid_cell for job in finished}
    }
    per_unit = sum(progress[job.name].seconds for job in finished) / sum(_size(job) for job in finished)
    left = 0.0
    for job in jobs:
        its_progress = progress[job.name]
        if done(job, its_progress) or given_up(job, its_progress):
            continue
        running = its_progress.state == "running"
        spent = its_progress.seconds + (now() - its_progress.started if running else 0.0)
        left += max(0.0, by_cell.get(job.grid_cell, per_unit * _size(job)) - spent)
    return left


def _size(job: Job) -> float:
    """How much work a job is, by tasks and epochs; with a mask per task a sentence is as many rows."""
    if not job.config:
        return 0.5
    tasks = len(job.config["tasks"])
    rows = tasks if job.config["gates"]["scope"] == "per_task" and job.config["pruning"] != "none" else 1
    return float(job.config["max_epochs"] * (1 + 0.1 * (tasks - 1)) * rows)


def states_of(study: StudyFolder, jobs: Sequence[Job]) -> dict[str, State]:
    """Every job's state."""
    by_name = {job.name: job for job in jobs}
    progress = {job.name: study.progress(job.name) for job in jobs}
    return {job.name: state_of(job, by_name, progress) for job in jobs}


def ended_line(study: StudyFolder, job: Job, state: State) -> str:
    """The line to print when a job's state changes."""
    progress = study.last_progress(job.name)
    if state == "failed":
        return f"{job.name}: failed: {progress.error or f'{job.needs} has failed'} ({study.log(job.name)})"
    return f"{job.name}: {state}" + (f" after {clock(progress.seconds)}" if state == "finished" else "")


def state_of(job: Job, jobs: Mapping[str, Job], progress: Mapping[str, Progress]) -> State:
    """A job's state as the study is planned now: what was made of other things is still to do."""
    its_progress = progress[job.name]
    if its_progress.made_of and its_progress.made_of != job.made_of:
        return "waiting"
    return "failed" if hopeless(job, jobs, progress) else its_progress.state


def _shown(
    jobs: Sequence[Job], states: Mapping[str, State], progress: Mapping[str, Progress], rows: int | None
) -> list[Job]:
    if rows is None or len(jobs) <= rows:
        return list(jobs)
    rank = {"running": 0, "failed": 1, "interrupted": 2, "waiting": 4, "finished": 3}
    order = sorted(jobs, key=lambda job: (rank[states[job.name]], -progress[job.name].ended, job.number))
    chosen = {job.name for job in order[:rows]}
    return [job for job in jobs if job.name in chosen]


def _remark(
    study: StudyFolder,
    job: Job,
    state: State,
    jobs: Mapping[str, Job],
    progress: Mapping[str, Progress],
) -> str:
    if state == "failed":
        if hopeless(job, jobs, progress):
            return f"{job.needs} has failed"
        return f"{progress[job.name].error} ({study.log(job.name)})"
    if state == "running":
        return progress[job.name].worker
    if state == "waiting" and job.needs is not None and not done(jobs[job.needs], progress[job.needs]):
        return f"after {job.needs}"
    return ""

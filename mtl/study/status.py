"""The state of a study as a table, read from its folder without loading torch."""

from __future__ import annotations

import statistics
from collections import Counter

from rich.console import Group
from rich.table import Table
from rich.text import Text

from mtl.config.effective import settings_in
from mtl.config.part import row_per_task
from mtl.errors import counted
from mtl.study.folder import StudyFolder
from mtl.study.job import Job, Snapshot, State
from mtl.workers.pool import STATE_STYLES, clock


def overview(
    study: StudyFolder, snapshot: Snapshot, workers: int | None = None, rows: int | None = None
) -> Group:
    """A row per job and a line of totals; with `rows`, no more rows than that: running, failed, ended last.

    The remaining time assumes `workers` processes, by default as many as there are running jobs.
    """
    states = snapshot.states()
    table = Table(title=str(study.path), title_justify="left")
    table.add_column("run", overflow="fold")
    table.add_column("setup", overflow="fold")
    table.add_column("state")
    table.add_column("epochs", justify="right")
    table.add_column("time", justify="right")
    table.add_column("remarks", overflow="fold")
    for job in _shown(snapshot, rows):
        state, seconds = states[job.name], snapshot.seconds(job.name)
        epochs = f"{study.epochs(job.name)}/{job.config['max_epochs']}" if job.config else ""
        table.add_row(
            job.name,
            job.grid_cell,
            Text(state, style=STATE_STYLES[state]),
            epochs if state in ("running", "interrupted", "failed") else "",
            clock(seconds) if seconds else "",
            _remark(study, job, snapshot),
        )
    return Group(table, Text(totals(snapshot, workers or list(states.values()).count("running"))))


def totals(snapshot: Snapshot, workers: int = 1) -> str:
    """One line: jobs by state, and how long the rest will take."""
    counts: Counter[str] = Counter(snapshot.states().values())
    parts = [f"{counts[state]} {state}" for state in STATE_STYLES if counts[state]]
    left = remaining(snapshot)
    if left:
        parts.append(
            f"about {clock(left / max(1, workers))} to go" + (f" by {workers}" if workers > 1 else "")
        )
    return f"{counted(len(snapshot.jobs), 'job')}: {', '.join(parts)}"


def remaining(snapshot: Snapshot) -> float | None:
    """Seconds of work left for one process; `None` before the first job is finished.

    A job takes as long as the mean finished job of its grid cell. If there is none, the time of all finished
    jobs is scaled by tasks and epochs (`_size`). Of a run that is trained already only measures are left,
    each with its mean time for a task; a measure that no run has yet does not count.
    """
    states = snapshot.states()
    finished = [job for name, job in snapshot.jobs.items() if states[name] == "finished"]
    if not finished:
        return None
    seconds = {job.name: snapshot.seconds(job.name) for job in finished}
    by_cell = {
        cell: statistics.mean(seconds[job.name] for job in finished if job.grid_cell == cell)
        for cell in {job.grid_cell for job in finished}
    }
    per_unit = sum(seconds.values()) / sum(_size(job) for job in finished)
    per_task = _measuring_seconds(snapshot)
    left = 0.0
    for name, job in snapshot.jobs.items():
        measures = snapshot.left_to_measure(name)
        if states[name] in ("finished", "failed"):
            continue
        if measures is not None:
            left += sum(per_task.get(measure, 0.0) * len(job.config["tasks"]) for measure in measures)
        else:
            typical = by_cell.get(job.grid_cell, per_unit * _size(job))
            left += max(0.0, typical - snapshot.seconds(name))
    return left


def _measuring_seconds(snapshot: Snapshot) -> dict[str, float]:
    """By measure the mean seconds that it took for a task of a trained run."""
    taken: dict[str, list[float]] = {}
    for name, job in snapshot.jobs.items():
        for measure, seconds in snapshot.progress[name].measured.items() if job.config else ():
            taken.setdefault(measure, []).append(seconds / len(job.config["tasks"]))
    return {measure: statistics.mean(seconds) for measure, seconds in taken.items()}


def _size(job: Job) -> float:
    """The work of a job, in epochs of one task; with masks or heads per task a sentence is a row per task."""
    if not job.config:
        return 0.5
    tasks = len(job.config["tasks"])
    own_masks = job.config["gates"]["scope"] == "per_task" and job.config["pruning"] != "none"
    rows = tasks if own_masks or row_per_task(settings_in(job.config)) else 1
    return float(job.config["max_epochs"] * (1 + 0.1 * (tasks - 1)) * rows)


def ended_line(study: StudyFolder, job: Job, state: State) -> str:
    """The line to print when a job's state changes."""
    progress = study.last_progress(job.name)
    if state == "failed":
        failed = [name for name in job.after() if study.progress(name).state == "failed"]
        error = progress.error or f"{', '.join(failed) or 'a run that it needs'} has failed"
        return f"{job.name}: failed: {error} ({study.log(job.name)})"
    return f"{job.name}: {state}" + (f" after {clock(progress.seconds)}" if state == "finished" else "")


def _shown(snapshot: Snapshot, rows: int | None) -> list[Job]:
    jobs, states = list(snapshot.jobs.values()), snapshot.states()
    if rows is None or len(jobs) <= rows:
        return jobs
    rank = {"running": 0, "failed": 1, "interrupted": 2, "finished": 3, "waiting": 4}
    order = sorted(
        jobs, key=lambda job: (rank[states[job.name]], -snapshot.progress[job.name].ended, job.number)
    )
    chosen = {job.name for job in order[:rows]}
    return [job for job in jobs if job.name in chosen]


def _remark(study: StudyFolder, job: Job, snapshot: Snapshot) -> str:
    state, progress = snapshot.state(job.name), snapshot.progress[job.name]
    needed = {name: snapshot.state(name) for name in job.after()}
    if state == "failed":
        failed = [name for name in needed if needed[name] == "failed"]
        return f"{failed[0]} has failed" if failed else f"{progress.error} ({study.log(job.name)})"
    if state == "running":
        return progress.worker
    unfinished = [name for name in needed if needed[name] != "finished"]
    if state != "waiting" or not unfinished:
        return ""
    more = f" and {len(unfinished) - 1} more" if len(unfinished) > 1 else ""
    return f"after {unfinished[0]}{more}"

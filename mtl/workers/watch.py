"""What users see of a queue: a table of its jobs, and a line when a job starts or ends."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mtl.tasks.in_words import counted
from mtl.tasks.task import CountOrNone
from mtl.workers.pool import STARTER, Sharing, WorkerPool, devices, multi_process_service, threads_for
from mtl.workers.queue import JobFolder, Snapshot, State, interruptible

S = TypeVar("S", bound=Snapshot[Any, Any])
STYLES: dict[State, str] = {
    "finished": "green", "running": "bold", "stopped": "cyan", "failed": "red", "interrupted": "yellow",
    "waiting": "dim",
}  # fmt: skip
"""Colours of the states in tables, in the order in which states are counted."""
MOST_FAILED = 2
"""The most failed jobs that are named when a command ends."""
Jobs = CountOrNone | Literal["auto"]
SECONDS = 2.0
"""Seconds between two looks at how far jobs are."""
_FIRST: tuple[State, ...] = ("running", "failed", "interrupted", "stopped", "finished", "waiting")
"""The order of states in which jobs are chosen if there is no room for all."""


class QueueView(ABC, Generic[S]):
    """What is shown of a queue."""

    folder: JobFolder
    kind: ClassVar[str] = "job"
    limit: int = 0
    """The final number of jobs, if more are to come."""

    @abstractmethod
    def snapshot(self) -> S:
        """The jobs and their progress now."""

    @abstractmethod
    def texts(self, snapshot: S, name: str) -> Mapping[str, str]:
        """What the table shows of a job between its state and its time, by column."""

    @abstractmethod
    def ending(self, snapshot: S, name: str) -> str:
        """The end of the line that is printed when a job that has not failed starts or ends."""

    def remark(self, snapshot: S, name: str) -> str:
        """The last text in the row of a job that has not failed."""
        return snapshot.progress[name].worker if snapshot.state(name) == "running" else ""

    def why_failed(self, snapshot: S, name: str) -> str:
        """Why a job has failed, and where its log is."""
        return f"{snapshot.progress[name].error} ({self.folder.log(name)})"

    def outlook(self, snapshot: S) -> str:
        """The end of the line of totals: how much remains."""
        left = self.limit - len(snapshot.jobs)
        return f"{left} to come" if left > 0 else ""

    def capacity(self, count: int, gpus: Sequence[str]) -> int:
        """The number of processes at work side by side, if `count` are wanted (0: as many as are useful)."""
        return count or max(1, len(gpus))

    def done(self) -> dict[str, float]:
        """The work of each job so far, in a unit that all share; only of jobs that tell it."""
        return {}

    def fits(self, gpu: str) -> int:
        """The number of processes that fit on a GPU."""
        return 1

    def all_ended(self, snapshot: S) -> bool:
        """Whether all jobs have ended and no more are to come."""
        return snapshot.ended() >= max(self.limit, len(snapshot.jobs))

    def totals(self, snapshot: S) -> str:
        """One line: the number of jobs in each state, and how much remains."""
        counts: Counter[State] = Counter(snapshot.states().values())
        parts = [*(f"{counts[state]} {state}" for state in STYLES if counts[state]), self.outlook(snapshot)]
        number = counted(max(self.limit, len(snapshot.jobs)), self.kind)
        return f"{number}: {', '.join(filter(None, parts))}"

    def show(self, snapshot: S, console: Console) -> None:
        """Print a row per job and the totals; without a terminal, a row is one line, however long."""
        if console.is_terminal:
            console.print(self.overview(snapshot), crop=False)
            return
        cells = self._cells(snapshot, _shown(snapshot, None))
        widths = {column: max(map(len, (column, *texts))) for column, texts in cells.items()}
        lines = (
            "  ".join(text.ljust(width) for text, width in zip(row, widths.values(), strict=True)).rstrip()
            for row in (cells, *zip(*cells.values(), strict=True))
        )
        console.print("\n".join((str(self.folder.path), *lines, self.totals(snapshot))), soft_wrap=True)

    def show_end(self, snapshot: S, console: Console) -> None:
        """Print why the first jobs failed, a line each, and the totals."""
        failed = [name for name, state in snapshot.states().items() if state == "failed"]
        for name in failed[:MOST_FAILED]:
            console.print(self.line(snapshot, name), soft_wrap=True)
        console.print(self.totals(snapshot), soft_wrap=True)

    def overview(self, snapshot: S, rows: int | None = None) -> Group:
        """A row per job and the totals; with `rows`, at most that many, running and failed jobs first."""
        cells = self._cells(snapshot, _shown(snapshot, rows))
        table = Table(title=str(self.folder.path), title_justify="left")
        for column, texts in cells.items():
            right = column in list(cells)[2:-1] and all(map(_is_number, texts))
            longest = max(map(len, texts), default=0) if right else None
            justify: Literal["left", "right"] = "right" if right else "left"
            table.add_column(column, overflow="fold", justify=justify, min_width=longest)
        for row in zip(*cells.values(), strict=True):
            table.add_row(row[0], Text(row[1], style=STYLES[row[1]]), *row[2:])
        return Group(table, Text(self.totals(snapshot)))

    def _cells(self, snapshot: S, names: Sequence[str]) -> dict[str, list[str]]:
        """By column, the texts of these jobs: names, states, the view's own columns, times, remarks."""
        own = [self.texts(snapshot, name) for name in names]
        spent = [snapshot.progress[name].spent() for name in names]
        return {
            "run" if self.kind == "job" else self.kind: list(names),
            "state": [snapshot.state(name) for name in names],
            **{
                column: [texts.get(column, "") for texts in own]
                for column in dict.fromkeys(column for texts in own for column in texts)
            },
            "time": [clock(seconds) if seconds else "" for seconds in spent],
            "remarks": [
                (self.why_failed if snapshot.state(name) == "failed" else self.remark)(snapshot, name)
                for name in names
            ],
        }

    def conclude(self, snapshot: S, page: Path | None, console: Console) -> int:
        """Print where the report's page is, and how many jobs have failed; returns the exit code."""
        if page is not None:
            console.print(f"report: {page}", soft_wrap=True)
        failed = list(snapshot.states().values()).count("failed")
        if failed:
            listed = " (--status lists them)" if failed > MOST_FAILED else ""
            print(
                f"mtl: {counted(failed, self.kind)} failed{listed}; run the command again to retry",
                file=sys.stderr,
            )
        return 1 if failed else 0

    def line(self, snapshot: S, name: str) -> str:
        """The line that is printed when a job's state has changed."""
        state = snapshot.state(name)
        if state == "failed":
            return f"{name}: failed: {self.why_failed(snapshot, name)}"
        return f"{name}: {state}{self.ending(snapshot, name)}"


def _is_number(text: str) -> bool:
    return not text or text.lstrip("-")[:1].isdigit()


def _shown(snapshot: Snapshot[Any, Any], rows: int | None) -> list[str]:
    names = list(snapshot.jobs)
    if rows is None or len(names) <= rows:
        return names
    states = snapshot.states()
    order = sorted(names, key=lambda name: (_FIRST.index(states[name]), -snapshot.progress[name].ended))
    chosen = set(order[:rows])
    return [name for name in names if name in chosen]


@contextmanager
def watching(view: QueueView[S], console: Console) -> Iterator[Callable[[], int]]:
    """Show a live table and a line when a job ends; without a terminal, a line when a job starts or ends.

    Yields a function that looks at the folder again and returns how many jobs have ended.
    """
    before = view.snapshot().states()
    live = Live(console=console, refresh_per_second=2, transient=True) if console.is_terminal else None

    def look() -> int:
        snapshot = view.snapshot()
        for name, state in snapshot.states().items():
            if state not in (before.get(name), "waiting"):
                before[name] = state
                if live is None or state != "running":
                    console.print(view.line(snapshot, name), soft_wrap=True)
        if live is not None:
            live.update(view.overview(snapshot, rows=max(5, console.size.height - 8)))
        return snapshot.ended()

    with live if live is not None else nullcontext():
        yield look


def run_locally(
    view: QueueView[S], function: str, count: Jobs, console: Console, arguments: Sequence[str] = ()
) -> None:
    """Do the jobs with at most `count` processes of this machine (0: as many as are useful).

    With `auto`, GPUs are shared by as many as make all of them faster (`Sharing`).

    The processes call the function `MODULE:FUNCTION` with the folder and these arguments. Raises
    `KeyboardInterrupt` when asked to stop.
    """
    interruptible()
    if view.all_ended(view.snapshot()):
        return
    gpus = devices()
    pool = WorkerPool((STARTER, function), view.folder.path, threads_for, gpus, arguments)
    if count != "auto" or not gpus:
        with watching(view, console) as look:
            pool.work(lambda: view.capacity(0 if count == "auto" else count, gpus), look)
        return
    sharing, looked = Sharing(len(gpus)), 0.0

    def capacity() -> int:
        nonlocal looked
        if (now := time.monotonic()) - looked >= SECONDS:
            looked, before = now, sharing.places
            if sharing.see(now, view.done(), view.fits(gpus[0])) != before:
                console.print(f"{counted(sharing.places, 'run')} on each GPU", soft_wrap=True)
        return sharing.places * len(gpus)

    with watching(view, console) as look, multi_process_service() as environment:
        replace(pool, environment=environment).work(capacity, look)


def clock(seconds: float) -> str:
    """Seconds as `m:ss` or `h:mm:ss`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"

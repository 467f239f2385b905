"""The progress bar of commands that go through a corpus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress


@contextmanager
def sentence_progress(total: int) -> Iterator[Callable[[int], None]]:
    """A bar of sentences on standard error; yields a function that is called with how many more are done."""
    with progress_of("sentences", total) as advance:
        yield advance


@contextmanager
def progress_of(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """The same bar for other units than sentences, which `what` names."""
    with Progress(console=Console(markup=False, emoji=False, stderr=True)) as shown:
        bar = shown.add_task(what, total=total)
        yield lambda done: shown.advance(bar, done)

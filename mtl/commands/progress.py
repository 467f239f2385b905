"""Progress bars, and what an interrupted command has done."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from rich.console import Console
from rich.progress import Progress

from mtl.tasks.in_words import counted


@contextmanager
def lines_done(count: Callable[[], int], where: str) -> Iterator[None]:
    """Make an interruption of the block report how many lines are done; later ones may be printed in part."""
    try:
        yield
    except KeyboardInterrupt:
        lines = counted(count(), "line")
        raise KeyboardInterrupt(f"{lines} of {where} done: give the later ones to the same command") from None


@contextmanager
def progress_of(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, named `what`; yields a function that receives how many more are done."""
    quiet = not logging.getLogger().isEnabledFor(logging.WARNING)
    with Progress(console=Console(markup=False, emoji=False, stderr=True, quiet=quiet)) as shown:
        bar = shown.add_task(what, total=total)
        yield lambda done: shown.advance(bar, done)


sentence_progress = partial(progress_of, "sentences")

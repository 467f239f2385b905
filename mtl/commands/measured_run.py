"""The run and the sentences of a command that measures heads, as its options name them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from mtl.analysis.trained import TrainedRun
    from mtl.models.device import Accelerator


def open_measured(
    run: Path,
    task: Sequence[str],
    corpus: Path | None,
    split: str,
    sentences: int | None,
    accelerator: Accelerator,
    out: Path | None = None,
) -> TrainedRun:
    """Open a run by the options of these names; prints which of its tasks are not measured, and why."""
    from mtl.analysis.trained import open_trained
    from mtl.config.schema import CorpusConfig

    trained = open_trained(
        run,
        None if corpus is None else CorpusConfig(str(corpus)),
        split,
        tasks=task or None,
        sentences=sentences,
        accelerator=accelerator,
        out=out,
    )
    console = Console()
    for reason in trained.left_out:
        console.print(f"not measured: {reason}", highlight=False, soft_wrap=True)
    return trained

"""`mtl importance`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.table import Table

from mtl.errors import InputError

if TYPE_CHECKING:
    import polars as pl


def importance(
    run: Path,
    task: tuple[str, ...] = (),
    corpus: Path | None = None,
    split: Literal["train", "dev", "test"] = "dev",
    sentences: int | None = None,
    per: Literal["example", "token"] = "example",
    normalise: bool = False,
    steps: int = 0,
    masks: bool = True,
    top: int = 10,
    out: Path | None = None,
    accelerator: Literal["auto", "cpu", "gpu"] = "auto",
) -> None:
    """Measure what each head is worth by gradients, and write it into the run's heads.parquet.

    Args:
        run: The run's folder.
        task: Only these tasks; default: all of the model that have gold annotations.
        corpus: Folder with .jsonl files, or SOURCE:TARGET for translations; default: the run's own.
        split: Which split of the corpus.
        sentences: The number of sentences, spread evenly over the split; default: all.
        per: Where absolute values are taken: of a sentence's derivative (Michel et al. 2019), or at each of
            its positions, as in their code for BERT.
        normalise: Divide a layer's importances by their Euclidean norm, as the paper does.
        steps: Steps of integrated gradients; 0: none. Each costs as much as all the rest.
        masks: Whether a run's head masks are applied.
        top: Heads to print per task.
        out: Table to write instead of the run's heads.parquet, so that splits or corpora can be compared.
        accelerator: What to compute on; auto takes a GPU where there is one.
    """
    from mtl.analysis.importance.run import measure_importance
    from mtl.commands.measured_run import open_measured
    from mtl.commands.progress import sentence_progress

    if top < 0:
        raise InputError(f"top={top}: give 0 or more")
    trained = open_measured(run, task, corpus, split, sentences, accelerator, out)
    heads = measure_importance(
        trained, per=per, normalise=normalise, steps=steps, masks=masks, progress=sentence_progress
    )
    console = Console(markup=False, emoji=False)
    _show(heads, trained.tasks, top, console)
    console.print(f"wrote {trained.table}", highlight=False, soft_wrap=True)


def _show(heads: pl.DataFrame, tasks: Iterable[str], top: int, console: Console) -> None:
    """Print the `top` most important heads of each task with all that was measured on them."""
    from mtl.probes.head_names import by_name

    for task in tasks:
        of_task = heads.filter(heads["task"] == task)
        wide = by_name(of_task.pivot("measure", index=["attention", "layer", "head"], values="value"))
        shown = Table(title=f"{task}: the {min(top, wide.height)} most important of {wide.height} heads")
        for title in wide.columns:
            shown.add_column(title, justify="right")
        for name, *values in wide.sort("importance", descending=True).head(top).iter_rows():
            shown.add_row(name, *(f"{value:.4g}" for value in values))
        console.print(shown)

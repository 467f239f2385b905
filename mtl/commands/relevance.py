"""`mtl relevance`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    import polars as pl


def relevance(
    run: Path,
    task: tuple[str, ...] = (),
    label: tuple[str, ...] = (),
    corpus: Path | None = None,
    split: Literal["train", "dev", "test"] = "dev",
    sentences: int | None = None,
    rule: Literal["paper", "attnlrp"] = "paper",
    output: Literal["gold", "predicted"] = "gold",
    out: Path | None = None,
    accelerator: Literal["auto", "cpu", "gpu"] = "auto",
) -> None:
    """Measure how much of a task's score passes each head, and write it into the run's heads.parquet.

    Layer-wise relevance propagation (Voita et al. 2019), in float32, under the run's masks.

    Args:
        run: The run's folder.
        task: Only these tasks; default: all of the model that have gold annotations.
        label: Labels that get rows beside those of their whole task.
        corpus: Folder with .jsonl files, or SOURCE:TARGET for translations; default: the run's own corpus.
        split: Which split of the corpus.
        sentences: The number of sentences, spread evenly over the split; default: all.
        rule: What passes attention's softmax: nothing, as in the paper, or relevance of queries and keys
            too (attnlrp).
        output: Whose score is explained, that of the gold annotation or of what the model predicts; of
            translations both under the reference's words.
        out: Table to write instead of the run's heads.parquet, so that splits or corpora can be compared.
        accelerator: What to compute on; auto takes a GPU where there is one.
    """
    from mtl.analysis.relevance.run import measure_relevance
    from mtl.commands.measured_run import open_measured
    from mtl.commands.progress import sentence_progress

    trained = open_measured(run, task, corpus, split, sentences, accelerator, out)
    heads, error = measure_relevance(
        trained, labels=label, rules=rule, output=output, progress=sentence_progress
    )
    console = Console(markup=False, emoji=False)
    _show(heads, console)
    console.print(f"conserved to {error:.1e} of the score", highlight=False, soft_wrap=True)
    console.print(f"wrote {trained.table}", highlight=False, soft_wrap=True)


def _show(heads: pl.DataFrame, console: Console) -> None:
    """Print the most relevant head of every layer, with its share of the layer."""
    import polars as pl

    from mtl.probes.head_names import head_name, layer_name
    from mtl.probes.sites import Site, sites_of
    from mtl.probes.tables.best_heads import per_cent

    shares = heads.filter(measure="relevance")
    titles = [
        f"{row['task']} {row['label']}".strip() + f" ({row['count']:,})"
        for row in shares.unique(["task", "label"], maintain_order=True).iter_rows(named=True)
    ]
    shown = Table(title="most relevant head, and its share of the layer in % (sentences)")
    for title in ("layer", *titles):
        shown.add_column(title, justify="right", overflow="fold")
    of_layer = ["attention", "layer"]
    best = shares.group_by("task", "label", *of_layer, maintain_order=True).agg(
        pl.all().sort_by("value", descending=True).first()
    )
    sites = sites_of(best)
    for (kind, layer), cells in best.group_by(of_layer, maintain_order=True):
        site = Site(str(kind), int(str(layer)))
        figures = [
            f"{head_name(site, row['head'], sites)} ({per_cent(row['value'])})"
            if row["value"]
            else "none open"
            for row in cells.iter_rows(named=True)
        ]
        shown.add_row(layer_name(site, sites), *figures)
    console.print(shown)

"""`mtl probe`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.table import Table

from mtl.commands.choices import Accelerator, Precision, Split

if TYPE_CHECKING:
    import polars as pl


def probe(
    target: str,
    corpus: Path | None = None,
    split: Split = "test",
    out: Path | None = None,
    masks: bool = True,
    centroids: Literal["self", "train"] = "self",
    final_special: bool = False,
    markdown: Path | None = None,
    accelerator: Accelerator = "auto",
    precision: Precision = "32-true",
    revision: str | None = None,
) -> None:
    """Measure what each attention head is good at, and write heads.parquet.

    Of a run that translates, the encoder's heads are measured, on annotated sources (--corpus).

    Args:
        target: The folder of a run or of a saved model, an encoder ('minilm' or a folder), or the name of a
            model or encoder on the hub.
        corpus: Folder with .jsonl files; default: the run's own corpus.
        split: Split of the corpus.
        out: Folder for heads.parquet; default: the run's folder.
        masks: Whether a run's head masks are applied; a task with its own mask is probed with that mask.
        centroids: The split that gives centroids of clusters and word frequencies: self is the scored split,
            as in the paper, which overstates rare labels; train is the training split.
        final_special: Whether the final special token can be the most attended word.
        markdown: File for the summary as Markdown.
        accelerator: Device; auto is a GPU if there is one.
        precision: bf16-true rounds the encoder's weights and its attention. Ties for the most attended word
            become frequent, and such tables are not compared with those of 32-true.
        revision: A branch, tag or commit of a model or an encoder on the hub.
    """
    from mtl.analysis.probing.run import probe_run
    from mtl.commands.measured_run import corpus_of, print_left_out
    from mtl.commands.progress import sentence_progress
    from mtl.files import write_text
    from mtl.probes.tables.best_heads import best_heads, weighted_means
    from mtl.probes.tables.best_heads import markdown as as_markdown

    measured = probe_run(
        target,
        corpus_of(corpus),
        out,
        split=split,
        masks=masks,
        centroids=centroids,
        final_special=final_special,
        accelerator=accelerator,
        precision=precision,
        revision=revision,
        progress=sentence_progress,
    )
    print_left_out("probed", measured.left_out)
    console = Console(markup=False, emoji=False)
    for note in measured.notes:
        console.print(f"note: {note}", highlight=False, soft_wrap=True)
    best = best_heads(measured.heads)
    means = weighted_means(best)
    _show(best, means, console)
    _show_roles(measured.heads, console)
    console.print(f"wrote {measured.path}", highlight=False, soft_wrap=True)
    if markdown is not None:
        write_text(markdown, as_markdown(best, means))
        console.print(f"wrote {markdown}", highlight=False, soft_wrap=True)


def _show(best: pl.DataFrame, means: pl.DataFrame, console: Console) -> None:
    """Print the best head of every label, with its chance level, in per cent."""
    from mtl.probes.head_names import with_names
    from mtl.probes.measures.table import BY_NAME
    from mtl.probes.tables.best_heads import hit_by, label_name, left_out, per_cent

    best = with_names(best)
    for mean in means.iter_rows(named=True):
        measure = BY_NAME[mean["measure"]]
        shown = Table(title=f"{mean['task']}: {mean['measure']} ({mean['choice']})")
        shown.add_column("label")
        for title in ("count", "best head", "head", measure.chance_title):
            shown.add_column(title, justify="right")
        for row in best.iter_rows(named=True):
            if row["task"] == mean["task"]:
                numbers = (per_cent(row["value"]), hit_by(row), per_cent(row["chance"]))
                shown.add_row(label_name(row), f"{row['count']:,}", *numbers)
        shown.add_section()
        weighted = (per_cent(mean["value"]), "", per_cent(mean["chance"]))
        shown.add_row("weighted mean", f"{mean['items']:,}", *weighted)
        if measure.majority is not None:
            shown.add_row("most frequent label", "", per_cent(mean["majority"]), "", "")
        console.print(shown)
        if message := left_out(mean):
            console.print(message, highlight=False, soft_wrap=True)


def _show_roles(heads: pl.DataFrame, console: Console) -> None:
    """Print the roles that some head has, with the number of heads and the best one."""
    import polars as pl

    from mtl.probes.head_names import with_names
    from mtl.probes.statistics.held_roles import roles
    from mtl.probes.tables.best_heads import per_cent

    shown = Table(title="roles (Voita et al. 2019)")
    for title in ("role", "task", "label"):
        shown.add_column(title)
    for title in ("heads", "best head", "head", "best offset"):
        shown.add_column(title, justify="right")
    keys = ["measure", "task", "label"]
    best = (
        with_names(roles(heads)).group_by(keys, maintain_order=True).agg(pl.len(), pl.exclude(keys).first())
    )
    for row in best.iter_rows(named=True):
        numbers = (per_cent(row["value"]), row["name"], per_cent(row["chance"]))
        shown.add_row(*(row[key] for key in keys), str(row["len"]), *numbers)
    console.print(shown if best.height else "no head has a positional or syntactic role")

"""The relevance of a run's heads: measured, as rows of heads.parquet, and printed by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.table import Table

from mtl.analysis.measuring import Measured, Progress, silent
from mtl.commands.common import print_table
from mtl.errors import InputError, did_you_mean
from mtl.tasks.in_words import counted

if TYPE_CHECKING:
    import polars as pl

    from mtl.analysis.trained import TrainedRun


def measure_relevance(
    trained: TrainedRun,
    *,
    label: tuple[str, ...] = (),
    rule: Literal["paper", "attnlrp"] = "paper",
    output: Literal["gold", "predicted"] = "gold",
    contributions: bool = False,
    progress: Progress = silent,
) -> Measured:
    """Measure how much of a task's score passes through each head, and write it into heads.parquet.

    This is layer-wise relevance propagation (Voita et al. 2019), in float32, under the run's masks. A note
    gives the largest relative error of conservation (`Conservation.error`); one batch per mask is checked.

    Args:
        trained: The run, its model and sentences.
        label: Labels that get rows of their own, in addition to those of their whole task.
        rule: What passes attention's softmax: nothing, as in the paper, or the relevance of queries and keys
            (attnlrp).
        output: The annotation whose score is explained: gold, or what the model predicts; for translations,
            both are read under the reference.
        contributions: Also write contributions.parquet, for translations: what source and translation
            contribute to each of its tokens.
        progress: As in `mtl.analysis.measuring`.

    Raises:
        InputError: a label that no task or no sentence has; contributions for tasks that do not translate.
    """
    import polars as pl

    from mtl.relevance import contributions as of_tokens
    from mtl.relevance.propagation import explained, head_relevance, writes_text

    model = trained.model
    of_words = [name for name, task in trained.tasks.items() if not writes_text(task)]
    if contributions and of_words:
        raise InputError(f"contributions=true is for runs that translate, not for {', '.join(of_words)}")
    path = of_tokens.place_beside(trained.table)
    if contributions:
        of_tokens.check_contributions_place(path)
    known = {name for task in trained.tasks for name in model.labels[task].names}
    for name in label:
        if name not in known:
            raise InputError(f"{', '.join(trained.tasks)}: no label {name!r}{did_you_mean(name, known)}")
    if output == "gold":
        _require_present(label, _gold_labels(trained), trained)
    masks = model.scales.masks(tuple(trained.tasks))
    gold = [example.sentence for example in trained.corpus]
    tables, errors, shares = [], [], []
    passes = 2 if contributions else 1
    with progress(passes * sum(len(explained(model, gold, mask, output)) for mask in masks)) as advance:
        for mask in masks:
            table, conservation = head_relevance(
                model, gold, mask, labels=label, rules=rule, output=output, advance=advance
            )
            tables.append(table)
            errors.append(conservation.error)
            if contributions:
                shares.append(
                    of_tokens.contribution_table(
                        model, gold, mask, rules=rule, output=output, advance=advance
                    )
                )
    heads = pl.concat(tables)
    _require_present(label, set(heads["label"]), trained)
    error = f"{max(errors):.1e}"
    made_of = {"rules": rule, "output": output, "conservation_error": error}
    notes: tuple[str, ...] = (f"conserved to {error} of the score",)
    if contributions:
        table = pl.concat(shares)
        of_tokens.write_contributions(table, path, trained.made_of(**made_of))
        notes = (*of_tokens.in_words(table), *notes, f"wrote {path}")
    return Measured(heads, made_of, notes)


def _gold_labels(trained: TrainedRun) -> set[str]:
    """The labels in the gold annotations of the measured tasks."""
    sentences = [example.sentence for example in trained.corpus]
    names: set[str] = set()
    for task in trained.tasks.values():
        annotated = [sentence for sentence in sentences if task.annotated(sentence)]
        if task.loss_unit == "sentence":  # its labels may be a fixed list, of which not all occur
            names.update(str(sentence.layer(task.layer)) for sentence in annotated)
        else:
            names.update(task.labels(annotated).names)
    return names


def _require_present(labels: Sequence[str], present: set[str], trained: TrainedRun) -> None:
    for label in labels:
        if label not in present:
            raise InputError(f"label={label}: none of the {counted(len(trained.corpus), 'sentence')} has it")


def show_relevance(heads: pl.DataFrame, console: Console) -> None:
    """Print the most relevant head of every layer, with its share of the layer."""
    import polars as pl

    from mtl.probes.sites import Site, head_name, layer_name, sites_of
    from mtl.probes.tables.heads_table import per_cent

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
        numbers = [
            f"{head_name(site, row['head'], sites)} ({per_cent(row['value'])})"
            if row["value"]
            else "none open"
            for row in cells.iter_rows(named=True)
        ]
        shown.add_row(layer_name(site, sites), *numbers)
    print_table(shown, console)

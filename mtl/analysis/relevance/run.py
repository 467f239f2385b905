"""The relevance of a run's heads, as rows of heads.parquet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from mtl.analysis.measuring import Measured, Progress, silent
from mtl.errors import InputError, did_you_mean
from mtl.tasks.in_words import counted

if TYPE_CHECKING:
    from mtl.analysis.trained import TrainedRun


def measure_relevance(
    trained: TrainedRun,
    *,
    label: tuple[str, ...] = (),
    rule: Literal["paper", "attnlrp"] = "paper",
    output: Literal["gold", "predicted"] = "gold",
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
        progress: As in `mtl.analysis.measuring`.

    Raises:
        InputError: a label that no task or no sentence has.
    """
    import polars as pl

    from mtl.analysis.relevance.table import explained, head_relevance

    model = trained.model
    known = {name for task in trained.tasks for name in model.labels[task].names}
    for name in label:
        if name not in known:
            raise InputError(f"{', '.join(trained.tasks)}: no label {name!r}{did_you_mean(name, known)}")
    if output == "gold":
        _require_present(label, _gold_labels(trained), trained)
    masks = model.scales.masks(tuple(trained.tasks))
    gold = [example.sentence for example in trained.corpus]
    tables, errors = [], []
    with progress(sum(len(explained(model, gold, mask, output)) for mask in masks)) as advance:
        for mask in masks:
            table, conservation = head_relevance(
                model, gold, mask, labels=label, rules=rule, output=output, advance=advance
            )
            tables.append(table)
            errors.append(conservation.error)
    heads = pl.concat(tables)
    _require_present(label, set(heads["label"]), trained)
    error = f"{max(errors):.1e}"
    made_of = {"rules": rule, "output": output, "conservation_error": error}
    return Measured(heads, made_of, (f"conserved to {error} of the score",))


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

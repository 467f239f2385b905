"""The relevance of a run's heads, as rows of heads.parquet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import polars as pl

from mtl.analysis.relevance.propagation import Output
from mtl.analysis.relevance.rules import Rules
from mtl.analysis.relevance.table import explained, head_relevance
from mtl.analysis.trained import TrainedRun
from mtl.errors import InputError, did_you_mean

MEASURES = ("relevance", "relevance_signed")
Advance = Callable[[int], None]


def measure_relevance(
    trained: TrainedRun,
    *,
    labels: Sequence[str] = (),
    rules: Rules = "paper",
    output: Output = "gold",
    progress: Callable[[int], AbstractContextManager[Advance]] = lambda total: nullcontext(lambda done: None),
) -> tuple[pl.DataFrame, float]:
    """Measure relevance under the run's masks, and write the rows into its heads.parquet.

    Arguments are those of `head_relevance`; `progress` is as in `probe_run`. Returns the rows and the largest
    relative error of conservation (`Conservation.error`); one batch is checked per mask. Raises `InputError`
    for a label that no task or no sentence has.
    """
    model = trained.model
    known = {name for task in trained.tasks for name in model.labels[task].names}
    for label in labels:
        if label not in known:
            raise InputError(f"{', '.join(trained.tasks)}: no label {label!r}{did_you_mean(label, known)}")
    if output == "gold":
        _require_present(labels, _gold_labels(trained), trained)
    masks = model.scales.masks(tuple(trained.tasks))
    gold = [example.sentence for example in trained.corpus]
    tables, errors = [], []
    with progress(sum(len(explained(model, gold, mask, output)) for mask in masks)) as advance:
        for mask in masks:
            table, conservation = head_relevance(
                model, gold, mask, labels=labels, rules=rules, output=output, advance=advance
            )
            tables.append(table)
            errors.append(conservation.error)
    heads = pl.concat(tables)
    _require_present(labels, set(heads["label"]), trained)
    error = max(errors)
    trained.write(heads, "relevance", MEASURES, rules=rules, output=output, conservation_error=f"{error:.1e}")
    return heads, error


def _gold_labels(trained: TrainedRun) -> set[str]:
    """The labels of the sentences' gold annotations in the measured tasks."""
    sentences = [example.sentence for example in trained.corpus]
    names: set[str] = set()
    for task in trained.tasks.values():
        annotated = [sentence for sentence in sentences if task.annotated(sentence)]
        if task.unit == "sentence":  # its labels may be a fixed list, of which not all occur
            names.update(str(sentence.layer(task.layer)) for sentence in annotated)
        else:
            names.update(task.labels(annotated).names)
    return names


def _require_present(labels: Sequence[str], present: set[str], trained: TrainedRun) -> None:
    for label in labels:
        if label not in present:
            raise InputError(f"label={label}: none of the {len(trained.corpus)} sentences has it")

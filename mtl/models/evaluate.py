"""Scores of a model on annotated sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch

from mtl.errors import InputError
from mtl.models.batches import Batch, BatchLoader, Example, aligned_plan
from mtl.models.joint import JointModel, TaskScale
from mtl.models.modes import in_evaluation_mode
from mtl.runs.run import SIGNATURES
from tasks.task import Task
from tasks.translate import Translate

Scores = dict[str, dict[str, float]]
"""Per task its figures by name, in per cent."""


def batches(corpus: Sequence[Example], model: JointModel, rank: int = 0, ranks: int = 1) -> Iterator[Batch]:
    """Batches of all annotated sentences of a corpus, once, for evaluation; or a rank's share of them."""
    plan = aligned_plan(corpus, tuple(model.tasks), model.evaluation_tokens(), None, None)
    return iter(BatchLoader(corpus, model.encoder.tokenizer, model.tasks, plan, rank, ranks))


@torch.inference_mode()
def evaluate(model: JointModel, batches: Iterable[Batch], head_scale: TaskScale | None = None) -> Scores:
    """The figures over all batches, for the tasks annotated in them.

    In distributed training they cover the batches of all processes. `head_scale` replaces the model's gates:
    ones score the model without its masks, a zero ablates a head. One scale for all tasks, or one per task in
    the model's order.
    """
    if head_scale is not None:
        head_scale = head_scale.to(next(model.parameters()).device)
    device = next(model.parameters()).device
    try:
        metrics = {name: task.metric() for name, task in model.tasks.items()}
    except ValueError as error:  # BLEU, whose tokenisers for some languages are packages of their own
        raise InputError(str(error)) from error
    with in_evaluation_mode(model):
        for batch in batches:
            for name, decoded in model.decoded(batch.to(device), head_scale, given=True).items():
                gold = [batch.sentences[row] for row in batch.rows[name].tolist()]
                metrics[name].update(decoded.predicted, gold, decoded.given)
    several = torch.distributed.is_available() and torch.distributed.is_initialized()
    figures = {}
    for name, metric in metrics.items():
        if not metric.update_called and not several:
            continue  # no sentence is annotated in this task
        figures[name] = {key: float(value) for key, value in metric.compute().items()}
    return figures


def signatures_of(tasks: Mapping[str, Task]) -> dict[str, dict[str, dict[str, str]]]:
    """The signatures of BLEU and similar metrics, for metrics.json; empty without a translation task."""
    task = tasks.get(Translate.name)
    if not isinstance(task, Translate):
        return {}
    from tasks.metrics.bleu import signatures

    return {SIGNATURES: {Translate.name: signatures(task.tokenizer())}}


def mean_score(scores: Mapping[str, Mapping[str, float]], tasks: Mapping[str, Task]) -> float:
    """The mean of the tasks' main scores."""
    return sum(scores[name][task.score] for name, task in tasks.items()) / len(tasks)

"""Scores of a model on annotated sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import torch

from mtl.errors import as_input_error
from mtl.heads.gates import TaskScale
from mtl.models.annotator import Annotator
from mtl.models.batches import Batch, BatchLoader, Example, aligned_batches
from mtl.models.passes import in_evaluation_mode
from mtl.runs.folder.run import SIGNATURES
from mtl.runs.folder.run_tables import COUNTS_SCHEMA, key_of
from mtl.tasks.metrics import TaskMetric
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Task

Scores = dict[str, dict[str, float]]
"""Per task its scores by name, in per cent."""


Watch = Callable[[str, TaskMetric, Sequence[Any], Sequence[Sentence]], None]
"""Called per batch and task with the task's name, its metric, the predictions and the gold sentences."""


def batches(corpus: Sequence[Example], model: Annotator, rank: int = 0, ranks: int = 1) -> Iterator[Batch]:
    """All annotated sentences of a corpus in batches for evaluation, each once; or a rank's share of them."""
    plan = aligned_batches(corpus, tuple(model.tasks), model.evaluation_tokens(), None, None)
    return iter(BatchLoader(corpus, model.tokenizer, model.tasks, plan, rank, ranks))


@torch.inference_mode()
def evaluate_model(
    model: Annotator,
    batches: Iterable[Batch],
    head_scale: TaskScale | None = None,
    watch: Watch | None = None,
) -> Scores:
    """The scores over all batches, for the tasks annotated in them.

    In distributed training they cover the batches of all processes. `head_scale` replaces the model's gates
    by one scale for all tasks, or by one per task in the model's order: ones score the model without its
    masks, a zero ablates a head.
    """
    if head_scale is not None:
        head_scale = head_scale.to(model.device)
    device = model.device
    with as_input_error():
        metrics = {name: task.metric() for name, task in model.tasks.items()}
    with in_evaluation_mode(model):
        for batch in batches:
            if batch.idle:  # this rank has none of its sentences
                continue
            for name, decoded in model.decoded(batch.to(device), head_scale, given=True).items():
                gold = batch.of_task(name)
                metrics[name].update(decoded.predicted, gold, decoded.given)
                if watch is not None:
                    watch(name, metrics[name], decoded.predicted, gold)
    scores = {}
    for name in _scored(metrics, device):
        metric = metrics[name]
        if not metric.update_called:
            metric.update([], [])  # another rank has sentences of this task: all ranks exchange their states
        scores[name] = {key: float(value) for key, value in metric.compute().items()}
    return scores


def evaluate_sentences(
    model: Annotator, corpus: Sequence[Example], advance: Callable[[int], None] = lambda done: None
) -> tuple[Scores, pl.DataFrame]:
    """The scores over a corpus with those of `same_answer_scores`, and the counts per sentence.

    The table has the columns of `mtl.runs.folder.run_tables`; its sentences are in the corpus's order.
    `advance` receives how many more sentences are scored.
    """
    numbers = {id(example.sentence): number for number, example in enumerate(corpus)}
    rows: list[dict[str, Any]] = []

    def keep(name: str, metric: TaskMetric, predicted: Sequence[Any], gold: Sequence[Sentence]) -> None:
        for sentence, counts in zip(gold, metric.sentence_counts(predicted, gold).tolist(), strict=True):
            row = {"task": name, "sentence": numbers[id(sentence)], "key": key_of(sentence)}
            rows.append({**row, "document": sentence.document, "counts": counts})

    def each() -> Iterator[Batch]:
        for batch in batches(corpus, model):
            yield batch
            advance(len(batch.sentences))

    scores = with_same_answers(evaluate_model(model, each(), watch=keep), model, corpus)
    return scores, pl.DataFrame(rows, schema=COUNTS_SCHEMA).sort("task", "sentence", maintain_order=True)


def with_same_answers(scores: Scores, model: Annotator, corpus: Sequence[Example]) -> Scores:
    """Scores over a corpus with those of `same_answer_scores`."""
    sentences = {name: [each.sentence for each in corpus if name in each.targets] for name in scores}
    return {
        name: of_task | same_answer_scores(model.tasks[name], sentences[name])
        for name, of_task in scores.items()
    }


def same_answer_scores(task: Task, gold: Sequence[Sentence]) -> dict[str, float]:
    """What a task of classes or tags scores without a look at the input, in per cent: `majority`, `chance`.

    `majority` is the main score of giving all items of `gold` one label: the most frequent one for accuracy,
    for other scores that with which the score is highest. `chance` is the expected accuracy of labels that
    are drawn at the frequencies of `gold`. Empty for other tasks.
    """
    labels = Counter(label for sentence in gold for label in task.labels_in(sentence))
    if not labels or any(task.same_answer(sentence, "") is None for sentence in gold[:1]):
        return {}
    of_accuracy = task.score == "accuracy"
    found = []
    for label, _ in labels.most_common(1 if of_accuracy else None):
        metric = task.metric()
        metric.update([task.same_answer(sentence, label) for sentence in gold], gold)
        found.append(float(metric.compute()[task.score]))
    shares = np.array([*labels.values()]) / labels.total()
    return {"majority": max(found)} | ({"chance": 100 * float(shares @ shares)} if of_accuracy else {})


def _scored(metrics: Mapping[str, TaskMetric], device: torch.device) -> list[str]:
    """The tasks for which any rank has annotated sentences."""
    called = torch.tensor([metric.update_called for metric in metrics.values()], dtype=torch.int32)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        called = called.to(device)
        torch.distributed.all_reduce(called, torch.distributed.ReduceOp.MAX)
    return [name for name, there in zip(metrics, called.tolist(), strict=True) if there]


def signatures_of(tasks: Mapping[str, Task]) -> dict[str, dict[str, dict[str, str]]]:
    """How scores were counted (`Task.signatures`), for metrics.json; empty if no task says it."""
    found = {name: dict(signatures) for name, task in tasks.items() if (signatures := task.signatures())}
    return {SIGNATURES: found} if found else {}


def mean_score(scores: Mapping[str, Mapping[str, float]], tasks: Mapping[str, Task]) -> float:
    """The mean of the tasks' main scores."""
    return sum(scores[name][task.score] for name, task in tasks.items()) / len(tasks)

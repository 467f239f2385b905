"""Scores of a model on annotated sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import nn

from mtl.batching import Batch
from mtl.model import JointModel
from tasks.task import Task, TaskMetric


class ScoreBoard(nn.Module):
    """A metric per task, filled batch by batch."""

    def __init__(self, tasks: Mapping[str, Task]) -> None:
        super().__init__()
        self.tasks = dict(tasks)
        self.metrics = nn.ModuleDict({name: task.metric() for name, task in tasks.items()})

    def metric(self, name: str) -> TaskMetric:
        """The metric of one task."""
        metric = self.metrics[name]
        assert isinstance(metric, TaskMetric)
        return metric

    def reset(self) -> None:
        """Forget all counts."""
        for name in self.tasks:
            self.metric(name).reset()

    def add(self, model: JointModel, batch: Batch) -> None:
        """Decode a batch and count it."""
        for name, output in model(batch).items():
            gold = [batch.sentences[row] for row in batch.rows[name].tolist()]
            decoder = model.decoder(name)
            predicted = decoder.decode(output.scores, output.mask)
            given = decoder.decode_given(output.scores, output.mask, gold)
            self.metric(name).update(predicted, gold, given)

    def scores(self) -> dict[str, dict[str, float]]:
        """Per task its figures by name, in per cent; on several ranks, those of all of them."""
        return {
            name: {key: float(value) for key, value in self.metric(name).compute().items()}
            for name in self.tasks
        }

    def mean(self, scores: Mapping[str, Mapping[str, float]]) -> float:
        """The mean of the tasks' main scores."""
        return sum(scores[name][task.score] for name, task in self.tasks.items()) / len(self.tasks)


@torch.inference_mode()
def evaluate(model: JointModel, batches: Iterable[Batch]) -> dict[str, dict[str, float]]:
    """Per task the model's figures over all batches, in per cent."""
    model.eval()
    device = next(model.parameters()).device
    board = ScoreBoard(model.tasks).to(device)
    for batch in batches:
        board.add(model, batch.to(device))
    return board.scores()

"""Arcs of graphs, with and without their labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mtl.tasks.metrics.metric import TaskMetric, f1, precision_recall_f1
from mtl.tasks.sentence import Graph, Sentence


class GraphScores(TaskMetric):
    """Precision, recall and F1 over (dependent, head, label), and `unlabelled_*` over (dependent, head).

    Arcs from the root count. On enhanced UD whose empty nodes are paths in labels, `f1` is ELAS as the
    evaluation of IWPT 2020 and 2021 has it (`udtools`).
    """

    counts: Tensor

    def __init__(self, layer: str = "deps") -> None:
        super().__init__()
        self.layer = layer
        # Rows: with labels, without; columns: correct, predicted, gold.
        self.add_state("counts", torch.zeros(2, 3, dtype=torch.long), dist_reduce_fx="sum")

    def update(
        self, predicted: Sequence[Graph], gold: Sequence[Sentence], given: Sequence[Graph] | None = None
    ) -> None:
        counts = self.sentence_counts(predicted, gold).sum(0).reshape(2, 3)
        self.counts += torch.from_numpy(counts).to(self.counts.device)

    def compute(self) -> dict[str, float]:
        labelled, unlabelled = (precision_recall_f1(*row) for row in self.counts.tolist())
        return labelled | {f"unlabelled_{name}": value for name, value in unlabelled.items()}

    def sentence_counts(
        self, predicted: Sequence[Graph], gold: Sequence[Sentence]
    ) -> Int[np.ndarray, "sentence count"]:
        counts = np.zeros((len(gold), 6), dtype=np.int64)
        for row, guess, sentence in zip(counts, predicted, gold, strict=True):
            graph = sentence.layer(self.layer)
            if graph is None:
                continue
            ours, true = set(guess.arcs), set(graph.arcs)
            pairs, true_pairs = ({arc[:2] for arc in arcs} for arcs in (ours, true))
            row[:3] = len(ours & true), len(ours), len(true)
            row[3:] = len(pairs & true_pairs), len(pairs), len(true_pairs)
        return counts

    def score(self, counts: Float[np.ndarray, "draw count"]) -> Float[np.ndarray, " draw"]:
        return f1(counts)

"""Arcs of graphs, with and without their labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from mtl.tasks.metrics.metric import SummedCounts, annotated, f1, precision_recall_f1
from mtl.tasks.sentence import Graph, Sentence


class GraphScores(SummedCounts):
    """Precision, recall and F1 over (dependent, head, label), and `unlabelled_*` over (dependent, head).

    Arcs from the root count. On enhanced UD whose empty nodes are paths in labels, `f1` is ELAS as the
    evaluation of IWPT 2020 and 2021 has it (`udtools`).
    """

    columns = 6
    """With labels, then without: correct, predicted, gold."""

    def __init__(self, layer: str = "deps") -> None:
        super().__init__(layer)

    def compute(self) -> dict[str, float]:
        labelled, unlabelled = (precision_recall_f1(*row) for row in self.counts.view(2, 3).tolist())
        return labelled | {f"unlabelled_{name}": value for name, value in unlabelled.items()}

    def sentence_counts(
        self, predicted: Sequence[Graph], gold: Sequence[Sentence]
    ) -> Int[np.ndarray, "sentence count"]:
        counts = np.zeros((len(gold), 6), dtype=np.int64)
        for number, guess, graph in annotated(self.layer, predicted, gold):
            ours, true = set(guess.arcs), set(graph.arcs)
            pairs, true_pairs = ({arc[:2] for arc in arcs} for arcs in (ours, true))
            counts[number, :3] = len(ours & true), len(ours), len(true)
            counts[number, 3:] = len(pairs & true_pairs), len(pairs), len(true_pairs)
        return counts

    def score(self, counts: Float[np.ndarray, "draw count"]) -> Float[np.ndarray, " draw"]:
        return f1(counts)

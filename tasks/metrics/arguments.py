"""Arguments of predicates, scored as by srl-eval.pl, end to end and with gold predicates given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mtl.tasks.frames import joined
from mtl.tasks.metrics.metric import TaskMetric, annotated, f1, precision_recall_f1
from mtl.tasks.sentence import Frame, Sentence


class ArgumentScores(TaskMetric):
    """Precision, recall and F1 over (predicate, start, end, role), without V and with C- joined.

    An argument of a predicate that the gold lacks counts as wrong; srl-eval.pl counts it so only if its
    gold file has that predicate, without arguments. `predicate_f1` is over predicates alone;
    `given_*` are precision, recall and F1 where the decoder is given the gold predicates.

    With senses, `sense/accuracy` is the share of gold predicates whose sense is predicted, given the
    predicates. `sense/f1` is end to end and counts the sense of each predicate as an item in addition to
    the arguments, as the labelled F1 of CoNLL 2009 does. Both leave out predicates that have no sense in
    the gold data.
    """

    counts: Tensor
    given: Tensor
    sense_counts: Tensor

    def __init__(self, layer: str = "frames", senses: bool = False) -> None:
        super().__init__()
        self.layer = layer
        self.senses = senses
        # Senses end to end: correct, predicted, gold; given the predicates: correct, gold.
        self.add_state("sense_counts", torch.zeros(5, dtype=torch.long), dist_reduce_fx="sum")
        # Rows: end to end, predicates, predicates given; columns: correct, predicted, gold.
        self.add_state("counts", torch.zeros(3, 3, dtype=torch.long), dist_reduce_fx="sum")
        self.add_state("given", torch.tensor(0), dist_reduce_fx="sum")

    def update(
        self,
        predicted: Sequence[tuple[Frame, ...]],
        gold: Sequence[Sentence],
        given: Sequence[tuple[Frame, ...]] | None = None,
    ) -> None:
        counts = np.zeros((3, 3), dtype=np.int64)
        counts[:2] = self.sentence_counts(predicted, gold).sum(0).reshape(2, 3)
        for index, guess, frames in annotated(self.layer, predicted, gold):
            if given is not None:
                counts[2] += _overlap(_by_predicate(given[index]), _by_predicate(frames))
            if self.senses:
                end_to_end = _sense_counts(guess, frames)
                of_given = (0, 0, 0) if given is None else _sense_counts(given[index], frames)
                found = torch.tensor([*end_to_end, of_given[0], of_given[2]])
                self.sense_counts += found.to(self.sense_counts.device)
        self.counts += torch.from_numpy(counts).to(self.counts.device)
        self.given += given is not None

    def compute(self) -> dict[str, float]:
        end_to_end, predicates, given = (precision_recall_f1(*row) for row in self.counts.tolist())
        scores = end_to_end | {"predicate_f1": predicates["f1"]}
        if self.given:
            scores |= {f"given_{name}": value for name, value in given.items()}
        if self.senses:
            senses = self.sense_counts.tolist()
            items = [sum(pair) for pair in zip(self.counts[0].tolist(), senses[:3], strict=True)]
            scores["sense/f1"] = precision_recall_f1(*items)["f1"]
            if self.given:
                scores["sense/accuracy"] = 100 * senses[3] / max(senses[4], 1)
        return scores

    def sentence_counts(
        self, predicted: Sequence[tuple[Frame, ...]], gold: Sequence[Sentence]
    ) -> Int[np.ndarray, "sentence count"]:
        counts = np.zeros((len(gold), 6), dtype=np.int64)
        for number, frames, of_gold in annotated(self.layer, predicted, gold):
            guess, true = _by_predicate(frames), _by_predicate(of_gold)
            counts[number] = *_overlap(guess, true), len(guess.keys() & true.keys()), len(guess), len(true)
        return counts

    def score(self, counts: Float[np.ndarray, "draw count"]) -> Float[np.ndarray, " draw"]:
        return f1(counts)


_Arguments = dict[int, set[tuple[str, tuple[tuple[int, int], ...]]]]


def _by_predicate(frames: Iterable[Frame]) -> _Arguments:
    arguments: _Arguments = {}
    for frame in frames:
        arguments.setdefault(frame.predicate, set()).update(joined(frame))
    return arguments


def _sense_counts(predicted: Iterable[Frame], gold: Iterable[Frame]) -> tuple[int, int, int]:
    """Correct, predicted and gold senses; the first frame of a predicate counts."""
    guess = {frame.predicate: frame.sense for frame in reversed(tuple(predicted))}
    true = {frame.predicate: frame.sense for frame in reversed(tuple(gold))}
    without = {predicate for predicate, sense in true.items() if sense is None}
    correct = sum(guess.get(predicate) == sense for predicate, sense in true.items() if sense is not None)
    return correct, len(guess.keys() - without), len(true) - len(without)


def _overlap(guess: _Arguments, true: _Arguments) -> tuple[int, int, int]:
    correct = sum(len(guess[predicate] & true[predicate]) for predicate in guess.keys() & true.keys())
    return correct, sum(map(len, guess.values())), sum(map(len, true.values()))

"""Scores of annotations of words against gold, counted as the official scorers count them."""

from __future__ import annotations

import re
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
import torchmetrics
from jaxtyping import Float, Int
from torch import Tensor

from mtl.tasks.lemmas import UNSPECIFIED, RankedScripts
from mtl.tasks.sentence import Arcs, Frame, Graph, Sentence, Span
from mtl.tasks.spans import constituents, joined_arguments


class TaskMetric(torchmetrics.Metric, ABC):
    """States are summed or concatenated over ranks; scores are in per cent (`cross_entropy`: nats)."""

    full_state_update = False

    @abstractmethod
    def update(
        self, predicted: Sequence[Any], gold: Sequence[Sentence], given: Sequence[Any] | None = None
    ) -> None:
        """Add decoded annotations, gold sentences, and what `decode_given` or `references` returned."""

    @abstractmethod
    def compute(self) -> dict[str, float]:
        """The scores by name (`Task.scores`); what is undefined is 0."""

    @abstractmethod
    def sentence_counts(
        self, predicted: Sequence[Any], gold: Sequence[Sentence]
    ) -> Int[np.ndarray, "sentence count"] | Float[np.ndarray, "sentence count"]:
        """Counts per sentence, 0 if not annotated; `score` takes their sums over resampled sentences."""

    @abstractmethod
    def score(self, counts: Float[np.ndarray, "draw count"]) -> Float[np.ndarray, " draw"]:
        """The main score (`Task.score`) in per cent for each draw, given its sentences' summed counts."""


class SummedCounts(TaskMetric):
    """A metric whose scores follow from the sums of its counts over all sentences."""

    columns: ClassVar[int]
    """The number of counts per sentence."""
    counts: Tensor

    def __init__(self, layer: str) -> None:
        super().__init__()
        self.layer = layer
        self.add_state("counts", torch.zeros(self.columns, dtype=torch.long), dist_reduce_fx="sum")

    def update(
        self, predicted: Sequence[Any], gold: Sequence[Sentence], given: Sequence[Any] | None = None
    ) -> None:
        """See `TaskMetric`."""
        counts = torch.from_numpy(self.sentence_counts(predicted, gold).sum(0))
        self.counts += counts.to(self.counts.device)


T = TypeVar("T")


def annotated_sentences(
    layer: str, predicted: Sequence[T], gold: Sequence[Sentence]
) -> Iterator[tuple[int, T, Any]]:
    """Of each sentence that has the layer: its number, its prediction and the layer."""
    for number, (guess, sentence) in enumerate(zip(predicted, gold, strict=True)):
        true = sentence.layer(layer)
        if true is not None:
            yield number, guess, true


def share(counts: Float[np.ndarray, "draw count"]) -> Float[np.ndarray, " draw"]:
    """The first of the counts in per cent of the second; 0 of 0 is 0."""
    return 100.0 * counts[..., 0] / np.maximum(counts[..., 1], 1)


def f1(counts: Float[np.ndarray, "draw count"]) -> Float[np.ndarray, " draw"]:
    """F1 in per cent from the first three counts: correct, predicted, gold; without any it is 0."""
    return 200.0 * counts[..., 0] / np.maximum(counts[..., 1] + counts[..., 2], 1)


def precision_recall_f1(correct: int, predicted: int, gold: int) -> dict[str, float]:
    """The three scores in per cent; what is undefined is 0."""
    return {
        "precision": 100 * correct / max(predicted, 1),
        "recall": 100 * correct / max(gold, 1),
        "f1": 200 * correct / max(predicted + gold, 1),
    }


def whole_sentences(right: Iterable[int], sentences: int) -> list[float]:
    """Numbers of sentences that are right as a whole, in per cent of all."""
    return [100 * number / max(sentences, 1) for number in right]


class Accuracy(SummedCounts):
    """Share of right labels; `layer` is the layer with one label, or with one label per word.

    With `label_of` there is no such layer: it gives the label of each word.
    """

    columns = 2

    def __init__(self, layer: str, label_of: Callable[[str], str] | None = None) -> None:
        super().__init__(layer)
        self.label_of = label_of

    def compute(self) -> dict[str, float]:
        correct, labels = self.counts.tolist()
        return {"accuracy": 100 * correct / max(labels, 1)}

    def sentence_counts(
        self, predicted: Sequence[str | tuple[str, ...]], gold: Sequence[Sentence]
    ) -> Int[np.ndarray, "sentence count"]:
        counts = np.zeros((len(gold), 2), dtype=np.int64)
        for row, guess, sentence in zip(counts, predicted, gold, strict=True):
            layer = sentence.layer(self.layer)
            if self.label_of is not None:
                layer = tuple(map(self.label_of, sentence.words))
            if layer is None:
                continue
            pairs = [(guess, layer)] if isinstance(layer, str) else zip(guess, layer, strict=True)
            right = [left == right for left, right in pairs]
            row[:] = sum(right), len(right)
        return counts

    def score(self, counts: Float[np.ndarray, "draw count"]) -> Float[np.ndarray, " draw"]:
        return share(counts)


Counts = tuple[Counter[str], Counter[str], Counter[str]]
"""How often each label is correct, is predicted, and is in the gold data."""


class CountsByLabel(TaskMetric, ABC):
    """A metric that counts each label.

    Ranks may meet different labels, so the counts of a label are sent with its name (`_spell`).
    """

    records: list[Tensor]

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self.add_state("records", [], dist_reduce_fx="cat")

    def count(self, counts: Counts) -> None:
        """Add the counts of a batch."""
        for label in counts[1].keys() | counts[2].keys():
            record = _spell(label, [counter[label] for counter in counts])
            self.records.append(torch.tensor(record, dtype=torch.float32, device=self.device))

    def by_label(self) -> dict[str, dict[str, float]]:
        """Precision, recall and F1 in per cent of each label that occurs, sorted."""
        records = [self.records] if isinstance(self.records, Tensor) else self.records
        counts = _read([int(value) for record in records for value in record.tolist()])
        return {label: precision_recall_f1(*counts[label]) for label in sorted(counts)}


class ClassScores(CountsByLabel, Accuracy):
    """Accuracy, and the mean F1 over the classes in gold or predictions (macro-F1)."""

    def update(
        self, predicted: Sequence[Any], gold: Sequence[Sentence], given: Sequence[Any] | None = None
    ) -> None:
        Accuracy.update(self, predicted, gold)
        pairs = [(guess, true) for _, guess, true in annotated_sentences(self.layer, predicted, gold)]
        self.count(
            (
                Counter(true for guess, true in pairs if guess == true),
                Counter(guess for guess, _ in pairs),
                Counter(true for _, true in pairs),
            )
        )

    def compute(self) -> dict[str, float]:
        of_labels = [scores["f1"] for scores in self.by_label().values()]
        return Accuracy.compute(self) | {"macro_f1": sum(of_labels) / max(len(of_labels), 1)}


def _spell(label: str, counts: list[int]) -> list[int]:
    """A record of numbers: the label's length and code points, then correct, predicted and gold."""
    return [len(label), *map(ord, label), *counts]


def _read(values: list[int]) -> dict[str, list[int]]:
    """The counts by label from records one after the other, summed over those of the same label."""
    counts: dict[str, list[int]] = {}
    position = 0
    while position < len(values):
        end = position + 1 + values[position]
        label = "".join(map(chr, values[position + 1 : end]))
        known = counts.setdefault(label, [0, 0, 0])
        counts[label] = [old + new for old, new in zip(known, values[end : end + 3], strict=True)]
        position = end + 3
    return counts


class LemmaAccuracy(Accuracy):
    """Share of words with the right lemma; predictions are `RankedScripts`.

    Where the gold is `_`, any lemma is right, as for the evaluator of Universal Dependencies.
    """

    def sentence_counts(
        self, predicted: Sequence[Any], gold: Sequence[Sentence]
    ) -> Int[np.ndarray, "sentence count"]:
        return super().sentence_counts(list(map(self._lemmas, predicted, gold)), gold)

    def _lemmas(self, scripts: RankedScripts, gold: Sentence) -> tuple[str, ...]:
        lemmas = scripts.lemmas(gold.words)
        true = gold.layer(self.layer) or lemmas
        return tuple(
            UNSPECIFIED if of_gold == UNSPECIFIED else lemma
            for lemma, of_gold in zip(lemmas, true, strict=True)
        )


class AttachmentScores(SummedCounts):
    """UAS and LAS as the CoNLL 2018 scorer counts them, or without words that are punctuation.

    `las` compares relations up to the first colon, as the scorer does; `las_subtypes` compares all of them.
    Without `punct`, words are left out by their form (`is_punctuation`), whatever their relation and
    whatever is predicted. Words that attach to them count. Words without a head in the gold data do not.

    `ucm` and `lcm` are the shares of sentences in which all words count as right for `uas` and for `las`;
    sentences without any word that counts are right.
    """

    columns = 7

    def __init__(self, layer: str = "arcs", punct: bool = True) -> None:
        super().__init__(layer)
        self.punct = punct

    def compute(self) -> dict[str, float]:
        labelled, words, attached, labelled_fully, *whole, sentences = self.counts.tolist()
        right = {"uas": attached, "las": labelled, "las_subtypes": labelled_fully}
        scores = {name: 100 * count / max(words, 1) for name, count in right.items()}
        return scores | dict(zip(("ucm", "lcm"), whole_sentences(whole, sentences), strict=True))

    def sentence_counts(
        self, predicted: Sequence[Arcs], gold: Sequence[Sentence]
    ) -> Int[np.ndarray, "sentence count"]:
        counts = np.zeros((len(gold), self.columns), dtype=np.int64)
        for number, guess, arcs in annotated_sentences(self.layer, predicted, gold):
            words = attached = labelled = labelled_fully = 0
            for word, head, relation, gold_head, gold_relation in zip(
                gold[number].words, guess.heads, guess.relations, arcs.heads, arcs.relations, strict=True
            ):
                if gold_head is None or (not self.punct and is_punctuation(word)):
                    continue
                words += 1
                if head == gold_head:
                    attached += 1
                    labelled += relation.partition(":")[0] == gold_relation.partition(":")[0]
                    labelled_fully += relation == gold_relation
            whole = attached == words, labelled == words, 1
            counts[number] = labelled, words, attached, labelled_fully, *whole
        return counts

    def score(self, counts: Float[np.ndarray, "draw count"]) -> Float[np.ndarray, " draw"]:
        return share(counts)


def is_punctuation(word: str) -> bool:
    """Whether every character of a word is punctuation in Unicode (P*; `$`, `+` and `=` are symbols).

    The rule of supar (`supar.utils.fn.ispunct`) and of He and Choi's parser.
    """
    return all(unicodedata.category(character).startswith("P") for character in word)


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
        for number, guess, graph in annotated_sentences(self.layer, predicted, gold):
            ours, true = set(guess.arcs), set(graph.arcs)
            pairs, true_pairs = ({arc[:2] for arc in arcs} for arcs in (ours, true))
            counts[number, :3] = len(ours & true), len(ours), len(true)
            counts[number, 3:] = len(pairs & true_pairs), len(pairs), len(true_pairs)
        return counts

    def score(self, counts: Float[np.ndarray, "draw count"]) -> Float[np.ndarray, " draw"]:
        return f1(counts)


class SpanScores(CountsByLabel):
    """Precision, recall and F1 over labelled spans, overall and F1 per type, as conlleval counts them.

    With `spans_of`, the layer and predictions are tags: it gives the spans of a sentence's tags.
    """

    correct: Tensor
    predicted: Tensor
    gold: Tensor

    def __init__(self, layer: str = "entities", spans_of: Callable[[Any], tuple[Span, ...]] = tuple) -> None:
        super().__init__()
        self.layer = layer
        self.spans_of = spans_of
        for name in ("correct", "predicted", "gold"):
            self.add_state(name, torch.tensor(0), dist_reduce_fx="sum")

    def update(
        self,
        predicted: Sequence[tuple[Any, ...]],
        gold: Sequence[Sentence],
        given: Sequence[Any] | None = None,
    ) -> None:
        counts: tuple[Counter[str], Counter[str], Counter[str]] = (Counter(), Counter(), Counter())
        for _, guess, of_gold in annotated_sentences(self.layer, predicted, gold):
            guessed, true = set(self.spans_of(guess)), set(self.spans_of(of_gold))
            for counter, spans in zip(counts, (guessed & true, guessed, true), strict=True):
                counter.update([span.label for span in spans])
        for total, counter in zip((self.correct, self.predicted, self.gold), counts, strict=True):
            total += counter.total()
        self.count(counts)

    def compute(self) -> dict[str, float]:
        correct, predicted, gold = int(self.correct), int(self.predicted), int(self.gold)
        scores = precision_recall_f1(correct, predicted, gold)
        return scores | {f"f1/{label}": of_label["f1"] for label, of_label in self.by_label().items()}

    def sentence_counts(
        self, predicted: Sequence[tuple[Any, ...]], gold: Sequence[Sentence]
    ) -> Int[np.ndarray, "sentence count"]:
        counts = np.zeros((len(gold), 3), dtype=np.int64)
        for number, spans, of_gold in annotated_sentences(self.layer, predicted, gold):
            guessed, true = set(self.spans_of(spans)), set(self.spans_of(of_gold))
            counts[number] = len(guessed & true), len(guessed), len(true)
        return counts

    def score(self, counts: Float[np.ndarray, "draw count"]) -> Float[np.ndarray, " draw"]:
        return f1(counts)


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
        for index, guess, frames in annotated_sentences(self.layer, predicted, gold):
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
        for number, frames, of_gold in annotated_sentences(self.layer, predicted, gold):
            guess, true = _by_predicate(frames), _by_predicate(of_gold)
            counts[number] = *_overlap(guess, true), len(guess.keys() & true.keys()), len(guess), len(true)
        return counts

    def score(self, counts: Float[np.ndarray, "draw count"]) -> Float[np.ndarray, " draw"]:
        return f1(counts)


_Arguments = dict[int, set[tuple[str, tuple[tuple[int, int], ...]]]]


def _by_predicate(frames: Iterable[Frame]) -> _Arguments:
    arguments: _Arguments = {}
    for frame in frames:
        arguments.setdefault(frame.predicate, set()).update(joined_arguments(frame))
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


DELETED = frozenset({"TOP", "-NONE-", ",", ":", "``", "''", "."})
"""Words with these (gold) tags are left out, and constituents with these labels."""
EQUAL = {"PRT": "ADVP"}
"""Labels that count as another label."""


def scored_brackets(spans: Iterable[Span], scored_before: Sequence[int]) -> Counter[tuple[int, int, str]]:
    """The multiset of brackets that count: NP over NP over the same words is counted twice.

    `scored_before` has for each boundary the number of words left of it that are not deleted; constituents
    without such words do not count. Labels are cut before the first '-' or '='.
    """
    brackets = [(scored_before[start], scored_before[end], _scored_as(label)) for start, end, label in spans]
    return Counter([each for each in brackets if each[0] < each[1] and each[2] not in DELETED])


def _without_labels(brackets: Counter[tuple[int, int, str]]) -> Counter[tuple[int, int]]:
    spans: Counter[tuple[int, int]] = Counter()
    for (start, end, _), number in brackets.items():
        spans[start, end] += number
    return spans


@lru_cache(maxsize=4096)
def _scored_as(label: str) -> str:
    bare = re.split("[-=]", label, maxsplit=1)[0]
    return EQUAL.get(bare, bare)


class BracketScores(SummedCounts):
    """Labelled precision, recall and F1 over all sentences, and F1 without labels (`uf1`).

    `ucm` and `lcm` are the shares of sentences without an error, without labels and with them; the latter is
    EVALB's complete match.
    """

    columns = 7

    def __init__(self, layer: str = "tree") -> None:
        super().__init__(layer)

    def compute(self) -> dict[str, float]:
        correct, predicted, gold, bare, *whole, sentences = self.counts.tolist()
        scores = precision_recall_f1(correct, predicted, gold)
        scores["uf1"] = precision_recall_f1(bare, predicted, gold)["f1"]
        return scores | dict(zip(("ucm", "lcm"), whole_sentences(whole, sentences), strict=True))

    def sentence_counts(
        self, predicted: Sequence[tuple[Span, ...]], gold: Sequence[Sentence]
    ) -> Int[np.ndarray, "sentence count"]:
        counts = np.zeros((len(gold), self.columns), dtype=np.int64)
        for number, guess, tree in annotated_sentences(self.layer, predicted, gold):
            scored = [leaf.label not in DELETED for leaf in tree.leaves()]
            scored_before = list(accumulate(scored, initial=0))
            if scored_before[-1] == 0:
                continue  # EVALB skips sentences of nothing but deleted words
            guessed = scored_brackets(guess, scored_before)
            true = scored_brackets(constituents(tree), scored_before)
            spans, true_spans = _without_labels(guessed), _without_labels(true)
            whole = spans == true_spans, guessed == true, 1
            correct = (guessed & true).total(), guessed.total(), true.total()
            counts[number] = *correct, (spans & true_spans).total(), *whole
        return counts

    def score(self, counts: Float[np.ndarray, "draw count"]) -> Float[np.ndarray, " draw"]:
        return f1(counts)

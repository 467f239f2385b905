"""Scores of annotations against gold, counted as the official scorers count them.

Those of sentences are scores of classes, from a confusion matrix, and correlations of numbers.
"""

from __future__ import annotations

import re
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import torch
import torchmetrics
from jaxtyping import Float, Int
from torch import Tensor
from torchmetrics.functional import pearson_corrcoef, spearman_corrcoef
from torchmetrics.utilities import dim_zero_cat

from mtl.tasks.lemmas import UNSPECIFIED, RankedScripts
from mtl.tasks.sentence import Arcs, Frame, Graph, Sentence, Span
from mtl.tasks.spans import constituents, joined_arguments
from mtl.tasks.tree import Tree


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

    columns: int
    """The number of counts per sentence."""
    counts: Tensor

    def __init__(self, layer: str) -> None:
        super().__init__()
        self.layer = layer
        self.add_state("counts", torch.zeros(self.columns, dtype=torch.long), dist_reduce_fx="sum")

    def gold_of(self, sentence: Sentence) -> Any:
        """What the prediction for a sentence is compared with; `None`: the sentence is not annotated."""
        return sentence.layer(self.layer)

    @abstractmethod
    def counts_of(self, guess: Any, gold: Any, sentence: Sentence) -> Sequence[int]:
        """The counts of an annotated sentence, from its prediction and `gold_of`."""

    def sentence_counts(
        self, predicted: Sequence[Any], gold: Sequence[Sentence]
    ) -> Int[np.ndarray, "sentence count"]:
        """See `TaskMetric`."""
        counts = np.zeros((len(gold), self.columns), dtype=np.int64)
        for row, guess, sentence in zip(counts, predicted, gold, strict=True):
            true = self.gold_of(sentence)
            if true is not None:
                row[:] = self.counts_of(guess, true, sentence)
        return counts

    def update(
        self, predicted: Sequence[Any], gold: Sequence[Sentence], given: Sequence[Any] | None = None
    ) -> None:
        """See `TaskMetric`."""
        counts = torch.from_numpy(self.sentence_counts(predicted, gold).sum(0))
        self.counts += counts.to(self.counts.device)

    def score(self, counts: Float[np.ndarray, "draw count"]) -> Float[np.ndarray, " draw"]:
        """F1 over the first three counts, unless a metric says something else."""
        return f1(counts)


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


def whole_sentences(unlabelled: int, labelled: int, sentences: int) -> dict[str, float]:
    """Sentences that are right as a whole, in per cent of all: without labels and with them."""
    return {"ucm": 100 * unlabelled / max(sentences, 1), "lcm": 100 * labelled / max(sentences, 1)}


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

    def gold_of(self, sentence: Sentence) -> str | tuple[str, ...] | None:
        if self.label_of is not None:
            return tuple(map(self.label_of, sentence.words))
        layer: str | tuple[str, ...] | None = sentence.layer(self.layer)
        return layer

    def counts_of(self, guess: Any, gold: Any, sentence: Sentence) -> Sequence[int]:
        pairs = [(guess, gold)] if isinstance(gold, str) else zip(guess, gold, strict=True)
        right = [left == right for left, right in pairs]
        return sum(right), len(right)

    def score(self, counts: Float[np.ndarray, "draw count"]) -> Float[np.ndarray, " draw"]:
        return share(counts)


class CountsByLabel(SummedCounts):
    """A metric that counts each label, too.

    Ranks may meet different labels, so the counts of a label are sent with its name (`_spell`).
    """

    records: list[Tensor]

    def __init__(self, layer: str) -> None:
        super().__init__(layer)
        self.add_state("records", [], dist_reduce_fx="cat")

    @abstractmethod
    def labels_of(self, guess: Any, gold: Any) -> tuple[list[str], list[str], list[str]]:
        """The labels of a sentence's items that are correct, of those predicted, and of those in the gold."""

    def update(
        self, predicted: Sequence[Any], gold: Sequence[Sentence], given: Sequence[Any] | None = None
    ) -> None:
        """See `TaskMetric`."""
        super().update(predicted, gold)
        counts: tuple[Counter[str], Counter[str], Counter[str]] = (Counter(), Counter(), Counter())
        for _, guess, true in annotated_sentences(self.layer, predicted, gold):
            for counter, labels in zip(counts, self.labels_of(guess, true), strict=True):
                counter.update(labels)
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

    def labels_of(self, guess: str, gold: str) -> tuple[list[str], list[str], list[str]]:
        return [gold] * (guess == gold), [guess], [gold]

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

    def counts_of(self, guess: RankedScripts, gold: tuple[str, ...], sentence: Sentence) -> Sequence[int]:
        lemmas = zip(guess.lemmas(sentence.words), gold, strict=True)
        return sum(true in (lemma, UNSPECIFIED) for lemma, true in lemmas), len(gold)


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
        labelled, words, attached, labelled_fully, *whole = self.counts.tolist()
        right = {"uas": attached, "las": labelled, "las_subtypes": labelled_fully}
        return {name: 100 * n / max(words, 1) for name, n in right.items()} | whole_sentences(*whole)

    def counts_of(self, guess: Arcs, gold: Arcs, sentence: Sentence) -> Sequence[int]:
        words = attached = labelled = labelled_fully = 0
        for word, head, relation, gold_head, gold_relation in zip(
            sentence.words, guess.heads, guess.relations, gold.heads, gold.relations, strict=True
        ):
            if gold_head is None or (not self.punct and is_punctuation(word)):
                continue
            words += 1
            if head == gold_head:
                attached += 1
                labelled += relation.partition(":")[0] == gold_relation.partition(":")[0]
                labelled_fully += relation == gold_relation
        return labelled, words, attached, labelled_fully, attached == words, labelled == words, 1

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

    def compute(self) -> dict[str, float]:
        labelled, unlabelled = (precision_recall_f1(*row) for row in self.counts.view(2, 3).tolist())
        return labelled | {f"unlabelled_{name}": value for name, value in unlabelled.items()}

    def counts_of(self, guess: Graph, gold: Graph, sentence: Sentence) -> Sequence[int]:
        ours, true = set(guess.arcs), set(gold.arcs)
        pairs, true_pairs = ({arc[:2] for arc in arcs} for arcs in (ours, true))
        labelled = len(ours & true), len(ours), len(true)
        return *labelled, len(pairs & true_pairs), len(pairs), len(true_pairs)


class SpanScores(CountsByLabel):
    """Precision, recall and F1 over labelled spans, overall and F1 per type, as conlleval counts them.

    With `spans_of`, the layer and predictions are tags: it gives the spans of a sentence's tags.
    """

    columns = 3

    def __init__(self, layer: str, spans_of: Callable[[Any], tuple[Span, ...]] = tuple) -> None:
        super().__init__(layer)
        self.spans_of = spans_of

    def labels_of(
        self, guess: tuple[Any, ...], gold: tuple[Any, ...]
    ) -> tuple[list[str], list[str], list[str]]:
        guessed, true = set(self.spans_of(guess)), set(self.spans_of(gold))
        correct, ours, theirs = ([span.label for span in spans] for spans in (guessed & true, guessed, true))
        return correct, ours, theirs

    def counts_of(self, guess: tuple[Any, ...], gold: tuple[Any, ...], sentence: Sentence) -> Sequence[int]:
        guessed, true = set(self.spans_of(guess)), set(self.spans_of(gold))
        return len(guessed & true), len(guessed), len(true)

    def compute(self) -> dict[str, float]:
        of_labels = {f"f1/{label}": scores["f1"] for label, scores in self.by_label().items()}
        return precision_recall_f1(*self.counts.tolist()) | of_labels


class ArgumentScores(SummedCounts):
    """Precision, recall and F1 over (predicate, start, end, role), without V and with C- joined.

    An argument of a predicate that the gold lacks counts as wrong; srl-eval.pl counts it so only if its
    gold file has that predicate, without arguments. `predicate_f1` is over predicates alone;
    `given_*` are precision, recall and F1 where the decoder is given the gold predicates.

    With senses, `sense/accuracy` is the share of gold predicates whose sense is predicted, given the
    predicates. `sense/f1` is end to end and counts the sense of each predicate as an item in addition to
    the arguments, as the labelled F1 of CoNLL 2009 does. Both leave out predicates that have no sense in
    the gold data.
    """

    columns = 6
    """Of arguments, then of predicates: correct, predicted, gold."""
    given: Tensor
    sense_counts: Tensor

    def __init__(self, layer: str, senses: bool = False) -> None:
        super().__init__(layer)
        self.senses = senses
        # Senses end to end: correct, predicted, gold; given the predicates: correct, gold.
        self.add_state("sense_counts", torch.zeros(5, dtype=torch.long), dist_reduce_fx="sum")
        # Of arguments, given the predicates: correct, predicted, gold; then the updates that had these.
        self.add_state("given", torch.zeros(4, dtype=torch.long), dist_reduce_fx="sum")

    def update(
        self,
        predicted: Sequence[tuple[Frame, ...]],
        gold: Sequence[Sentence],
        given: Sequence[tuple[Frame, ...]] | None = None,
    ) -> None:
        super().update(predicted, gold)
        of_given, of_senses = np.zeros(4, dtype=np.int64), np.zeros(5, dtype=np.int64)
        of_given[3] = given is not None
        for index, guess, frames in annotated_sentences(self.layer, predicted, gold):
            if given is not None:
                of_given[:3] += _overlap(_by_predicate(given[index]), _by_predicate(frames))
            if self.senses:
                of_senses[:3] += _sense_counts(guess, frames)
                if given is not None:
                    of_senses[3:] += _sense_counts(given[index], frames)[::2]
        self.given += torch.from_numpy(of_given).to(self.given.device)
        self.sense_counts += torch.from_numpy(of_senses).to(self.given.device)

    def compute(self) -> dict[str, float]:
        arguments, predicates = self.counts.view(2, 3).tolist()
        *given, updates = self.given.tolist()
        scores = precision_recall_f1(*arguments)
        scores["predicate_f1"] = precision_recall_f1(*predicates)["f1"]
        if updates:
            scores |= {f"given_{name}": value for name, value in precision_recall_f1(*given).items()}
        if self.senses:
            *senses, correct, gold = self.sense_counts.tolist()
            items = [sum(pair) for pair in zip(arguments, senses, strict=True)]
            scores["sense/f1"] = precision_recall_f1(*items)["f1"]
            if updates:
                scores["sense/accuracy"] = 100 * correct / max(gold, 1)
        return scores

    def counts_of(
        self, guess: tuple[Frame, ...], gold: tuple[Frame, ...], sentence: Sentence
    ) -> Sequence[int]:
        ours, true = _by_predicate(guess), _by_predicate(gold)
        return *_overlap(ours, true), len(ours.keys() & true.keys()), len(ours), len(true)


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

    def compute(self) -> dict[str, float]:
        correct, predicted, gold, bare, *whole = self.counts.tolist()
        scores = precision_recall_f1(correct, predicted, gold)
        scores["uf1"] = precision_recall_f1(bare, predicted, gold)["f1"]
        return scores | whole_sentences(*whole)

    def counts_of(self, guess: tuple[Span, ...], gold: Tree, sentence: Sentence) -> Sequence[int]:
        scored = [leaf.label not in DELETED for leaf in gold.leaves()]
        scored_before = list(accumulate(scored, initial=0))
        if scored_before[-1] == 0:
            return (0,) * self.columns  # EVALB skips sentences of nothing but deleted words
        guessed = scored_brackets(guess, scored_before)
        true = scored_brackets(constituents(gold), scored_before)
        spans, true_spans = _without_labels(guessed), _without_labels(true)
        correct = (guessed & true).total(), guessed.total(), true.total()
        return *correct, (spans & true_spans).total(), spans == true_spans, guessed == true, 1


def _accuracy(confusion: Float[np.ndarray, "draw gold guess"]) -> Float[np.ndarray, " draw"]:
    return np.trace(confusion, axis1=1, axis2=2) / np.maximum(confusion.sum((1, 2)), 1)


def _f1(confusion: Float[np.ndarray, "draw gold guess"]) -> Float[np.ndarray, " draw"]:
    """F1 of the last class."""
    both = confusion[:, -1].sum(1) + confusion[:, :, -1].sum(1)
    return 2 * confusion[:, -1, -1] / np.maximum(both, 1)


def _matthews(confusion: Float[np.ndarray, "draw gold guess"]) -> Float[np.ndarray, " draw"]:
    """Matthews correlation for any number of classes (Gorodkin 2004).

    If gold or predictions have only one class, it is undefined and counts as 0, as in scikit-learn.
    torchmetrics returns numbers above 0 for a model that always predicts the most frequent class.
    """
    size, right = confusion.sum((1, 2)), np.trace(confusion, axis1=1, axis2=2)
    gold, guess = confusion.sum(2), confusion.sum(1)
    of_gold, of_guess = size**2 - (gold**2).sum(1), size**2 - (guess**2).sum(1)
    scale = np.sqrt(of_gold * of_guess)
    covariance = right * size - (gold * guess).sum(1)
    return np.divide(covariance, scale, out=np.zeros_like(scale), where=scale > 0)


_SCORES: Mapping[str, Callable[[Float[np.ndarray, "draw gold guess"]], Float[np.ndarray, " draw"]]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "matthews": _matthews,
}
"""Scores of many confusion matrices at once, as shares; undefined ones are 0."""


class Classes(SummedCounts):
    """Scores over a fixed inventory of classes, from their confusion matrix [gold, guess].

    `layer` is the layer with the gold class, `main` the score that `score` gives.
    """

    def __init__(self, layer: str, inventory: Sequence[str], scores: Sequence[str], main: str) -> None:
        self.columns = len(inventory) ** 2
        super().__init__(layer)
        self.names, self.main = tuple(scores), main
        self.index = {name: index for index, name in enumerate(inventory)}

    def compute(self) -> dict[str, float]:
        confusion = self._confusions(self.counts[None].cpu().double().numpy())
        return {name: 100 * float(_SCORES[name](confusion)[0]) for name in self.names}

    def counts_of(self, guess: str, gold: str, sentence: Sentence) -> Sequence[int]:
        counts = [0] * self.columns
        counts[self.index[gold] * len(self.index) + self.index[guess]] = 1
        return counts

    def score(self, counts: Float[np.ndarray, "draw count"]) -> Float[np.ndarray, " draw"]:
        return 100 * _SCORES[self.main](self._confusions(counts))

    def _confusions(self, counts: Float[np.ndarray, "draw count"]) -> Float[np.ndarray, "draw gold guess"]:
        return counts.reshape(-1, len(self.index), len(self.index))


class Correlation(TaskMetric):
    """Pearson's and Spearman's correlation times 100; 0 if all gold or all predicted numbers are equal.

    `layer` is the layer with the gold number.
    """

    predicted: list[Tensor]
    gold: list[Tensor]

    def __init__(self, layer: str) -> None:
        super().__init__()
        self.set_dtype(torch.float64)  # also the type of what a rank without sentences contributes
        self.layer = layer
        self.add_state("predicted", [], dist_reduce_fx="cat")
        self.add_state("gold", [], dist_reduce_fx="cat")

    def update(
        self, predicted: Sequence[float], gold: Sequence[Sentence], given: Sequence[float] | None = None
    ) -> None:
        pairs = [(guess, true) for _, guess, true in annotated_sentences(self.layer, predicted, gold)]
        both = torch.tensor(pairs, dtype=torch.float64, device=self.device).view(-1, 2)
        self.predicted.append(both[:, 0])
        self.gold.append(both[:, 1])

    def compute(self) -> dict[str, float]:
        # Lists, or one tensor each where several ranks have gathered them.
        states = (self.predicted, self.gold)
        predicted, gold = (dim_zero_cat(state) if len(state) else torch.zeros(0) for state in states)
        if len(predicted) < 2 or (predicted == predicted[0]).all() or (gold == gold[0]).all():
            return {"pearson": 0.0, "spearman": 0.0}
        # Correlations ignore the scale, and torchmetrics warns of small variances: both have deviation 1.
        predicted, gold = (numbers / numbers.std() for numbers in (predicted.double(), gold.double()))
        return {
            "pearson": 100 * float(pearson_corrcoef(predicted, gold)),
            "spearman": 100 * float(spearman_corrcoef(predicted, gold)),
        }

    def sentence_counts(
        self, predicted: Sequence[float], gold: Sequence[Sentence]
    ) -> Float[np.ndarray, "sentence count"]:
        counts = np.zeros((len(gold), 6))
        for number, guess, true in annotated_sentences(self.layer, predicted, gold):
            counts[number] = 1, guess, true, guess * guess, true * true, guess * true
        return counts

    def score(self, counts: Float[np.ndarray, "draw count"]) -> Float[np.ndarray, " draw"]:
        """Pearson's correlation from the sums of both numbers, their squares and their product."""
        size = np.maximum(counts[:, 0], 1)
        of_guess, of_gold, guesses, golds, products = (counts[:, 1:] / size[:, None]).T
        scale = np.sqrt(np.maximum(guesses - of_guess**2, 0) * np.maximum(golds - of_gold**2, 0))
        covariance = products - of_guess * of_gold
        # Rounding leaves a tiny variance where all numbers are equal: it counts as 0.
        defined = scale > 1e-12 * np.sqrt(guesses * golds)
        return 100 * np.divide(covariance, scale, out=np.zeros_like(scale), where=defined)

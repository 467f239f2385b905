"""Semantic roles, end to end: which words are predicates, and the arguments of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from tasks.crf import BioCrf
from tasks.frames import FrameTargets, dropped, frame_targets, joined, roles, tagged_spans
from tasks.ner import precision_recall_f1
from tasks.sentence import Frame, Sentence
from tasks.task import Decoder, Labels, Task, TaskMetric

_IMPOSSIBLE = -1e4
_RARE = -1.5
"""Log odds of being a predicate at the start; in EWT one word in five is one."""


class FrameBatch(NamedTuple):
    """`FrameTargets` of a batch, the frames of all sentences one after the other, with their sentences."""

    is_predicate: Float[Tensor, "batch word"]
    rows: Int[Tensor, " frame"]
    predicates: Int[Tensor, " frame"]
    tags: Int[Tensor, "frame word"]


class FrameScores(NamedTuple):
    """Log odds of being a predicate, and the vectors that roles are scored from at predicates."""

    predicates: Float[Tensor, "batch word"]
    words: Float[Tensor, "batch word hidden"]


class RoleScorer(nn.Module):
    """Scores of tags for all words of each predicate's sentence, from predicate, word and distance.

    One hidden layer over a projection of the predicate, one of the word and a vector for the distance
    between them, clipped to `reach` words: no label has a bilinear form of its own, so that a pair costs
    its hidden size times the tags and many rare roles share what they need.
    """

    def __init__(self, hidden: int, tags: int, dim: int, reach: int, dropout: float) -> None:
        super().__init__()
        self.reach = reach
        self.dropout = dropout
        self.of_predicate = nn.Linear(hidden, dim)
        self.of_word = nn.Linear(hidden, dim, bias=False)
        self.of_distance = nn.Embedding(2 * reach + 1, dim)
        nn.init.normal_(self.of_distance.weight, std=0.02)
        self.output = nn.Linear(dim, tags)

    def forward(
        self,
        words: Float[Tensor, "batch word hidden"],
        rows: Int[Tensor, " frame"],
        predicates: Int[Tensor, " frame"],
    ) -> Float[Tensor, "frame word tag"]:
        at_predicates = self.of_predicate(words[rows, predicates])
        at_words = self.of_word(words)[rows]
        distances = torch.arange(words.shape[1], device=words.device) - predicates[:, None]
        between = self.of_distance(distances.clamp(-self.reach, self.reach) + self.reach)
        pairs = at_predicates[:, None] + at_words + between.to(at_words.dtype)
        pairs = functional.leaky_relu(pairs, 0.1)
        return self.output(_dropout(pairs, self.dropout, self.training))


def _dropout(
    vectors: Float[Tensor, "row word _"], share: float, training: bool
) -> Float[Tensor, "row word _"]:
    """Dropout of the same features at all words of a row, whose random numbers cost next to nothing."""
    return functional.dropout1d(vectors.mT, share, training).mT


class SrlDecoder(Decoder):
    """A classifier for predicates; for each of them a BIO tagger for its arguments with a CRF on top."""

    def __init__(self, hidden: int, labels: Labels, dim: int, reach: int, dropout: float) -> None:
        super().__init__()
        self.labels = labels
        self.dropout = dropout
        self.predicate = nn.Linear(hidden, 1)
        nn.init.constant_(self.predicate.bias, _RARE)
        self.roles = RoleScorer(hidden, 1 + 2 * len(labels), dim, reach, dropout)
        self.crf = BioCrf(len(labels))

    def forward(
        self, words: Float[Tensor, "batch word hidden"], mask: Bool[Tensor, "batch word"]
    ) -> FrameScores:
        words = _dropout(words, self.dropout, self.training)
        scores = self.predicate(words).squeeze(2)
        return FrameScores(scores.to(torch.promote_types(scores.dtype, torch.float32)), words)

    def loss(
        self, scores: FrameScores, targets: FrameBatch, mask: Bool[Tensor, "batch word"]
    ) -> Float[Tensor, " batch"]:
        found = functional.binary_cross_entropy_with_logits(
            scores.predicates, targets.is_predicate.to(scores.predicates.dtype), reduction="none"
        )
        losses = found.masked_fill(~mask, 0.0).sum(1)
        tags = self._tag_scores(scores.words, targets.rows, targets.predicates)
        lengths = mask.sum(1)[targets.rows]
        return losses.index_add(0, targets.rows, self.crf.loss(tags, targets.tags, lengths))

    def decode(self, scores: FrameScores, mask: Bool[Tensor, "batch word"]) -> list[tuple[Frame, ...]]:
        rows, predicates = ((scores.predicates > 0) & mask).nonzero(as_tuple=True)
        return self._frames(scores, mask, rows, predicates)

    def decode_given(
        self, scores: FrameScores, mask: Bool[Tensor, "batch word"], sentences: Sequence[Sentence]
    ) -> list[tuple[Frame, ...]]:
        places = [
            (row, predicate)
            for row, sentence in enumerate(sentences)
            for predicate in sorted({frame.predicate for frame in sentence.frames or ()})
        ]
        index = torch.tensor(places, dtype=torch.long, device=mask.device).view(-1, 2)
        return self._frames(scores, mask, index[:, 0], index[:, 1])

    def _frames(
        self,
        scores: FrameScores,
        mask: Bool[Tensor, "batch word"],
        rows: Int[Tensor, " frame"],
        predicates: Int[Tensor, " frame"],
    ) -> list[tuple[Frame, ...]]:
        frames: list[list[Frame]] = [[] for _ in range(len(mask))]
        tags = self.crf.decode(self._tag_scores(scores.words, rows, predicates), mask.sum(1)[rows])
        for row, predicate, sequence in zip(rows.tolist(), predicates.tolist(), tags.tolist(), strict=True):
            frames[row].append(Frame(predicate, None, tagged_spans(sequence, self.labels)))
        return [tuple(found) for found in frames]

    def _tag_scores(
        self,
        words: Float[Tensor, "batch word hidden"],
        rows: Int[Tensor, " frame"],
        predicates: Int[Tensor, " frame"],
    ) -> Float[Tensor, "frame word tag"]:
        scores = self.roles(words, rows, predicates)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        # The predicate's own word is part of no argument: every path has O there, which then cancels out.
        outside = functional.pad(scores.new_zeros(1), (0, scores.shape[2] - 1), value=_IMPOSSIBLE)
        return scores.index_put((torch.arange(len(rows), device=rows.device), predicates), outside)


class ArgumentScores(TaskMetric):
    """Precision, recall and F1 over (predicate, start, end, role), V left out and C- joined.

    An argument of a predicate that the gold lacks counts as wrong, which srl-eval.pl does only if that
    predicate stands in its gold file, without arguments. `predicate_f1` is over predicates alone;
    `given_*` are the same as the first three, with the gold's predicates given to the decoder.
    """

    counts: Tensor
    given: Tensor

    def __init__(self) -> None:
        super().__init__()
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
        for index, sentence in enumerate(gold):
            if sentence.frames is None:
                continue
            true = _by_predicate(sentence.frames)
            found = _by_predicate(predicted[index])
            counts[0] += _overlap(found, true)
            counts[1] += len(found.keys() & true.keys()), len(found), len(true)
            if given is not None:
                counts[2] += _overlap(_by_predicate(given[index]), true)
        self.counts += torch.from_numpy(counts).to(self.counts.device)
        self.given += given is not None

    def compute(self) -> dict[str, float]:
        found, predicates, given = (precision_recall_f1(*row) for row in self.counts.tolist())
        scores = found | {"predicate_f1": predicates["f1"]}
        if self.given:
            scores |= {f"given_{name}": value for name, value in given.items()}
        return scores


_Arguments = dict[int, set[tuple[str, tuple[tuple[int, int], ...]]]]


def _by_predicate(frames: Iterable[Frame]) -> _Arguments:
    arguments: _Arguments = {}
    for frame in frames:
        arguments.setdefault(frame.predicate, set()).update(joined(frame))
    return arguments


def _overlap(found: _Arguments, true: _Arguments) -> tuple[int, int, int]:
    correct = sum(len(found[predicate] & true[predicate]) for predicate in found.keys() & true.keys())
    return correct, sum(map(len, found.values())), sum(map(len, true.values()))


@dataclass(frozen=True)
class Srl(Task):
    """Semantic role labelling."""

    name: ClassVar[str] = "srl"
    score: ClassVar[str] = "f1"

    dim: int = 256
    """Size of the hidden layer over a predicate and a word."""
    reach: int = 24
    """Distances between predicate and word are told apart up to this many words."""
    dropout: float = 0.33
    """Share of features dropped in training, alike at all words of a sentence (input) or frame (hidden)."""

    def annotated(self, sentence: Sentence) -> bool:
        return sentence.frames is not None

    def labels(self, sentences: Iterable[Sentence]) -> Labels:
        return Labels(roles(sentences))

    def targets(self, sentence: Sentence, labels: Labels) -> FrameTargets:
        if sentence.frames is None:
            raise ValueError(f"sentence '{sentence.id}' has no frames: ask annotated() first")
        return frame_targets(sentence, labels)

    def collate(self, targets: Sequence[FrameTargets], width: int) -> FrameBatch:
        counts = [len(target.predicates) for target in targets]
        is_predicate = np.zeros((len(targets), width), dtype=np.float32)
        tags = np.zeros((sum(counts), width), dtype=np.int64)
        first = 0
        for row, target in enumerate(targets):
            words, last = len(target.is_predicate), first + counts[row]
            is_predicate[row, :words] = target.is_predicate
            tags[first:last, :words] = target.tags
            first = last
        rows = np.repeat(np.arange(len(targets)), counts)
        predicates = np.concatenate([target.predicates for target in targets])
        return FrameBatch(*map(torch.from_numpy, (is_predicate, rows, predicates, tags)))

    def decoder(self, hidden: int, labels: Labels) -> SrlDecoder:
        return SrlDecoder(hidden, labels, self.dim, self.reach, self.dropout)

    def metric(self) -> ArgumentScores:
        return ArgumentScores()

    def dropped(self, sentence: Sentence, labels: Labels) -> int:
        return dropped(sentence, labels)

    def annotate(self, sentence: Sentence, annotation: tuple[Frame, ...]) -> Sentence:
        return replace(sentence, frames=annotation)

"""Semantic roles, end to end: which words are predicates, and the arguments of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from mtl.tasks.decoders.crf import BioCrf, best_paths, numbered_tags, tag_names, tagged_spans
from mtl.tasks.decoders.decoder import (
    Decoder,
    Item,
    SharedDropout,
    Steps,
    StructureScore,
    WordMask,
    WordVectors,
    at_least_float32,
    in_steps,
    k_best,
    label_losses,
    one_after_another,
    scores_at,
    sums_by_sentence,
)
from mtl.tasks.sentence import Frame, Sentence, Span
from mtl.tasks.spans import representable_frames, split_frame_labels
from mtl.tasks.task import Labels, annotated_layer

_IMPOSSIBLE = -1e4
"""Score of a tag that a word cannot have; finite, so that gradients stay so."""
_RARE = -1.5
"""Log odds of being a predicate at the start; in EWT one word in five is one."""


class FrameTargets(NamedTuple):
    """Which words are predicates, and per frame its predicate, its arguments as tags, and its sense.

    Tags are O, then B of every role, then I of every role, as `BioCrf` has them. A sense is `UNKNOWN` if
    training never saw it, or no sense is learned or annotated.
    """

    is_predicate: Bool[np.ndarray, " word"]
    predicates: Int[np.ndarray, " frame"]
    tags: Int[np.ndarray, "frame word"]
    senses: Int[np.ndarray, " frame"]


class FrameBatch(NamedTuple):
    """`FrameTargets` of a batch: the frames of all sentences one after the other, `rows` their sentences.

    Places and distances are made on the host, which has them before a GPU needs them.
    """

    is_predicate: Float[Tensor, "batch word"]
    rows: Int[Tensor, " frame"]
    predicates: Int[Tensor, " frame"]
    places: Int[Tensor, " frame"]
    distances: Int[Tensor, "frame word"]
    """As in `predicate_places`."""
    lengths: Int[Tensor, " frame"]
    """The words of each frame's sentence."""
    tags: Int[Tensor, "frame word"]
    senses: Int[Tensor, " frame"]


class FrameScores(NamedTuple):
    """Log odds of being a predicate, and the vectors that roles are scored from at predicates."""

    predicates: Float[Tensor, "batch word"]
    words: WordVectors


def frame_targets(sentence: Sentence, layer: str, labels: Labels) -> FrameTargets:
    """The targets of an annotated sentence, as far as tags can represent it (`representable_frames`)."""
    annotated_layer(sentence, layer)  # only for its error
    frames = representable_frames(sentence, layer)
    roles, senses = split_frame_labels(labels)
    predicates = np.array([frame.predicate for frame in frames], dtype=np.int64)
    is_predicate = np.zeros(len(sentence), dtype=bool)
    is_predicate[predicates] = True
    tags = [numbered_tags(frame.arguments, len(sentence), roles) for frame in frames]
    indices = [senses.index(frame.sense or "") for frame in frames]
    return FrameTargets(
        is_predicate,
        predicates,
        np.array(tags, dtype=np.int64).reshape(len(frames), len(sentence)),
        np.array(indices, dtype=np.int64),
    )


def predicate_places(
    rows: Int[np.ndarray, " frame"], predicates: Int[np.ndarray, " frame"], width: int, reach: int
) -> tuple[Int[np.ndarray, " frame"], Int[np.ndarray, "frame word"]]:
    """Where predicates are in [batch word], without these axes, and how far each word is ahead of them.

    Distances are clipped to `reach` words, and counted from -`reach`.
    """
    ahead = np.arange(width) - predicates[:, None]
    return rows * width + predicates, (ahead + reach).clip(0, 2 * reach)


def collate_frames(targets: Sequence[FrameTargets], width: int, reach: int) -> FrameBatch:
    """The targets of a batch, padded to `width` words; `reach` is that of the `RoleScorer`."""
    rows, predicates, senses = one_after_another([(target.predicates, target.senses) for target in targets])
    counts = [len(target.predicates) for target in targets]
    is_predicate = np.zeros((len(targets), width), dtype=np.float32)
    tags = np.zeros((sum(counts), width), dtype=np.int64)
    first = 0
    for row, target in enumerate(targets):
        words, last = len(target.is_predicate), first + counts[row]
        is_predicate[row, :words] = target.is_predicate
        tags[first:last, :words] = target.tags
        first = last
    lengths = np.repeat([len(target.is_predicate) for target in targets], counts)
    places, distances = predicate_places(rows.numpy(), predicates.numpy(), width, reach)
    return FrameBatch(
        torch.from_numpy(is_predicate),
        rows,
        predicates,
        torch.from_numpy(places),
        torch.from_numpy(distances),
        torch.from_numpy(lengths),
        torch.from_numpy(tags),
        senses,
    )


class RoleScorer(nn.Module):
    """Scores of tags for all words of each predicate's sentence, from predicate, word and distance.

    One hidden layer over a projection of the predicate, one of the word and a vector for the distance
    between them, clipped to `reach` words. No label has a bilinear form of its own, so a pair costs `dim`
    times the tags, and rare roles share parameters.
    """

    def __init__(self, hidden: int, tags: int, dim: int, reach: int, dropout: float) -> None:
        super().__init__()
        self.reach = reach
        self.dropout = SharedDropout(dropout)
        self.of_predicate = nn.Linear(hidden, dim)
        self.of_word = nn.Linear(hidden, dim, bias=False)
        self.of_distance = nn.Embedding(2 * reach + 1, dim)
        nn.init.normal_(self.of_distance.weight, std=0.02)
        self.output = nn.Linear(dim, tags)

    def forward(
        self,
        words: WordVectors,
        rows: Int[Tensor, " frame"],
        places: Int[Tensor, " frame"],
        distances: Int[Tensor, "frame word"],
    ) -> Float[Tensor, "frame word tag"]:
        """The scores; see `predicate_places`."""
        at_predicates = self.of_predicate(words.flatten(0, 1).index_select(0, places))
        if len(rows) < len(words):
            pairs = self.of_word(words.index_select(0, rows))
        else:
            pairs = self.of_word(words).index_select(0, rows)
        between = self.of_distance(distances)
        pairs += at_predicates[:, None]  # in place: this is the largest tensor of a pass
        pairs += between.to(pairs.dtype)
        pairs = functional.leaky_relu(pairs, 0.1)
        tags: Tensor = self.output(self.dropout(pairs))
        return tags


def at_words(
    words: WordVectors, rows: Int[Tensor, " frame"], places: Int[Tensor, " frame"]
) -> Float[Tensor, "frame hidden"]:
    """The vectors of some words; the gradient of `words[rows, places]` would sort places on a GPU."""
    return words.flatten(0, 1).index_select(0, torch.add(places, rows, alpha=words.shape[1]))


class SenseClassifier(nn.Linear):
    """A linear classifier over a predicate's vector, which chooses among all senses of training."""

    def __init__(self, hidden: int, senses: Labels) -> None:
        super().__init__(hidden, len(senses))
        self.senses = senses

    def scores(
        self, words: WordVectors, rows: Int[Tensor, " frame"], predicates: Int[Tensor, " frame"]
    ) -> Float[Tensor, "frame sense"]:
        return at_least_float32(self(at_words(words, rows, predicates)))

    def loss(
        self,
        words: WordVectors,
        rows: Int[Tensor, " frame"],
        predicates: Int[Tensor, " frame"],
        senses: Int[Tensor, " frame"],
    ) -> Float[Tensor, " frame"]:
        """The cross entropy of each frame; 0 where its sense is `UNKNOWN`."""
        return label_losses(self.scores(words, rows, predicates), senses)


class FrameDecoder(Decoder):
    """Predicates with their arguments; if the labels have senses, a `SenseClassifier` chooses among them."""

    narrow = True

    def __init__(self, hidden: int, labels: Labels) -> None:
        super().__init__()
        self.labels, senses = split_frame_labels(labels)
        self.sense = SenseClassifier(hidden, senses) if len(senses) else None

    def best_senses(
        self, words: WordVectors, rows: Int[Tensor, " frame"], predicates: Int[Tensor, " frame"]
    ) -> Int[Tensor, " frame"]:
        """The index of each predicate's best sense; anything if no senses are learned."""
        return rows if self.sense is None else self.sense.scores(words, rows, predicates).argmax(1)

    def frames_at(
        self,
        places: Int[np.ndarray, "frame 2"],
        senses: Int[np.ndarray, " frame"],
        arguments: Iterable[tuple[Span, ...]],
        sentences: int,
    ) -> list[tuple[Frame, ...]]:
        """The frames of each sentence, from the places of predicates, each a row and a word."""
        frames: list[list[Frame]] = [[] for _ in range(sentences)]
        for (row, predicate), sense, spans in zip(places.tolist(), senses.tolist(), arguments, strict=True):
            name = None if self.sense is None else self.sense.senses[sense]
            frames[row].append(Frame(predicate, name, spans))
        return [tuple(of_sentence) for of_sentence in frames]

    def items_at(
        self,
        words: WordVectors,
        rows: Int[Tensor, " frame"],
        predicates: Int[Tensor, " frame"],
        chances: Float[Tensor, " frame"],
        k: int,
    ) -> list[list[Item]]:
        """Each predicate with its probability, and its senses by a softmax."""
        places = predicates.tolist()
        best = k_best(chances[:, None], ("predicate",), k)
        found = [
            [Item("predicate", place, place + 1, each)] for place, each in zip(places, best, strict=True)
        ]
        if self.sense is not None:
            best = k_best(self.sense.scores(words, rows, predicates).softmax(1), self.sense.senses.names, k)
            for items, place, each in zip(found, places, best, strict=True):
                items.append(Item("sense", place, place + 1, each))
        return found


class SrlDecoder(FrameDecoder):
    """A classifier for predicates; for each of them a BIO tagger for its arguments with a CRF on top."""

    outside: Tensor

    def __init__(self, hidden: int, labels: Labels, dim: int, reach: int, dropout: float) -> None:
        super().__init__(hidden, labels)
        self.dropout = SharedDropout(dropout)
        self.predicate = nn.Linear(hidden, 1)
        nn.init.constant_(self.predicate.bias, _RARE)
        self.roles = RoleScorer(hidden, 1 + 2 * len(self.labels), dim, reach, dropout)
        self.crf = BioCrf(len(self.labels))
        # The predicate's own word is part of no argument: every path has O there, at score 0.
        outside = torch.tensor([0.0, *[_IMPOSSIBLE] * (2 * len(self.labels))])
        self.register_buffer("outside", outside, persistent=False)

    def forward(self, words: WordVectors, mask: WordMask) -> FrameScores:
        words = self.dropout(words)
        return FrameScores(at_least_float32(self.predicate(words).squeeze(2)), words)

    def loss(self, scores: FrameScores, targets: FrameBatch, mask: WordMask) -> Float[Tensor, " batch"]:
        gold = targets.is_predicate.to(scores.predicates.dtype)
        losses = functional.binary_cross_entropy_with_logits(
            scores.predicates, gold, mask, reduction="none"
        ).sum(1)
        of_frames = self.crf.loss(self._gold_tag_scores(scores, targets), targets.tags, targets.lengths)
        if self.sense is not None:
            of_frames = of_frames + self.sense.loss(
                scores.words, targets.rows, targets.predicates, targets.senses
            )
        return losses.index_add(0, targets.rows, of_frames)

    def structure_score(
        self, scores: FrameScores, targets: FrameBatch, mask: WordMask, label: int | None = None
    ) -> StructureScore:
        rows, predicates, tags = targets.rows, targets.predicates, targets.tags
        tag_scores = self._gold_tag_scores(scores, targets)
        if label is None:
            paths = self.crf.path_score(tag_scores, tags, targets.lengths)
            if self.sense is not None:
                paths = paths + self._gold_senses(self.sense, scores, targets)
            return sums_by_sentence(paths + scores.predicates[rows, predicates], rows, len(mask))
        if label >= len(self.labels) and self.sense is not None:
            chosen = targets.senses == label - len(self.labels)
            of_sense = self._gold_senses(self.sense, scores, targets)[chosen]
            return sums_by_sentence(of_sense, rows[chosen], len(mask))
        frames, words = ((tags == 1 + label) | (tags == 1 + len(self.labels) + label)).nonzero(as_tuple=True)
        return sums_by_sentence(tag_scores[frames, words, tags[frames, words]], rows[frames], len(mask))

    @in_steps
    def decode(self, scores: FrameScores, mask: WordMask) -> Steps[list[tuple[Frame, ...]]]:
        [chosen] = yield ((scores.predicates > 0) & mask,)
        return (yield from self._frames(scores, mask, np.argwhere(chosen)))

    @in_steps
    def decode_given(
        self,
        scores: FrameScores,
        mask: WordMask,
        gold: Sequence[tuple[Frame, ...] | None],
        decoded: Sequence[tuple[Frame, ...]],
    ) -> Steps[list[tuple[Frame, ...]]]:
        # A frame does not depend on the others of its sentence, so those of predicted predicates are known.
        known = [{frame.predicate: frame for frame in frames} for frames in decoded]
        given = [sorted({frame.predicate for frame in frames or ()}) for frames in gold]
        places = [
            (row, predicate)
            for row, predicates in enumerate(given)
            for predicate in predicates
            if predicate not in known[row]
        ]
        found = yield from self._frames(scores, mask, np.array(places, dtype=np.int64).reshape(-1, 2))
        for of_row, frames in zip(known, found, strict=True):
            of_row.update((frame.predicate, frame) for frame in frames)
        return [
            tuple([of_row[predicate] for predicate in predicates])
            for of_row, predicates in zip(known, given, strict=True)
        ]

    def alternatives(
        self, scores: FrameScores, mask: WordMask, decoded: Sequence[tuple[Frame, ...]], k: int
    ) -> list[tuple[Item, ...]]:
        """Each predicted predicate by a sigmoid, its sense by a softmax, and its arguments as BIO tags by the
        CRF's marginals."""
        places = [(row, frame.predicate) for row, frames in enumerate(decoded) for frame in frames]
        rows, predicates, *at = (
            torch.from_numpy(column).to(mask.device)
            for column in self._columns(np.array(places, dtype=np.int64).reshape(-1, 2), mask.shape[1])
        )
        lengths = mask.sum(1)[rows]
        tags = self.crf.marginals(self._tag_scores(scores.words, rows, predicates, *at), lengths)
        of_words = iter(k_best(tags.flatten(0, 1), tag_names(self.labels), k))
        chances = scores.predicates[rows, predicates].sigmoid()
        of_predicates = self.items_at(scores.words, rows, predicates, chances, k)
        found: list[list[Item]] = [[] for _ in decoded]
        for (row, predicate), length, items in zip(places, lengths.tolist(), of_predicates, strict=True):
            found[row] += items
            for word in range(mask.shape[1]):
                best = next(of_words)
                if word < length and word != predicate:
                    found[row].append(Item("role", word, word + 1, best, predicate))
        return [tuple(items) for items in found]

    def _frames(
        self, scores: FrameScores, mask: WordMask, places: Int[np.ndarray, "frame 2"]
    ) -> Steps[list[tuple[Frame, ...]]]:
        """The frames of predicates at these places, each a row and a word."""
        if not len(places):
            return [()] * len(mask)
        rows, predicates, *at = yield self._columns(places, mask.shape[1])
        chain = self.crf.chain(self._tag_scores(scores.words, rows, predicates, *at))
        best = self.best_senses(scores.words, rows, predicates)
        *of_paths, senses = yield mask.sum(1)[rows], *chain, best
        arguments = (tagged_spans(tags, self.labels) for tags in best_paths(*of_paths))
        return self.frames_at(places, senses, arguments, len(mask))

    @staticmethod
    def _gold_senses(
        sense: SenseClassifier, scores: FrameScores, targets: FrameBatch
    ) -> Float[Tensor, " frame"]:
        return scores_at(sense.scores(scores.words, targets.rows, targets.predicates), targets.senses)

    def _columns(
        self, places: Int[np.ndarray, "frame 2"], width: int
    ) -> tuple[Int[np.ndarray, "frame ..."], ...]:
        """Rows and predicates, each a row and a word, and their `predicate_places`."""
        rows, predicates = np.ascontiguousarray(places.T)
        return rows, predicates, *predicate_places(rows, predicates, width, self.roles.reach)

    def _gold_tag_scores(self, scores: FrameScores, targets: FrameBatch) -> Float[Tensor, "frame word tag"]:
        of_frames = (targets.rows, targets.predicates, targets.places, targets.distances)
        return self._tag_scores(scores.words, *of_frames)

    def _tag_scores(
        self,
        words: WordVectors,
        rows: Int[Tensor, " frame"],
        predicates: Int[Tensor, " frame"],
        places: Int[Tensor, " frame"],
        distances: Int[Tensor, "frame word"],
    ) -> Float[Tensor, "frame word tag"]:
        scores = at_least_float32(self.roles(words, rows, places, distances))
        outside = self.outside.to(scores.dtype).expand(len(rows), 1, -1)
        return scores.scatter(1, predicates[:, None, None].expand_as(outside), outside)

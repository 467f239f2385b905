"""Semantic roles by ranking spans (He et al. 2018): candidates for arguments and predicates, roles of pairs.

Every word is scored as a predicate and every span as an argument. The best of them, in proportion to the
number of words, are the candidates. Each pair of candidates gets a score for every role, to which both scores
are added, and 0 for no role. A predicate is what has an argument.

The first layer over a span is linear in its first word, its last, the mean of its words and its width. It is
therefore computed per word, and spans add up what they need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, no_type_check

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from mtl.tasks.decoders.decoder import (
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
from mtl.tasks.decoders.srl import FrameDecoder, at_words
from mtl.tasks.recursions import compiled
from mtl.tasks.sentence import Frame, Sentence, Span
from mtl.tasks.spans import representable_frames, split_frame_labels
from mtl.tasks.task import UNKNOWN, Labels, annotated_layer

_RARE = -5.0
"""Log odds of a role at the start: about one pair in ten has a role, and there are some dozens of roles."""


class RankedBatch(NamedTuple):
    """`RankedTargets` of all sentences of a batch one after the other, and the sentence of each item."""

    rows: Int[Tensor, " argument"]
    predicates: Int[Tensor, " argument"]
    firsts: Int[Tensor, " argument"]
    lasts: Int[Tensor, " argument"]
    roles: Int[Tensor, " argument"]
    frame_rows: Int[Tensor, " frame"]
    frames: Int[Tensor, " frame"]
    senses: Int[Tensor, " frame"]


class RankedTargets(NamedTuple):
    """Per argument its predicate, first and last word and role; per frame its predicate and sense."""

    predicates: Int[np.ndarray, " argument"]
    firsts: Int[np.ndarray, " argument"]
    lasts: Int[np.ndarray, " argument"]
    roles: Int[np.ndarray, " argument"]
    frames: Int[np.ndarray, " frame"]
    senses: Int[np.ndarray, " frame"]

    @staticmethod
    def collate(targets: Sequence[RankedTargets], width: int) -> RankedBatch:
        return RankedBatch(
            *one_after_another([target[:4] for target in targets]),
            *one_after_another([target[4:] for target in targets]),
        )


class SpanPairScores(NamedTuple):
    """The scores of predicates and spans, what roles are scored from, and the words."""

    predicates: Float[Tensor, "batch word"]
    spans: Float[Tensor, "batch word width"]
    """Entry `[b, i, w]` scores the span of `w + 1` words that begins at word `i`; -inf where it would
    run past the end of the sentence."""
    parts: Float[Tensor, "batch word part"]
    """A word's part as first word, as last, in the mean of a span, and as a predicate."""
    words: WordVectors


def ranked_targets(
    sentence: Sentence, layer: str, labels: Labels, longest: int, overlaps: bool
) -> RankedTargets:
    """The targets of an annotated sentence, as far as they can be represented (`representable_frames`)."""
    annotated_layer(sentence, layer)  # only for its error
    frames = representable_frames(sentence, layer, longest, overlaps)
    roles, senses = split_frame_labels(labels)
    arguments = [
        (frame.predicate, start, end - 1, roles.index(role))
        for frame in frames
        for start, end, role in frame.arguments
    ]
    of_frames = [(frame.predicate, senses.index(frame.sense or "")) for frame in frames]
    return RankedTargets(
        *np.array(arguments, dtype=np.int64).reshape(-1, 4).T,
        *np.array(of_frames, dtype=np.int64).reshape(-1, 2).T,
    )


class _Scorer(nn.Module):
    """Two hidden layers, the first of which is given without its activation, and a linear one."""

    def __init__(self, dim: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.dropout = SharedDropout(dropout)
        self.hidden = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, outputs)

    def forward(self, first: Float[Tensor, "row place dim"]) -> Float[Tensor, "row place output"]:
        second = functional.relu(self.hidden(self.dropout(functional.relu(first))))
        return at_least_float32(self.output(self.dropout(second)))


class Candidates(NamedTuple):
    """The arguments among which each sentence's predicates choose: all spans with the highest scores."""

    firsts: Int[Tensor, "batch candidate"]
    lasts: Int[Tensor, "batch candidate"]
    there: Bool[Tensor, "batch candidate"]
    """Sentences have different numbers of candidates."""


class RankingDecoder(FrameDecoder):
    """Candidates by the scores of words and spans, and roles of all pairs of candidates."""

    def __init__(
        self,
        hidden: int,
        labels: Labels,
        dim: int,
        dropout: float,
        *,
        longest: int,
        argument_ratio: float,
        predicate_ratio: float,
        overlaps: bool,
    ) -> None:
        super().__init__(hidden, labels)
        self.dim, self.longest, self.overlaps = dim, longest, overlaps
        self.argument_ratio, self.predicate_ratio = argument_ratio, predicate_ratio
        self.parts = nn.Linear(hidden, 8 * dim)
        self.widths = nn.Embedding(longest, 2 * dim)
        nn.init.normal_(self.widths.weight, std=0.02)
        self.predicate, self.span = _Scorer(dim, 1, dropout), _Scorer(dim, 1, dropout)
        self.role = _Scorer(dim, max(len(self.labels), 1), dropout)
        nn.init.constant_(self.role.output.bias, _RARE)

    def forward(self, words: WordVectors, mask: WordMask) -> SpanPairScores:
        batch, width, _ = words.shape
        of_predicates, of_spans, of_pairs = self.parts(words).split([self.dim, 3 * self.dim, 4 * self.dim], 2)
        firsts = torch.arange(width, device=words.device)[:, None]
        lasts = firsts + torch.arange(min(self.longest, width), device=words.device)
        at = lasts.clamp(max=width - 1)
        begin, end = (place.expand_as(at).flatten().expand(batch, -1) for place in (firsts, at))
        spans = self.span(_spans(of_spans, begin, end, self.widths.weight[:, : self.dim]))
        within = mask[:, at.flatten()].view(batch, *at.shape) & (lasts < width)
        return SpanPairScores(
            self.predicate(of_predicates).squeeze(2),
            spans.view(batch, *at.shape).masked_fill(~within, -torch.inf),
            of_pairs,
            words,
        )

    def loss(self, scores: SpanPairScores, targets: RankedBatch, mask: WordMask) -> Float[Tensor, " batch"]:
        """The cross entropy of all pairs of candidates; what has a role is a candidate in any case."""
        spans, widths = scores.spans.flatten(1), scores.spans.shape[2]
        gold = targets.firsts * widths + targets.lasts - targets.firsts
        arguments, there = _best(spans, mask, self.argument_ratio, targets.rows, gold)
        words, chosen = _best(
            scores.predicates.masked_fill(~mask, -torch.inf),
            mask,
            self.predicate_ratio,
            targets.rows,
            targets.predicates,
        )
        rows, places = chosen.nonzero(as_tuple=True)
        pairs = self._pairs(scores, rows, words[rows, places], _candidates(arguments, widths, there))
        # The number of each word among the predicates, and of each span among its sentence's arguments.
        frames = torch.zeros_like(scores.predicates, dtype=torch.long)
        frames[rows, words[rows, places]] = torch.arange(len(rows), device=rows.device)
        numbers = torch.zeros_like(spans, dtype=torch.long)
        numbers.scatter_(
            1, arguments, torch.arange(arguments.shape[1], device=rows.device).expand_as(arguments)
        )
        labels = torch.zeros(pairs.shape[:2], dtype=torch.long, device=rows.device)
        roles = torch.where(targets.roles >= 0, targets.roles + 1, UNKNOWN)
        labels[frames[targets.rows, targets.predicates], numbers[targets.rows, gold]] = roles
        labels = labels.masked_fill(~there[rows], UNKNOWN)
        losses = label_losses(functional.pad(pairs, (1, 0)), labels).sum(1)
        summed = scores.predicates.new_zeros(len(mask)).index_add(0, rows, losses)
        if self.sense is not None:
            of_senses = self.sense.loss(scores.words, targets.frame_rows, targets.frames, targets.senses)
            summed = summed.index_add(0, targets.frame_rows, of_senses)
        return summed

    def structure_score(
        self, scores: SpanPairScores, targets: RankedBatch, mask: WordMask, label: int | None = None
    ) -> StructureScore:
        """The scores of the roles, each with those of its predicate and its span, which are not pruned."""
        rows, roles = targets.rows, targets.roles
        pairs = scores_at(
            self._pairs_at(scores, rows, targets.predicates, targets.firsts, targets.lasts), roles
        )
        of_senses = scores.predicates.new_zeros(0)
        known = targets.senses[:0]
        if self.sense is not None and (label is None or label >= len(self.labels)):
            known = targets.senses
            of_senses = scores_at(self.sense.scores(scores.words, targets.frame_rows, targets.frames), known)
        chosen = roles >= 0 if label is None else roles == label
        with_sense = known >= 0 if label is None else known == label - len(self.labels)
        return sums_by_sentence(
            torch.cat((pairs[chosen], of_senses[with_sense])),
            torch.cat((rows[chosen], targets.frame_rows[: len(known)][with_sense])),
            len(mask),
        )

    @in_steps
    def decode(self, scores: SpanPairScores, mask: WordMask) -> Steps[list[tuple[Frame, ...]]]:
        """A predicate without arguments is none."""
        [chosen] = yield (self._predicates(scores, mask),)
        frames = yield from self._frames(scores, mask, np.argwhere(chosen))
        return [tuple([frame for frame in of_row if frame.arguments]) for of_row in frames]

    @in_steps
    def decode_given(
        self,
        scores: SpanPairScores,
        mask: WordMask,
        gold: Sequence[tuple[Frame, ...] | None],
        decoded: Sequence[tuple[Frame, ...]],
    ) -> Steps[list[tuple[Frame, ...]]]:
        given = [
            (row, predicate)
            for row, frames in enumerate(gold)
            for predicate in sorted({frame.predicate for frame in frames or ()})
        ]
        return (yield from self._frames(scores, mask, np.array(given, dtype=np.int64).reshape(-1, 2)))

    def alternatives(
        self, scores: SpanPairScores, mask: WordMask, decoded: Sequence[tuple[Frame, ...]], k: int
    ) -> list[tuple[Item, ...]]:
        """Each predicted predicate with the probability that one of its candidates has a role, as if these
        were independent, its sense by a softmax, and the roles of its arguments, with `O`, by one each."""
        frames = [(row, frame) for row, of_row in enumerate(decoded) for frame in of_row]
        places = torch.tensor([(row, frame.predicate) for row, frame in frames], device=mask.device)
        rows, words = places.long().view(-1, 2).unbind(1)
        arguments = self._arguments(scores, mask)
        none = functional.pad(self._pairs(scores, rows, words, arguments), (1, 0)).log_softmax(2)[:, :, 0]
        some = -torch.expm1(none.masked_fill(~arguments.there[rows], 0.0).sum(1))
        of_predicates = self.items_at(scores.words, rows, words, some.clamp(0, 1), k)
        spans = [(row, frame.predicate, s.start, s.end - 1) for row, frame in frames for s in frame.arguments]
        index = torch.tensor(spans, dtype=torch.long, device=mask.device).view(-1, 4)
        of_pairs = functional.pad(self._pairs_at(scores, *index.unbind(1)), (1, 0)).softmax(1)
        roles = iter(k_best(of_pairs, ("O", *self.labels.names), k))
        found: list[list[Item]] = [[] for _ in decoded]
        for (row, frame), items in zip(frames, of_predicates, strict=True):
            found[row] += items
            found[row] += [
                Item("role", s.start, s.end, next(roles), frame.predicate) for s in frame.arguments
            ]
        return [tuple(items) for items in found]

    def _predicates(self, scores: SpanPairScores, mask: WordMask) -> WordMask:
        """Which words are candidates for predicates."""
        words, there = _best(scores.predicates.masked_fill(~mask, -torch.inf), mask, self.predicate_ratio)
        return torch.zeros_like(mask).scatter_(1, words, there)

    def _arguments(self, scores: SpanPairScores, mask: WordMask) -> Candidates:
        found, there = _best(scores.spans.flatten(1), mask, self.argument_ratio)
        return _candidates(found, scores.spans.shape[2], there)

    def _pairs(
        self,
        scores: SpanPairScores,
        rows: Int[Tensor, " frame"],
        predicates: Int[Tensor, " frame"],
        arguments: Candidates,
    ) -> Float[Tensor, "frame candidate role"]:
        """The scores of all roles of each predicate's pairs with the candidates of its sentence."""
        of_spans, of_predicates = scores.parts.split([3 * self.dim, self.dim], 2)
        table = self.widths.weight[:, self.dim :]
        spans = _spans(of_spans, arguments.firsts, arguments.lasts, table).index_select(0, rows)
        first = spans + at_words(of_predicates, rows, predicates)[:, None]
        widths = scores.spans.shape[2]
        places = arguments.firsts * widths + arguments.lasts - arguments.firsts
        # A place without a candidate has the score -inf, and no pair.
        alone = scores.spans.flatten(1).gather(1, places).masked_fill(~arguments.there, 0.0)
        alone = alone.index_select(0, rows) + scores.predicates[rows, predicates][:, None]
        return self.role(first)[:, :, : len(self.labels)] + alone[:, :, None]

    def _pairs_at(
        self,
        scores: SpanPairScores,
        rows: Int[Tensor, " pair"],
        predicates: Int[Tensor, " pair"],
        firsts: Int[Tensor, " pair"],
        lasts: Int[Tensor, " pair"],
    ) -> Float[Tensor, "pair role"]:
        """The scores of all roles of given pairs."""
        of_spans, of_predicates = scores.parts.split([3 * self.dim, self.dim], 2)
        table = self.widths.weight[:, self.dim :]
        spans = _spans(of_spans.index_select(0, rows), firsts[:, None], lasts[:, None], table)
        first = spans + at_words(of_predicates, rows, predicates)[:, None]
        alone = scores.spans[rows, firsts, lasts - firsts] + scores.predicates[rows, predicates]
        return self.role(first)[:, 0, : len(self.labels)] + alone[:, None]

    def _frames(
        self, scores: SpanPairScores, mask: WordMask, places: Int[np.ndarray, "frame 2"]
    ) -> Steps[list[tuple[Frame, ...]]]:
        """The frames of predicates at these places, each a row and a word."""
        if not len(places):
            return [()] * len(mask)
        [[rows, predicates]] = yield (np.ascontiguousarray(places.T),)
        arguments = self._arguments(scores, mask)
        best = self.best_senses(scores.words, rows, predicates)
        of_pairs: list[Tensor] = []
        if len(self.labels):
            pairs = self._pairs(scores, rows, predicates, arguments).masked_fill(
                ~arguments.there[rows][:, :, None], -torch.inf
            )
            ends = arguments.lasts + 1
            of_pairs = [*pairs.max(2), arguments.firsts.index_select(0, rows), ends.index_select(0, rows)]
        senses, *candidates = yield best, *of_pairs
        chosen: list[list[Span]] = [[] for _ in places]
        if candidates:
            weights, roles, firsts, ends = candidates
            if self.overlaps:
                taken = np.argwhere(weights > 0)
            else:
                taken = select_arguments(weights, firsts, ends, places[:, 1].copy(), mask.shape[1])
            for frame, number in taken.tolist():
                first, end, role = (column[frame, number].item() for column in (firsts, ends, roles))
                chosen[frame].append(Span(first, end, self.labels[role]))
        return self.frames_at(places, senses, [tuple(sorted(spans)) for spans in chosen], len(mask))


def _spans(
    parts: Float[Tensor, "row word part"],
    firsts: Int[Tensor, "row span"],
    lasts: Int[Tensor, "row span"],
    widths: Float[Tensor, "width dim"],
) -> Float[Tensor, "row span dim"]:
    """The first layer over spans: what a span's first word, last word, mean and width add up to."""
    first, last, mean = parts.chunk(3, 2)
    sums = functional.pad(at_least_float32(mean).cumsum(1), (0, 0, 1, 0))
    lengths = (lasts - firsts).clamp(min=0) + 1
    means = (_at(sums, lasts + 1) - _at(sums, firsts)) / lengths[:, :, None]
    return _at(first, firsts) + _at(last, lasts) + means + functional.embedding(lengths - 1, widths)


def _at(
    vectors: Float[Tensor, "row place dim"], places: Int[Tensor, "row span"]
) -> Float[Tensor, "row span dim"]:
    rows, width, size = vectors.shape
    index = places + torch.arange(rows, device=places.device)[:, None] * width
    return vectors.flatten(0, 1).index_select(0, index.flatten()).view(rows, places.shape[1], size)


def _best(
    scores: Float[Tensor, "batch place"],
    mask: WordMask,
    ratio: float,
    rows: Int[Tensor, " item"] | None = None,
    items: Int[Tensor, " item"] | None = None,
) -> tuple[Int[Tensor, "batch candidate"], Bool[Tensor, "batch candidate"]]:
    """The places with the highest scores in each sentence, and which of them are candidates.

    They are `ratio` times its words, and one at least, without impossible ones. `items` in sentences `rows`
    are candidates in any case.
    """
    ranked = scores.detach()
    numbers = (mask.sum(1) * ratio).floor().long().clamp(min=1)
    most = max(1, int(torch.tensor(mask.shape[1]) * ratio))  # of a sentence without padding
    if rows is not None and items is not None:
        needed = torch.zeros_like(ranked, dtype=torch.bool)
        needed[rows, items] = True
        ranked = ranked.masked_fill(needed, torch.inf)
        numbers = torch.maximum(numbers, needed.sum(1))
        most = int(numbers.max())
    best = ranked.topk(min(most, ranked.shape[1]), 1)
    places = torch.arange(best.indices.shape[1], device=ranked.device)
    return best.indices, (places < numbers[:, None]) & (best.values > -torch.inf)


def _candidates(
    places: Int[Tensor, "batch candidate"], widths: int, there: Bool[Tensor, "batch candidate"]
) -> Candidates:
    firsts = torch.where(there, places // widths, 0)
    return Candidates(firsts, firsts + torch.where(there, places % widths, 0), there)


def select_arguments(
    weights: Float[np.ndarray, "frame candidate"],
    firsts: Int[np.ndarray, "frame candidate"],
    ends: Int[np.ndarray, "frame candidate"],
    predicates: Int[np.ndarray, " frame"],
    words: int,
) -> Int[np.ndarray, "argument 2"]:
    """The candidates of each frame with the greatest sum of weights, without overlaps.

    Candidates that cover the predicate or have no gain are left out. Exact, by dynamic programming over ends
    (weighted interval scheduling); returns rows (frame, candidate).
    """
    order = np.argsort(ends, axis=1, kind="stable")
    return _select(weights.astype(np.float64), firsts, ends, predicates, order, words)


@compiled
@no_type_check
def _select(weights, firsts, ends, predicates, order, words):
    best, chosen = np.zeros(words + 1), np.full(words + 1, -1)
    taken = []
    for frame in range(len(weights)):
        candidate = 0
        for end in range(1, words + 1):
            best[end], chosen[end] = best[end - 1], -1
            while candidate < order.shape[1] and ends[frame, order[frame, candidate]] <= end:
                number = order[frame, candidate]
                candidate += 1
                first, weight = firsts[frame, number], weights[frame, number]
                covers = first <= predicates[frame] < ends[frame, number]
                if weight > 0 and not covers and best[first] + weight > best[end]:
                    best[end], chosen[end] = best[first] + weight, number
        end = words
        while end > 0:
            if chosen[end] < 0:
                end -= 1
            else:
                taken.append((frame, chosen[end]))
                end = firsts[frame, chosen[end]]
    table = np.empty((len(taken), 2), dtype=np.int64)
    for index in range(len(taken)):
        table[index, 0], table[index, 1] = taken[index]
    return table

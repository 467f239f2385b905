"""Constituency parsing: a span CRF over binarised brackets, then labels for the brackets of the best tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from mtl.tasks.biaffine import Biaffine, Mlp
from mtl.tasks.binarise import NULL, binarise, constituents, restore
from mtl.tasks.cky import best_brackets
from mtl.tasks.decoders.alternatives import Item, k_best
from mtl.tasks.decoders.collate import one_after_another
from mtl.tasks.decoders.decoder import Decoder, StructureScore, scores_at, summed
from mtl.tasks.in_words import counted
from mtl.tasks.precision import at_least_float32
from mtl.tasks.sentence import Sentence, Span
from mtl.tasks.span_crf import span_crf_loss, span_marginals
from mtl.tasks.task import UNKNOWN, Labels


class SpanTargets(NamedTuple):
    """The 2n - 1 brackets of a binarised tree: boundaries and the label's index."""

    starts: Int[np.ndarray, " span"]
    ends: Int[np.ndarray, " span"]
    labels: Int[np.ndarray, " span"]


class SpanBatch(NamedTuple):
    """`SpanTargets` of a batch one after the other (no padding), with their sentence's row."""

    rows: Int[Tensor, " span"]
    starts: Int[Tensor, " span"]
    ends: Int[Tensor, " span"]
    labels: Int[Tensor, " span"]


class SpanScores(NamedTuple):
    """Scores of every span as a bracket, and the vectors of all boundaries that labels are scored from."""

    brackets: Float[Tensor, "batch boundary boundary"]
    starts: Float[Tensor, "batch boundary label_dim"]
    ends: Float[Tensor, "batch boundary label_dim"]


def bracket_targets(sentence: Sentence, layer: str, labels: Labels) -> SpanTargets:
    """The brackets of an annotated sentence's binarised tree.

    Raises `ValueError` if the sentence has no tree over its words, or its constituents cannot be binarised.
    """
    tree = sentence.layer(layer)
    if tree is None or sum(1 for _ in tree.leaves()) != len(sentence):
        raise ValueError(f"sentence '{sentence.id}': needs a tree over its {counted(len(sentence), 'word')}")
    brackets = binarise(constituents(tree), len(sentence))
    table = np.array([(start, end, labels.index(label)) for start, end, label in brackets])
    return SpanTargets(*table.reshape(-1, 3).T.astype(np.int64))


def collate_brackets(targets: Sequence[SpanTargets]) -> SpanBatch:
    """The targets of a batch."""
    return SpanBatch(*one_after_another(targets))


class ConDecoder(Decoder):
    """Two stages (Zhang et al. 2020): brackets by a span CRF, labels only for the brackets of one tree.

    A boundary is represented by the words on both of its sides; learned vectors stand in for a word left of
    the first and right of the last. A bracket's label is scored from the sum of its two boundaries' vectors
    by one hidden layer, at a fraction of the cost of a bilinear form per label.

    `viterbi` decodes the most probable bracketing, `mbr` (minimum Bayes risk) the one with the greatest
    expected number of correct brackets: the sum of their marginals (Goodman 1996).
    """

    narrow = True

    def __init__(
        self,
        hidden: int,
        labels: Labels,
        span_dim: int,
        label_dim: int,
        dropout: float,
        decoding: Literal["viterbi", "mbr"] = "viterbi",
    ) -> None:
        super().__init__()
        self.decoding = decoding
        self.labels = labels
        self.span_dim = span_dim
        self.label_dim = label_dim
        self.edges = nn.Parameter(torch.randn(2, hidden) / hidden**0.5)
        self.span = Mlp(2 * hidden, 2 * span_dim, dropout)
        self.bracket = Biaffine(span_dim, 1)
        self.boundary = nn.Linear(2 * hidden, 2 * label_dim)
        self.dropout = nn.Dropout(dropout)
        self.label = nn.Linear(label_dim, len(labels))

    def forward(
        self, words: Float[Tensor, "batch word hidden"], mask: Bool[Tensor, "batch word"]
    ) -> SpanScores:
        left, right = self.edges.to(words.dtype)
        before = torch.cat([left.expand(words.shape[0], 1, -1), words], 1)
        after = torch.cat(
            [torch.where(mask[:, :, None], words, right), right.expand(words.shape[0], 1, -1)], 1
        )
        boundaries = torch.cat([before, after], 2)
        starts, ends = self.span(boundaries).split(self.span_dim, 2)
        brackets = at_least_float32(self.bracket(starts, ends).squeeze(3))
        label_starts, label_ends = self.boundary(boundaries).split(self.label_dim, 2)
        return SpanScores(brackets, label_starts, label_ends)

    def loss(
        self, scores: SpanScores, targets: SpanBatch, mask: Bool[Tensor, "batch word"]
    ) -> Float[Tensor, " batch"]:
        rows, starts, ends, labels = targets
        brackets = span_crf_loss(scores.brackets, mask.sum(1), rows, starts, ends)
        label_losses = functional.cross_entropy(
            self._label_scores(scores, rows, starts, ends), labels, ignore_index=UNKNOWN, reduction="none"
        )
        return brackets.index_add(0, rows, label_losses.to(brackets.dtype))

    def structure_score(
        self,
        scores: SpanScores,
        targets: SpanBatch,
        mask: Bool[Tensor, "batch word"],
        label: int | None = None,
    ) -> StructureScore:
        if label is not None:
            targets = SpanBatch(*(column[targets.labels == label] for column in targets))
        rows, starts, ends, labels = targets
        brackets = scores.brackets[rows, starts, ends]
        of_labels = scores_at(self._label_scores(scores, rows, starts, ends), labels)
        return summed(brackets + of_labels, rows, len(mask))

    def decode(self, scores: SpanScores, mask: Bool[Tensor, "batch word"]) -> list[tuple[Span, ...]]:
        lengths = mask.sum(1).cpu().numpy()
        brackets = scores.brackets.detach()
        if self.decoding == "mbr":
            brackets = span_marginals(brackets, mask.sum(1))
        best = best_brackets(brackets.cpu().numpy(), lengths)
        indices = torch.from_numpy(np.stack(best)).to(mask.device)
        chosen = self._label_scores(scores, *indices).argmax(1).cpu().tolist()
        names = self.labels.names
        labelled = [
            Span(start, end, names[label])
            for start, end, label in zip(best.starts.tolist(), best.ends.tolist(), chosen, strict=True)
        ]
        last = np.maximum(2 * lengths - 1, 0).cumsum().tolist()
        return [restore(labelled[a:b]) for a, b in zip([0, *last], last, strict=False)]

    def alternatives(
        self,
        scores: SpanScores,
        mask: Bool[Tensor, "batch word"],
        decoded: Sequence[tuple[Span, ...]],
        k: int,
    ) -> list[tuple[Item, ...]]:
        """Chains of labels (`S VP`) of each predicted constituent.

        The probability of a chain is the marginal of the span as a bracket times the softmax over chains, one
        of which stands for brackets that are no constituents.
        """
        spans = [dict.fromkeys((start, end) for start, end, _ in of_tree) for of_tree in decoded]
        places = [(row, *span) for row, of_tree in enumerate(spans) for span in of_tree]
        index = torch.tensor(places, dtype=torch.long, device=mask.device).view(-1, 3)
        rows, starts, ends = index.unbind(1)
        marginals = span_marginals(scores.brackets.detach(), mask.sum(1))[rows, starts, ends]
        chains = self._label_scores(scores, rows, starts, ends).softmax(1)
        kept = [number for number, name in enumerate(self.labels.names) if name != NULL]
        names = [self.labels[number] for number in kept]
        best = iter(k_best((marginals[:, None] * chains)[:, kept], names, k))
        return [
            tuple([Item("constituent", start, end, next(best)) for start, end in of_tree])
            for of_tree in spans
        ]

    def _label_scores(
        self,
        scores: SpanScores,
        rows: Int[Tensor, " span"],
        starts: Int[Tensor, " span"],
        ends: Int[Tensor, " span"],
    ) -> Float[Tensor, "span label"]:
        first = rows * scores.starts.shape[1]
        left = scores.starts.flatten(0, 1).index_select(0, first + starts)
        right = scores.ends.flatten(0, 1).index_select(0, first + ends)
        return at_least_float32(self.label(self.dropout(functional.leaky_relu(left + right, 0.1))))

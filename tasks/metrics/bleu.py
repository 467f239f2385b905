"""BLEU and chrF as sacreBLEU counts them (Papineni et al. 2002; Popović 2015; Post 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from jaxtyping import Float, Int
from sacrebleu.metrics import BLEU, CHRF
from torch import Tensor

from tasks.decoders.translator import Reference
from tasks.metrics.metric import TaskMetric
from tasks.sentence import Sentence

_ORDER = 4
"""Longest n-gram of BLEU."""
_BLEU_COUNTS, _CHRF_COUNTS = 2 + 2 * _ORDER, 18
"""BLEU: lengths of translation and reference, then matches and n-grams by n. chrF: 3 counts for 6 orders."""


@cache
def _bleu() -> BLEU:
    return BLEU()


@cache
def _chrf() -> CHRF:
    return CHRF()


class Bleu(TaskMetric):
    """BLEU and chrF of raw text, cased, in sacreBLEU's own tokenisation; cross-entropy in nats per piece.

    The counts of all sentences are summed; no text is kept. Cross-entropy is that of the references.
    """

    bleu: Tensor
    chrf: Tensor
    nats: Tensor
    pieces: Tensor

    def __init__(self, layer: str) -> None:
        super().__init__()
        self.layer = layer
        self.add_state("bleu", torch.zeros(_BLEU_COUNTS, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("chrf", torch.zeros(_CHRF_COUNTS, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("nats", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("pieces", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(
        self,
        predicted: Sequence[str],
        gold: Sequence[Sentence],
        given: Sequence[Reference] | None = None,
    ) -> None:
        references = [str(sentence.layer(self.layer)) for sentence in gold]
        self.bleu += torch.from_numpy(_counts(_bleu(), predicted, references, _BLEU_COUNTS).sum(0))
        self.chrf += torch.from_numpy(_counts(_chrf(), predicted, references, _CHRF_COUNTS).sum(0))
        for reference in given or ():
            self.nats += reference.nats
            self.pieces += reference.pieces

    def compute(self) -> dict[str, float]:
        chrf = _chrf()._compute_score_from_stats([int(count) for count in self.chrf.tolist()])
        return {
            "bleu": float(self.score(self.bleu.cpu().numpy()[None])[0]),
            "chrf": float(chrf.score),
            "cross_entropy": float(self.nats / self.pieces.clamp_min(1)),
        }

    def sentence_counts(
        self, predicted: Sequence[str], gold: Sequence[Sentence]
    ) -> Int[np.ndarray, "sentence count"]:
        references = [str(sentence.layer(self.layer)) for sentence in gold]
        return _counts(_bleu(), predicted, references, _BLEU_COUNTS).astype(np.int64)

    def score(self, counts: Float[np.ndarray, "draw count"]) -> Float[np.ndarray, " draw"]:
        """BLEU with sacreBLEU's exponential smoothing: the k-th order without a match has 1 / 2^k matches."""
        length, reference_length = counts[:, 0], counts[:, 1]
        matches, ngrams = counts[:, 2 : 2 + _ORDER], counts[:, 2 + _ORDER :]
        unmatched = (matches == 0) & (ngrams > 0)
        smoothed = np.where(unmatched, 0.5 ** np.cumsum(unmatched, axis=1), matches)
        precision = smoothed / np.maximum(ngrams, 1)
        log_mean = np.log(np.maximum(precision, np.finfo(np.float64).tiny)).mean(1)
        ratio = reference_length / np.maximum(length, 1)
        brevity = np.where(length < reference_length, np.exp(1 - ratio), 1.0)
        # sacreBLEU's score is 0 if an order has no n-gram at all, or if nothing matches.
        possible = (length > 0) & (ngrams > 0).all(1) & (matches > 0).any(1)
        return np.where(possible, 100.0 * brevity * np.exp(log_mean), 0.0)


def signatures() -> dict[str, str]:
    """How BLEU and chrF were counted: the signatures that sacreBLEU prints beside its scores."""
    for metric in (_bleu(), _chrf()):
        metric.corpus_score(["a"], [["a"]])  # the number of references is known after the first score
    return {"bleu": str(_bleu().get_signature()), "chrf": str(_chrf().get_signature())}


def _counts(
    metric: BLEU | CHRF, predicted: Sequence[str], references: Sequence[str], width: int
) -> Float[np.ndarray, "sentence count"]:
    if not predicted:
        return np.zeros((0, width))
    counts = metric._extract_corpus_statistics(list(predicted), [list(references)])
    return np.array(counts, dtype=np.float64)

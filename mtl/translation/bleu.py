"""BLEU and chrF as sacreBLEU counts them (Papineni et al. 2002; Popović 2015; Post 2018)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from jaxtyping import Float, Int
from sacrebleu.metrics import BLEU, CHRF
from torch import Tensor

from mtl.tasks.metrics import TaskMetric
from mtl.tasks.sentence import Sentence
from mtl.translation.translator import Reference

_ORDER = 4
"""Longest n-gram of BLEU."""
_DOWNLOADED = frozenset({"spm", "flores101", "flores200", "spBLEU-1K"})
"""Tokenisers whose models sacreBLEU fetches."""
_BLEU_COUNTS, _CHRF_COUNTS = 2 + 2 * _ORDER, 18
"""BLEU: lengths of translation and reference, then matches and n-grams by n. chrF: 3 counts for 6 orders."""


_LANGUAGES = {"zh": "zh", "cmn": "zh", "yue": "zh", "ja": "ja-mecab", "jpn": "ja-mecab", "ko": "ko-mecab",
              "kor": "ko-mecab"}  # fmt: skip
"""sacreBLEU's tokeniser for languages that do not separate words by spaces, or not only."""


def tokenizer_for(target: str) -> str:
    """sacreBLEU's tokeniser for a language, by its code with or without a script or country (`zh_CN`).

    It is 13a, sacreBLEU's own default, for languages without one of their own and for unknown ones.
    """
    code = re.split("[-_]", target.lower().replace("zho", "zh"), maxsplit=1)[0]
    return _LANGUAGES.get(code, "13a")


def require_tokenizer(tokenize: str, key: str) -> None:
    """Raise `ValueError` in one line, beginning with `key`, if sacreBLEU lacks what a tokeniser needs."""
    if tokenize not in BLEU.TOKENIZERS or tokenize in _DOWNLOADED:
        known = ", ".join(name for name in sorted(BLEU.TOKENIZERS) if name not in _DOWNLOADED)
        raise ValueError(f"{key} is no tokeniser of sacreBLEU that needs no download: use one of {known}")
    try:
        bleu(tokenize)
    except (ImportError, RuntimeError) as error:
        extra = tokenize.removesuffix("-mecab")
        raise ValueError(
            f"{key} needs a package that is not installed: pip install 'sacrebleu[{extra}]', or use "
            "tokenize=char"
        ) from error


@cache
def bleu(tokenize: str) -> BLEU:
    """sacreBLEU's BLEU with one of its tokenisers."""
    return BLEU(tokenize=tokenize)


@cache
def _chrf() -> CHRF:
    return CHRF()


class Bleu(TaskMetric):
    """BLEU and chrF of raw text, cased, in a tokenisation of sacreBLEU's; cross-entropy in nats per piece.

    The counts of all sentences are summed; no text is kept. Cross-entropy is that of the references. Raises
    `ValueError` for a tokenisation that sacreBLEU does not have here (`require_tokenizer`).
    """

    bleu: Tensor
    chrf: Tensor
    nats: Tensor
    pieces: Tensor

    def __init__(self, layer: str, tokenize: str = "13a") -> None:
        super().__init__()
        require_tokenizer(tokenize, f"tokenize={tokenize}")
        self.layer, self.tokenize = layer, tokenize
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
        self.bleu += torch.from_numpy(
            _counts(bleu(self.tokenize), predicted, references, _BLEU_COUNTS).sum(0)
        )
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
        return _counts(bleu(self.tokenize), predicted, references, _BLEU_COUNTS).astype(np.int64)

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


def signatures(tokenize: str = "13a") -> dict[str, str]:
    """How BLEU and chrF were counted: the signatures that sacreBLEU prints beside its scores."""
    for metric in (bleu(tokenize), _chrf()):
        metric.corpus_score(["a"], [["a"]])  # the number of references is known after the first score
    return {"bleu": str(bleu(tokenize).get_signature()), "chrf": str(_chrf().get_signature())}


def _counts(
    metric: BLEU | CHRF, predicted: Sequence[str], references: Sequence[str], width: int
) -> Float[np.ndarray, "sentence count"]:
    if not predicted:
        return np.zeros((0, width))
    counts = metric._extract_corpus_statistics(list(predicted), [list(references)])
    return np.array(counts, dtype=np.float64)

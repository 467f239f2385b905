"""BLEU and chrF against sacreBLEU's own corpus scores, also of resampled corpora."""

from __future__ import annotations

import numpy as np
import pytest
from sacrebleu import corpus_bleu, corpus_chrf

from tasks.decoders.translator import Reference
from tasks.metrics.bleu import Bleu, signatures
from tasks.sentence import Label, Sentence

REFERENCES = [
    "Ein Mann mit einem orangefarbenen Hut, der etwas anstarrt.",
    "Ein Boston Terrier läuft über saftig-grünes Gras.",
    "Fünf Leute stehen herum",
    "",
    "Zwei Hunde",
]
PREDICTED = [
    "Ein Mann in einem orangefarbenen Hut starrt etwas an.",
    "Ein Terrier läuft über grünes Gras vor einem Zaun.",
    "",
    "nichts",
    "Zwei Hunde",
]


def gold(references: list[str]) -> list[Sentence]:
    return [Sentence(("x",), labels=(Label("translate", text),)) for text in references]


def test_the_scores_of_a_corpus_are_those_of_sacrebleu():
    metric = Bleu("translate")
    metric.update(PREDICTED[:2], gold(REFERENCES[:2]), [Reference(3.0, 2), Reference(1.0, 6)])
    metric.update(PREDICTED[2:], gold(REFERENCES[2:]), None)
    figures = metric.compute()
    assert figures["bleu"] == pytest.approx(corpus_bleu(PREDICTED, [REFERENCES]).score, abs=1e-9)
    assert figures["chrf"] == pytest.approx(corpus_chrf(PREDICTED, [REFERENCES]).score, abs=1e-9)
    assert figures["cross_entropy"] == 0.5


def test_the_scores_of_draws_are_those_of_the_drawn_corpora():
    metric = Bleu("translate")
    counts = metric.sentence_counts(PREDICTED, gold(REFERENCES))
    draws = np.random.default_rng(1).integers(0, 5, (40, 5))
    draws[0] = 3  # nothing matches
    draws[1] = 4  # too short for n-grams of order 3
    draws[2] = 2  # no translation
    scores = metric.score(counts[draws].sum(1).astype(np.float64))
    for draw, score in zip(draws, scores, strict=True):
        hypotheses, references = [[texts[index] for index in draw] for texts in (PREDICTED, REFERENCES)]
        assert score == pytest.approx(corpus_bleu(hypotheses, [references]).score, abs=1e-9)


def test_signatures_state_how_figures_were_counted():
    assert signatures()["bleu"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert "nc:6|nw:0" in signatures()["chrf"]

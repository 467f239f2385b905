"""BLEU and chrF against sacreBLEU's own corpus scores, also of resampled corpora."""

from __future__ import annotations

import numpy as np
import pytest
from sacrebleu import corpus_bleu, corpus_chrf

from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.tasks.sentence import Sentence
from mtl.translation.bleu import Bleu, require_tokenizer, signatures, tokenizer_for
from mtl.translation.config import check_translation
from mtl.translation.task import Translate
from mtl.translation.translator import Reference

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
    return [Sentence(("x",), translate=text) for text in references]


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


@pytest.mark.parametrize("tokenize", ["13a", "zh", "char", "intl"])
def test_words_are_found_as_the_language_of_the_translation_has_them(tokenize):
    references, predicted = ["我们在巴黎吃饭。", "他很高兴。"], ["我们在巴黎吃面。", "他很高兴。"]
    metric = Bleu("translate", tokenize)
    metric.update(predicted, gold(references))
    expected = corpus_bleu(predicted, [references], tokenize=tokenize).score
    assert float(metric.compute()["bleu"]) == pytest.approx(expected, abs=1e-9)
    assert f"|tok:{tokenize}|" in signatures(tokenize)["bleu"]
    assert (expected > 50) == (tokenize in ("zh", "char"))


def test_the_tokeniser_follows_the_target():
    codes = {
        "13a": ("", "de", "de_DE", "deu_Latn", "en"),
        "zh": ("zh", "ZH", "zh_CN", "zho_Hans", "cmn", "yue_Hant"),
        "ja-mecab": ("ja", "ja_XX", "jpn_Jpan"), "ko-mecab": ("ko", "ko_KR", "kor_Hang"),
    }  # fmt: skip
    for tokenize, targets in codes.items():
        assert {Translate(target=target).tokenizer() for target in targets} == {tokenize}
        assert {tokenizer_for(target) for target in targets} == {tokenize}
    assert Translate(target="zh", tokenize="char").tokenizer() == "char"


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            Translate(tokenize="14a"),
            "tokenize=14a is no tokeniser of sacreBLEU that needs no download",
        ),
        (Translate(tokenize="spm"), "tokenize=spm is no tokeniser"),
    ],
)
def test_what_cannot_be_counted_is_said_in_one_line(task, message):
    with pytest.raises(InputError, match=message):
        check_translation(TrainConfig(tasks=("translate",), translate=task))
    with pytest.raises(ValueError, match=message):
        task.metric()


def test_a_tokeniser_without_its_package_is_named(monkeypatch):
    def missing(tokenize):
        raise RuntimeError("MeCab is not installed\nmore lines")

    monkeypatch.setattr("mtl.translation.bleu.bleu", missing)
    message = r"^translate.tokenize=auto with translate.target=ja needs a package .* 'sacrebleu\[ja\]'"
    with pytest.raises(InputError, match=message):
        check_translation(TrainConfig(tasks=("translate",), translate=Translate(target="ja")))
    with pytest.raises(ValueError, match=r"^key needs"):
        require_tokenizer("ko-mecab", "key")

"""Encoder-decoder models in an encoder's place: scores, searches, heads, files, and what is refused.
Vocabularies that two languages share.
"""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional
from transformers import BertConfig, MBart50Tokenizer, MBartTokenizer, NllbTokenizer

from mtl.errors import InputError
from mtl.heads.prune import prune_heads
from mtl.models.batches import collate, examples
from mtl.models.derived import apply_masks
from mtl.models.encoder import Encoder
from mtl.models.evaluate import batches, evaluate_model
from mtl.models.joint import JointModel
from mtl.models.passes import in_evaluation_mode
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import UNKNOWN, Labels
from mtl.translation.config import Seq2SeqConfig
from mtl.translation.pieces import (
    END,
    PAD,
    UNKNOWN_PIECE,
    ParallelTokenizer,
    require_language_codes,
    require_languages,
    train_vocabulary,
)
from mtl.translation.seq2seq import Seq2Seq, from_scratch
from mtl.translation.task import Translate
from tests.mtl import tiny
from tests.mtl.translation.digits import pair

PAIRS = [pair(digits) for digits in ("12", "7", "3041", "99", "580")]
SENTENCES = [Sentence(tuple(source.split()), translate=target) for source, target in PAIRS]
ARCHITECTURES = (
    "marian",
    "t5",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("bart", "mbart", "m2m_100", "pegasus", "mt5")),
)


def seq2seq(architecture: str = "marian") -> Seq2Seq:
    """A random model of 2 + 2 layers of 2 heads, in double precision."""
    tokenizer = train_vocabulary([text for both in PAIRS for text in both], 300, 64)
    torch.manual_seed(1)
    transformer = from_scratch(Seq2SeqConfig(architecture, 2, None, 2, 16, 24, 0.1, 300), tokenizer)
    tiny.shake(transformer)
    return Seq2Seq(transformer.double(), tokenizer, "digits", "names").eval()


def joint(encoder: Seq2Seq) -> JointModel:
    return JointModel(encoder, {"translate": Translate(beam=3)}, {"translate": Labels(())}).eval()


def one_batch(model: JointModel):
    corpus = examples(SENTENCES, model.encoder.tokenizer, model.tasks, model.labels)
    return collate(corpus, model.encoder.tokenizer, model.tasks)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_last_layer_is_the_decoders(architecture):
    model = seq2seq(architecture)
    decoder = model.transformer.get_decoder()
    assert model.last_layer() is list(decoder.block if hasattr(decoder, "block") else decoder.layers)[-1]


def test_a_tap_is_made_anew_only_if_heads_have_changed():
    model = seq2seq()
    tap = model.tap
    assert model.tap is tap
    prune_heads(model.transformer, {1: [0], 4: [1]})
    assert (model.tap.remaining, model.tap) == ([(0, 1), (1,), (0, 1), (0, 1), (0,), (0, 1)], model.tap)
    assert model.tap is not tap


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_loss_is_that_of_transformers(architecture):
    model = joint(seq2seq(architecture))
    batch = one_batch(model)
    pieces = batch.subwords.pieces
    with torch.no_grad():
        losses = model.losses(batch, model(batch))
        theirs = model.encoder.transformer(
            input_ids=batch.subwords.input_ids, attention_mask=batch.subwords.attention_mask, labels=pieces
        )
    assert batch.loss_units["translate"] == int((pieces != UNKNOWN).sum())
    assert losses["translate"].item() == pytest.approx(float(theirs.loss), rel=1e-6)
    scores = theirs.logits.flatten(0, 1)
    smoothed = functional.cross_entropy(scores, pieces.flatten(), label_smoothing=0.1)
    model.decoders.train()
    with torch.no_grad():
        assert model.losses(batch, model(batch))["translate"].item() == pytest.approx(
            float(smoothed), rel=1e-6
        )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_gates_of_1_change_nothing_and_a_cut_model_translates_as_the_masked_one(architecture):
    model = joint(seq2seq(architecture))
    batch, sites, heads = one_batch(model), model.encoder.layers, model.encoder.heads
    assert (sites, heads) == (6, 2)
    mask = torch.ones(sites, heads, dtype=torch.float64)
    with torch.no_grad():
        assert torch.equal(model(batch)["translate"].scores, model(batch, mask)["translate"].scores)
        # A layer of every kind without heads, and one head less in another.
        mask[[0, 2, 5]] = 0.0
        mask[1, 0] = mask[3, 1] = 0.0
        mask[4, 0] = 0.5
        masked, texts = (
            model(batch, mask)["translate"].scores,
            model.decoded(batch, mask)["translate"].predicted,
        )
        assert not torch.allclose(masked, model(batch)["translate"].scores)
        cut = apply_masks(model, mask, ("translate",))
        assert torch.allclose(cut(batch)["translate"].scores, masked, atol=1e-10)
        assert cut.decoded(batch)["translate"].predicted == texts


def searched_by_forward(model: Seq2Seq, text: str, front: list[int], tail: list[int]) -> list[int]:
    """Greedy search with the pass of training: each piece is the likeliest after those before it."""
    [tokens] = model.tokenizer.encode_sentences([Sentence(tuple(text.split()))])
    subwords, pieces = model.tokenizer.collate([tokens]), list(front)
    while len(pieces) < 2 * len(tokens.ids) + 19 and model.tokenizer.tokenizer.eos_token_id not in pieces:
        row = dataclasses.replace(subwords, pieces=torch.tensor([[*pieces, *tail]]))
        pieces.append(int(model(row)[0, len(pieces)].argmax()))
    return pieces


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_search_begins_as_training_does(architecture):
    model = seq2seq(architecture)
    end = model.tokenizer.tokenizer.eos_token_id
    for source, _ in PAIRS:
        subwords = model.tokenizer.collate(
            model.tokenizer.encode_sentences([Sentence(tuple(source.split()))])
        )
        pieces = searched_by_forward(model, source, [], [end])
        assert model.translate(subwords, beam=1) == model.tokenizer.text(torch.tensor([pieces]))


@torch.no_grad()
@pytest.mark.parametrize(
    ("architecture", "tokenizer", "first"),
    [
        ("mbart", MBart50Tokenizer, True),
        ("m2m_100", MBart50Tokenizer, True),
        ("mbart", MBartTokenizer, False),
    ],
)
def test_search_begins_with_the_language_where_training_does(architecture, tokenizer, first):
    words = ["<s>", "<pad>", "</s>", "<unk>", *"abcdefgh"]
    vocabulary = [(word, 0.0) for word in words]
    known = tokenizer(vocab=vocabulary, src_lang="en_XX", tgt_lang="fr_XX")
    transformer = tiny.translator(
        architecture, vocab_size=len(known), pad_token_id=known.pad_token_id, eos_token_id=known.eos_token_id,
        decoder_start_token_id=known.eos_token_id,
    )  # fmt: skip
    model = Seq2Seq(transformer, known, "en_XX", "de_DE", max_length=40)
    german, end = known.convert_tokens_to_ids("de_DE"), known.eos_token_id
    subwords = model.tokenizer.collate(model.tokenizer.encode_sentences([Sentence(("a", "b"))]))
    front, tail = ([german], [end]) if first else ([], [end, german])
    pieces = searched_by_forward(model, "a b", front, tail)
    assert model.translate(subwords, beam=1) == model.tokenizer.text(torch.tensor([pieces]))


@pytest.mark.slow
def test_a_scale_per_sentence_holds_for_all_of_its_hypotheses():
    model = joint(seq2seq())
    encoder, batch = model.encoder, one_batch(model)
    scales = torch.rand(len(SENTENCES), encoder.layers, encoder.heads, dtype=torch.float64).round(decimals=1)
    together = encoder.translate(batch.subwords, scales, beam=3)
    for row, scale in enumerate(scales):
        alone = batch.subwords.take(torch.tensor([row]))
        assert encoder.translate(alone, scale, beam=3)[0] == together[row]


@pytest.mark.slow
def test_a_saved_model_is_the_same_also_when_cut(tmp_path):
    model = joint(seq2seq().float())
    batch = one_batch(model)
    for folder in (tmp_path / "whole", tmp_path / "cut"):
        if folder.name == "cut":
            mask = torch.ones(model.encoder.layers, model.encoder.heads)
            mask[1], mask[2, 0] = 0.0, 0.0
            model = apply_masks(model, mask, ("translate",))
        model.save(folder)
        again = JointModel.from_pretrained(folder)
        assert isinstance(again.encoder, Seq2Seq)
        assert (again.encoder.source, again.encoder.target) == ("digits", "names")
        with torch.no_grad():
            first, second = model(batch)["translate"].scores, again(batch)["translate"].scores
        assert torch.allclose(first, second, atol=1e-6)
        assert again.decoded(batch)["translate"].predicted == model.decoded(batch)["translate"].predicted


def test_the_order_and_company_of_sentences_change_no_score():
    model = joint(seq2seq())
    corpus = examples(SENTENCES, model.encoder.tokenizer, model.tasks, model.labels)
    figures = evaluate_model(model, batches(corpus, model))["translate"]
    one_by_one = [collate([example], model.encoder.tokenizer, model.tasks) for example in reversed(corpus)]
    assert evaluate_model(model, one_by_one)["translate"] == pytest.approx(figures, rel=1e-9)


def test_an_empty_sentence_has_an_empty_translation():
    model = joint(seq2seq())
    annotated = model.annotate([Sentence(()), SENTENCES[0]])
    assert annotated[0].layer("translate") == ""
    assert annotated[1].layer("translate")


def test_only_the_encoder_is_trained_if_the_decoder_is_frozen():
    encoder = seq2seq().train()
    encoder.freeze_decoder()
    trained = {name for name, parameter in encoder.named_parameters() if parameter.requires_grad}
    assert trained
    assert all(".encoder.layers." in name for name in trained)
    with in_evaluation_mode(encoder):
        pass
    assert not encoder.transformer.get_decoder().training
    assert encoder.transformer.get_encoder().training


def test_too_long_a_sentence_is_named():
    encoder = seq2seq()
    tokenizer = ParallelTokenizer(encoder.tokenizer.tokenizer, 6)
    sentence = dataclasses.replace(SENTENCES[2], place="a.en:3")
    with pytest.raises(InputError, match=r"a\.en:3: \d+ subwords, and the model reads at most 6"):
        tokenizer.encode_sentences([sentence])


def test_models_of_the_other_kind_are_refused(tiny_encoder, tmp_path):
    with pytest.raises(InputError, match="has no decoder that reads an encoder, and cannot translate"):
        Seq2Seq.from_pretrained(str(tiny_encoder))
    seq2seq().save(tmp_path)
    with pytest.raises(InputError, match="has no vector for each word of one text"):
        Encoder.from_pretrained(str(tmp_path))
    with pytest.raises(InputError, match="cannot load the encoder-decoder model"):
        Seq2Seq.from_pretrained(str(tmp_path / "gone"))
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**settings, "encoder_ffn_dim": 7}))
    with pytest.raises(
        InputError, match=r"do not fit its config\.json \(first at .*fc1\.bias is \(24,\), not \(7,"
    ):
        Seq2Seq.from_pretrained(str(tmp_path))


def test_a_checkpoint_for_other_languages_is_refused():
    config = BertConfig(source_lang="en", target_lang="de")
    require_languages("opus", config, None, "en", "de")
    require_languages("opus", config, None, "", "")
    require_languages("opus", BertConfig(), None, "de", "en")
    with pytest.raises(InputError, match="opus translates from en to de, the other way round: use"):
        require_languages("opus", config, None, "de", "en")
    with pytest.raises(InputError, match="from en to de, not from en to fr"):
        require_languages("opus", config, None, "en", "fr")
    with pytest.raises(InputError, match=r"use instances\.mt\.source=en and instances\.mt\.target=de"):
        require_languages("opus", config, None, "de", "en", "instances.mt")
    # The tokenizer may state the languages, too.
    for model in (config, BertConfig()):
        with pytest.raises(InputError, match="the other way round"):
            require_languages("opus", model, BertConfig(source_lang="en", target_lang="de"), "de", "en")
    require_languages("opus", BertConfig(source_lang="en"), None, "de", "en")


@pytest.mark.parametrize(
    ("tokenizer", "german", "french"),
    [
        (MBart50Tokenizer, "de_DE", "fr_XX"),
        (MBartTokenizer, "de_DE", "fr_XX"),
        (NllbTokenizer, "deu_Latn", "fra_Latn"),
    ],
)
def test_languages_that_a_checkpoint_does_not_know_are_refused(tokenizer, german, french):
    words = ["<s>", "<pad>", "</s>", "<unk>", *"abcdefgh", "de"]
    if tokenizer is NllbTokenizer:
        known = tokenizer(vocab={word: number for number, word in enumerate(words)}, merges=[])
    else:
        known = tokenizer(vocab=[(word, 0.0) for word in words])
    require_language_codes("many", known, german, french)
    # A piece of text is not a language.
    with pytest.raises(InputError, match=rf"translate\.target=de: many knows \d+ languages .* {german}"):
        require_language_codes("many", known, french, "de")
    with pytest.raises(InputError, match=r"translate\.source is not set: many knows"):
        require_language_codes("many", known, "", german)
    # M2M100 has tokens of its own for codes.
    m2m = SimpleNamespace(src_lang="en", lang_code_to_id={"en": 9, "de": 10})
    require_language_codes("m2m", m2m, "en", "de")
    with pytest.raises(InputError, match=r"translate\.target=ger: m2m knows 2 languages .* de, en"):
        require_language_codes("m2m", m2m, "en", "ger")
    with pytest.raises(InputError, match=r"instances\.mt\.source is not set: m2m"):
        require_language_codes("m2m", m2m, "", "de", "instances.mt")
    require_language_codes("of one pair", SimpleNamespace(), "", "")


TEXTS = [
    "Two young, White males are outside.", "Zwei junge weiße Männer sind im Freien.",
    "Several men in hard hats",
    "Mehrere Männer mit Schutzhelmen", "A little girl climbing", "Ein kleines Mädchen klettert",
] * 3  # fmt: skip


def test_a_vocabulary_spells_all_texts_and_is_the_same_each_time():
    tokenizer = train_vocabulary(TEXTS, 320, 64)
    assert len(tokenizer) <= 320
    assert tokenizer.convert_tokens_to_ids([PAD, END, UNKNOWN_PIECE]) == [0, 1, 2]
    strange = "ein Schloß – 名前, it's (1.5)!"
    ids = tokenizer([*TEXTS[:2], strange])["input_ids"]
    assert all(row[-1] == 1 for row in ids)
    assert [text.strip() for text in tokenizer.batch_decode(ids, skip_special_tokens=True)] == [
        *TEXTS[:2],
        strange,
    ]
    again = train_vocabulary(TEXTS, 320, 64)
    assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()

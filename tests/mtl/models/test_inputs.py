"""What runs share: read once, the same each time, read again when it has changed."""

from __future__ import annotations

import os
import shutil

import pytest
import torch

from mtl.config.schema import CorpusConfig, EncoderConfig
from mtl.corpora.readers import read_sentences
from mtl.models import inputs as module
from mtl.models import pretrained
from mtl.models.inputs import InputCache
from tests.mtl import tiny


@pytest.fixture
def counted(monkeypatch):
    """What was read and loaded, in order."""
    calls = []
    load = pretrained.load_encoder

    def counting_read(path, format):
        calls.append(path.name)
        return read_sentences(path, format)

    def counting_load(name, *arguments):
        calls.append("encoder")
        return load(name, *arguments)

    monkeypatch.setattr(module, "read_sentences", counting_read)
    monkeypatch.setattr(pretrained, "load_encoder", counting_load)
    return calls


def test_files_are_read_once_for_all_tasks_unless_they_change(toy, tmp_path, counted):
    shutil.copytree(toy, tmp_path / "corpus")
    material, config = InputCache(keep=True), CorpusConfig(str(tmp_path / "corpus"))
    first = material.split(config, ("pos",), "dev")
    second = material.split(config, ("dep",), "dev")
    assert counted == ["dev.jsonl"]
    assert first[0].tags is not None
    assert first[0].arcs is None
    assert second[0].tags is None
    assert second[0].arcs is not None
    path = tmp_path / "corpus" / "dev.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:4]))
    os.utime(path, (1, 1))
    assert len(material.split(config, ("pos",), "dev")) == 4
    assert counted == ["dev.jsonl"] * 2


def test_every_run_gets_an_encoder_of_its_own_and_the_same(tiny_encoder, counted):
    material, config = InputCache(keep=True), EncoderConfig(str(tiny_encoder))
    first = material.encoder(config)
    expected = {name: value.clone() for name, value in first.state_dict().items()}
    with torch.no_grad():
        for weight in first.parameters():
            weight.add_(1.0)
    second = material.encoder(config)
    assert counted == ["encoder"]
    assert all(torch.equal(value, expected[name]) for name, value in second.state_dict().items())
    alone = InputCache().encoder(config)
    assert all(torch.equal(value, expected[name]) for name, value in alone.state_dict().items())


def test_an_encoder_that_has_changed_is_loaded_again(tiny_encoder, tmp_path, counted):
    shutil.copytree(tiny_encoder, tmp_path / "encoder")
    material, config = InputCache(keep=True), EncoderConfig(str(tmp_path / "encoder"))
    before = material.encoder(config)
    material.encoder(config)
    assert counted == ["encoder"]
    tiny.shake(before)
    before.save(tmp_path / "encoder")
    after = material.encoder(config)
    assert counted == ["encoder"] * 2
    assert all(torch.equal(value, before.state_dict()[name]) for name, value in after.state_dict().items())


def test_loading_leaves_the_random_numbers_alone(tiny_encoder):
    drawn = []
    for material in (InputCache(keep=True), InputCache(keep=True)):
        torch.manual_seed(5)
        if not drawn:
            material.encoder(EncoderConfig(str(tiny_encoder)))
        drawn.append(torch.rand(3))
    assert torch.equal(*drawn)


def test_pieces_are_those_of_the_tokenizer(toy, tiny_encoder):
    material = InputCache(keep=True)
    encoder = material.encoder(EncoderConfig(str(tiny_encoder)))
    sentences = material.split(CorpusConfig(str(toy)), ("pos",), "dev")
    expected = encoder.tokenizer.encode_all([sentence.words for sentence in sentences])
    for _ in range(2):
        pieces = material.pieces(encoder.tokenizer, sentences)
        assert [each.ids.tolist() for each in pieces] == [each.ids.tolist() for each in expected]
        assert [each.counts.tolist() for each in pieces] == [each.counts.tolist() for each in expected]


def test_what_was_used_last_is_kept_and_no_more(toy, tmp_path, tiny_encoder, counted, monkeypatch):
    monkeypatch.setattr(module, "MOST_FILES", 2)
    monkeypatch.setattr(module, "MOST_ENCODERS", 1)
    shutil.copytree(tiny_encoder, tmp_path / "other")
    material, corpus = InputCache(keep=True), CorpusConfig(str(toy))
    for split in ("train", "dev", "train", "test", "train", "dev"):
        material.split(corpus, ("pos",), split)
    assert counted == ["train.jsonl", "dev.jsonl", "test.jsonl", "dev.jsonl"]
    counted.clear()
    for name in (tiny_encoder, tiny_encoder, tmp_path / "other", tiny_encoder):
        material.encoder(EncoderConfig(str(name)))
    assert counted == ["encoder"] * 3


def test_pieces_of_earlier_texts_are_dropped_once_there_are_too_many(toy, tiny_encoder, monkeypatch):
    material = InputCache(keep=True)
    tokenizer = material.encoder(EncoderConfig(str(tiny_encoder))).tokenizer
    sentences = material.split(CorpusConfig(str(toy)), ("pos",), "train")[:9]
    encoded = []
    encode = module._encoded
    monkeypatch.setattr(module, "_encoded", lambda *given: encoded.append(len(given[1])) or encode(*given))
    monkeypatch.setattr(module, "MOST_TEXTS", 7)
    for part in (sentences[:5], sentences[:5], sentences[5:], sentences[5:], sentences[:5]):
        expected = tokenizer.encode_all([sentence.words for sentence in part])
        pieces = material.pieces(tokenizer, part)
        assert [each.ids.tolist() for each in pieces] == [each.ids.tolist() for each in expected]
    assert encoded == [5, 0, 4, 0, 5]

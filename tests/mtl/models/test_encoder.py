from __future__ import annotations

import logging
import re
from pathlib import Path

import jaxtyping
import pytest
import torch
from transformers import AutoModel

from mtl.errors import InputError
from mtl.heads.family_table import FAMILIES
from mtl.models import pretrained
from mtl.models.encoder import Encoder, Reading, pool
from mtl.models.found import embedded_minilm
from mtl.models.opened import open_target
from mtl.models.subwords import Subwords
from tests.launches import Launches
from tests.mtl import tiny

SENTENCES = [
    ["the", "dog", "saw", "a", "cat", "."],
    ["dog"],
    ["xyz", "the", "don't"],
    ["saw", "abc", "a", "cat"] * 6,
]
structures = pytest.mark.parametrize("name", tiny.of_structure(tiny.NAMES))


def collated(encoder: Encoder, sentences: list[list[str]]) -> Subwords:
    return encoder.tokenizer.collate(encoder.tokenizer.encode_all(sentences))


@pytest.mark.parametrize("pooling", ["mean", "first", "last"])
@pytest.mark.parametrize("max_length", [12, 100])
def test_pooling_is_the_loop_over_words(pooling: str, max_length: int) -> None:
    encoder = tiny.encoder("bert", max_length=min(max_length, 64))
    subwords = collated(encoder, SENTENCES)
    hidden = torch.randn(*subwords.slot.shape, 5, dtype=torch.float64)
    vectors = pool(hidden, subwords, pooling)
    for sentence, words in enumerate(SENTENCES):
        for word in range(subwords.width):
            pieces = hidden[subwords.slot == sentence * subwords.width + word]
            if word >= len(words):
                expected = torch.zeros(5, dtype=torch.float64)
            elif pooling == "mean":
                expected = pieces.mean(0)
            else:
                expected = pieces[0 if pooling == "first" else -1]
            torch.testing.assert_close(vectors[sentence, word], expected)


@pytest.mark.parametrize("name", tiny.EVERY)
def test_a_sentence_is_the_same_alone_and_in_a_batch_and_fills_all_positions(name: str) -> None:
    """Where positions begin after the padding index, there are fewer of them than embeddings."""
    encoder = tiny.encoder(name, dtype=torch.float32)
    subwords = collated(encoder, [["dog", "the"] * 60])
    assert subwords.slot.shape[1] == encoder.tokenizer.max_length
    assert encoder.tokenizer.max_length == 64 - {"mpnet": 2}.get(name, name in tiny.PADDING_FIRST)
    assert torch.isfinite(encoder(subwords)).all()
    encoder.tokenizer.max_length = 16
    together = encoder(collated(encoder, SENTENCES))
    for number, words in enumerate(SENTENCES):
        alone = encoder(collated(encoder, [words]))[0]
        torch.testing.assert_close(together[number, : len(words)], alone, rtol=1e-4, atol=1e-5)
        assert not together[number, len(words) :].any()
        assert together[number, : len(words)].abs().sum(-1).min() > 0


def test_a_word_in_a_window_is_the_word_in_that_stretch_alone() -> None:
    encoder = tiny.encoder("bert", max_length=10)
    words = ["dog", "cat", "saw", "the", "a"] * 4
    vectors = encoder(collated(encoder, [words]))[0]
    # Windows of 8 words that start 4 apart; word 6 stands most centrally in the second one.
    torch.testing.assert_close(vectors[6], encoder(collated(encoder, [words[4:12]]))[0, 2])
    torch.testing.assert_close(vectors[0], encoder(collated(encoder, [words[:8]]))[0, 0])
    torch.testing.assert_close(vectors[-1], encoder(collated(encoder, [words[-8:]]))[0, -1])


def test_a_scale_per_sentence_reaches_all_windows_of_it() -> None:
    encoder = tiny.encoder("bert", max_length=10)
    scale = torch.rand(len(SENTENCES), encoder.layers, encoder.heads, dtype=torch.float64)
    together = encoder(collated(encoder, SENTENCES), scale)
    for number, words in enumerate(SENTENCES):
        alone = encoder(collated(encoder, [words]), scale[number])[0]
        torch.testing.assert_close(together[number, : len(words)], alone)


@structures
def test_observing_changes_nothing_and_probabilities_sum_to_one(name: str) -> None:
    encoder = tiny.encoder(name, dtype=torch.float32)
    subwords = collated(encoder, SENTENCES)
    scale = torch.rand(encoder.layers, encoder.heads)
    seen = encoder.observe(subwords, scale)
    torch.testing.assert_close(seen.words, encoder(subwords, scale), rtol=1e-3, atol=1e-4)
    rows, width = subwords.slot.shape
    assert len(seen.attentions) == len(seen.outputs) == encoder.layers
    for attention, output in zip(seen.attentions, seen.outputs, strict=True):
        assert attention.shape == (rows, encoder.heads, width, width)
        assert output.shape == (rows, width, encoder.heads, encoder.head_dim)
        inside = attention.sum(-1).transpose(1, 2)[subwords.attention_mask.bool()]
        if name == "gpt_oss":  # whose heads also attend to a sink, which is no word
            assert inside.min() > 0
            assert inside.max() < 1
        else:
            torch.testing.assert_close(inside, torch.ones_like(inside))


@pytest.mark.parametrize("name", [name for name in tiny.NAMES if FAMILIES[name].takes_bias])
def test_a_bias_gives_what_a_mask_gives_and_no_pass_waits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On devices other than the CPU, attention gets numbers to add instead of ones and zeros."""
    encoder = tiny.encoder(name, dtype=torch.float32)
    subwords = collated(encoder, SENTENCES)
    scale = torch.rand(len(SENTENCES), tiny.LAYERS, tiny.HEADS)
    found = []
    for on_cpu in (True, False):
        monkeypatch.setattr("mtl.models.encoder._on_cpu", lambda tensor, on_cpu=on_cpu: on_cpu)
        with Launches() as launches:
            words = encoder(subwords, scale)
        gradients = torch.autograd.grad(words.square().sum(), list(encoder.transformer.parameters())[:3])
        found.append((words, *gradients))
    assert launches.waits() == 0
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-6)


def test_a_decoder_of_berts_row_keeps_its_own_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = tiny.encoder_of(tiny.config("bert", is_decoder=True), tiny.tokenizer("bert")).eval()
    subwords = collated(encoder, SENTENCES)
    before = encoder(subwords)
    monkeypatch.setattr("mtl.models.encoder._on_cpu", lambda tensor: False)
    assert torch.equal(encoder(subwords), before)


def test_a_mix_of_layers_starts_as_their_mean_and_learns() -> None:
    encoder = tiny.encoder("bert", layers="mix")
    subwords = collated(encoder, SENTENCES)
    states = encoder.transformer(
        input_ids=subwords.input_ids, attention_mask=subwords.attention_mask, output_hidden_states=True
    ).hidden_states
    assert encoder.mix is not None
    expected = pool(torch.stack(states).mean(0), subwords, "mean")
    torch.testing.assert_close(encoder(subwords), expected)
    encoder.mix.data[2] = 50
    torch.testing.assert_close(encoder(subwords), pool(states[2], subwords, "mean"))
    encoder(subwords).square().sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())


def test_word_dropout_masks_whole_words_and_only_in_training() -> None:
    encoder = tiny.encoder("bert", word_dropout=0.3)
    subwords = collated(encoder, [["abc", "dog", "cat."]] * 2000)
    seen: list[torch.Tensor] = []
    encoder.transformer.register_forward_pre_hook(
        lambda module, inputs, given: seen.append(given["input_ids"]), with_kwargs=True
    )
    with torch.no_grad():
        encoder(subwords)
        encoder.train()
        encoder(subwords)
    assert torch.equal(seen[0], subwords.input_ids)
    changed = seen[1] != subwords.input_ids
    assert (seen[1][changed] == encoder.tokenizer.tokenizer.mask_token_id).all()
    nowhere = subwords.sentences * subwords.width
    assert not changed[subwords.slot == nowhere].any()
    per_word = torch.zeros(nowhere + 1).index_add(0, subwords.slot.flatten(), changed.flatten().float())
    pieces = torch.bincount(subwords.slot.flatten(), minlength=nowhere + 1)
    hidden = per_word[:-1] > 0
    assert torch.equal(per_word[:-1][hidden], pieces[:-1][hidden].float())
    # 6,000 words: five standard deviations are 0.03.
    assert abs(hidden.float().mean() - 0.3) < 0.03


def test_word_dropout_without_a_token_for_it_is_refused() -> None:
    bare = tiny.tokenizer("bert")
    bare.mask_token = bare.unk_token = None
    with pytest.raises(InputError, match=r"of BertModel has neither: use encoder\.word_dropout=0$"):
        tiny.encoder_of(tiny.config("bert"), bare, Reading(word_dropout=0.3))
    encoder = tiny.encoder_of(tiny.config("bert"), bare)
    assert encoder.word_dropout == 0
    assert encoder.note is not None


@structures
def test_saved_and_loaded_is_the_same(name: str, tmp_path: Path) -> None:
    encoder = tiny.encoder(
        name, dtype=torch.float32, layers="mix", pooling="last", word_dropout=0.1, max_length=20
    )
    assert encoder.mix is not None
    encoder.mix.data += torch.rand(encoder.mix.shape)
    encoder.save(tmp_path / "model")
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        path.name for path in (tmp_path / "model").iterdir()
    }
    assert not list((tmp_path / "model").glob("*.bin"))
    loaded = Encoder.load(tmp_path / "model").eval()
    assert (loaded.pooling, loaded.word_dropout, loaded.tokenizer.max_length) == (
        "last",
        0.1,
        20,
    )
    before, after = (each(collated(each, SENTENCES)) for each in (encoder, loaded))
    # Loaded, experts are computed in groups, and no longer one by one.
    torch.testing.assert_close(after, before, rtol=0, atol=1e-6 if name == "gpt_oss" else 0)
    plain = Encoder.from_pretrained(str(tmp_path / "model"), reading=Reading(word_dropout=0.0))
    usual = "last" if name in tiny.CAUSAL else "mean"
    assert (plain.pooling, plain.mix, plain.tokenizer.max_length > 20) == (usual, None, True)


def test_minilm_is_the_packaged_checkpoint_and_loads_silently(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="transformers"):
        encoder = Encoder.from_pretrained("minilm").eval()
    assert capfd.readouterr() == ("", "")
    assert (encoder.hidden, encoder.layers, encoder.heads, encoder.head_dim) == (384, 6, 12, 32)
    assert encoder.tokenizer.max_length == 512
    subwords = collated(encoder, [["We", "ate", "."]])
    with pretrained.quiet():
        model = AutoModel.from_pretrained(embedded_minilm()).eval()
    with torch.no_grad():
        expected = model(input_ids=subwords.input_ids, attention_mask=subwords.attention_mask)[0][:, 1:-1]
        torch.testing.assert_close(encoder(subwords), expected)


def test_a_missing_encoder_is_one_line(tmp_path: Path) -> None:
    for name, what in (
        (str(tmp_path), "cannot load the encoder"),
        (str(tmp_path / "nowhere"), "nowhere: no such folder; use "),
        ("no/where/here", "^no/where/here: no such folder; use "),
    ):
        with pytest.raises(InputError, match=what) as raised:
            Encoder.from_pretrained(name)
        assert "\n" not in str(raised.value)
    with pytest.raises(InputError, match=r"encoder\.json is missing"):
        Encoder.load(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{", "", r"^{folder} holds a damaged or changed model \(JSONDecodeError"),
        ('"pooling"', '"polling"', r"^{folder} holds a damaged or changed model \(KeyError: 'pooling'"),
    ],
)
def test_damaged_settings_of_a_folder_are_one_line(old: str, new: str, message: str, tmp_path: Path) -> None:
    tiny.encoder("bert").save(tmp_path)
    path = tmp_path / "encoder.json"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(InputError, match=message.replace("{folder}", re.escape(str(tmp_path)))) as raised:
        open_target(str(tmp_path))
    assert "\n" not in str(raised.value)


def test_settings_that_do_not_exist_are_refused() -> None:
    jaxtyping.config.update("jaxtyping_disable", True)  # it checks types, too
    try:
        with pytest.raises(InputError, match=r"^pooling='median': use one of mean, first, last"):
            Reading(pooling="median")  # type: ignore[arg-type]
        with pytest.raises(InputError, match=r"^layers='first': use one of last, mix"):
            Reading(layers="first")  # type: ignore[arg-type]
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(InputError, match="word_dropout"):
        tiny.encoder("bert", word_dropout=1.0)
    with pytest.raises(InputError, match="max_length 65"):
        tiny.encoder("bert", max_length=65)

"""Decoder-only models as encoders: a word's vector does not depend on what follows the word."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mtl.errors import InputError
from mtl.models.encoder import Encoder, Reading
from mtl.models.joint import JointModel
from mtl.models.subwords import SubwordTokenizer, windows
from mtl.tasks.sentence_tasks import Cola
from mtl.tasks.task import Labels
from tests.mtl import tiny

SENTENCE = ("the", "dog", "xyz", "saw", "a", "cat")
causal = pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "opt", "gemma2", "phi3", "olmo2"])


def bare_tokenizer(**tokens: str) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer that puts nothing around a sentence, and has no mask and no unknown token."""
    entries = ["<|end|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    pieces = Tokenizer(models.BPE(dict(zip(entries, range(len(entries)), strict=True)), []))
    pieces.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern=" ?[a-z]+|.", behavior="isolated"),  # type: ignore[arg-type]
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=pieces, eos_token="<|end|>", **tokens)


def bare(name: str = "llama", **settings: object) -> Encoder:
    torch.manual_seed(0)
    tokenizer = bare_tokenizer()
    config = tiny.config(name, vocab_size=len(tokenizer))
    encoder = tiny.encoder_of(config, tokenizer, **settings).double().eval()  # type: ignore[arg-type]
    tiny.shake(encoder.transformer)
    return encoder


def vectors(encoder: Encoder, *sentences: tuple[str, ...]) -> torch.Tensor:
    with torch.no_grad():
        return encoder(encoder.tokenizer.collate(encoder.tokenizer.encode_all(sentences)))


@causal
def test_a_word_depends_on_those_before_it_and_not_on_those_after(name: str) -> None:
    encoder = bare(name)
    whole = vectors(encoder, SENTENCE)[0]
    for words in range(1, len(SENTENCE)):
        part = vectors(encoder, SENTENCE[:words])[0]
        torch.testing.assert_close(part, whole[:words], rtol=0, atol=1e-6)
    other = vectors(encoder, ("a", *SENTENCE[1:]))[0]
    assert (other[1:] - whole[1:]).abs().amax(1).min() > 1e-4


@causal
def test_padding_changes_nothing(name: str) -> None:
    encoder = bare(name)
    together = vectors(encoder, SENTENCE, ("dog",), ("a", "cat"))
    for row, sentence in enumerate((SENTENCE, ("dog",), ("a", "cat"))):
        alone = vectors(encoder, sentence)[0]
        torch.testing.assert_close(together[row, : len(sentence)], alone, rtol=0, atol=1e-6)


def test_a_word_is_its_last_piece_unless_said_otherwise() -> None:
    usual, last, mean = bare(), bare(reading=Reading(pooling="last")), bare(reading=Reading(pooling="mean"))
    assert (usual.pooling, tiny.encoder("bert").pooling) == ("last", "mean")
    assert torch.equal(vectors(usual, SENTENCE), vectors(last, SENTENCE))
    assert (vectors(usual, SENTENCE) - vectors(mean, SENTENCE)).abs().max() > 1e-3


def test_without_a_mask_token_no_words_are_dropped_and_a_note_says_so() -> None:
    encoder = bare()
    assert encoder.word_dropout == 0
    assert encoder.note is not None
    assert "no mask token" in encoder.note
    with pytest.raises(InputError, match=r"LlamaModel has neither: use encoder\.word_dropout=0$"):
        bare(reading=Reading(word_dropout=0.1))
    # An unknown token takes the place of the mask token on request.
    tokenizer = bare_tokenizer(unk_token="<|end|>")
    config = tiny.config("llama", vocab_size=len(tokenizer))
    assert tiny.encoder_of(config, tokenizer).word_dropout == 0
    asked = tiny.encoder_of(config, tokenizer, Reading(word_dropout=0.1))
    assert (asked.word_dropout, asked.note) == (0.1, None)
    masked = bare_tokenizer(mask_token="<|end|>")
    assert tiny.encoder_of(config, masked).word_dropout == 0.2


def brute_force(counts: np.ndarray, spans: list[tuple[int, int]]) -> list[int]:
    """The span that owns each word: of those that contain it, the one with the most pieces before it."""
    start = np.cumsum(counts) - counts
    owners = []
    for word in range(len(counts)):
        there = [index for index, (first, end) in enumerate(spans) if first <= word < end]
        owners.append(max(there, key=lambda index: (start[word] - start[spans[index][0]], -index)))
    return owners


def test_words_in_several_windows_are_read_with_the_most_pieces_before_them() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        counts = rng.integers(1, 5, size=int(rng.integers(1, 40)))
        room = int(rng.integers(6, 14))
        found = windows(counts, room, room // 2, causal=True)
        owners = [index for index, (_, _, mine, end) in enumerate(found) for _ in range(mine, end)]
        spans = [(first, end) for first, end, _, _ in found]
        assert owners == brute_force(counts, spans)
        edge = np.concatenate([[0], np.cumsum(counts)])
        assert all(edge[end] - edge[first] <= room for first, end in spans)


def test_a_long_sentence_is_read_with_left_context_only() -> None:
    encoder = bare(max_length=16)
    words = SENTENCE * 5
    assert len(encoder.tokenizer.collate([encoder.tokenizer.encode(words)]).input_ids) > 2
    whole, wide = vectors(encoder, words)[0], vectors(bare(), words)[0]
    # All words of the first window are read there, also those at its end: nothing after them is missing.
    counts = encoder.tokenizer.encode(words).counts
    first = int((np.cumsum(counts) <= 16).sum())
    assert first > 3
    torch.testing.assert_close(whole[:first], wide[:first], rtol=0, atol=1e-6)
    assert (whole[first] - wide[first]).abs().max() > 1e-4


def test_pairs_are_divided_by_the_token_that_ends_texts() -> None:
    tokenizer = SubwordTokenizer(bare_tokenizer(), 64, causal=True)
    assert (tokenizer.prefix, tokenizer.suffix, tokenizer.pair.between) == ([], [], (0,))
    tokens = tokenizer.encode(("a", "cat", "the", "dog"), 2)
    ids = tokenizer.collate([tokens]).input_ids[0].tolist()
    assert ids.count(0) == 1
    assert ids.index(0) == int(tokens.counts[:2].sum())


def test_a_space_belongs_to_the_word_after_it() -> None:
    tokenizer = SubwordTokenizer(bare_tokenizer(), 64, causal=True)
    ids = tokenizer.encode(("a", "cat")).ids.tolist()
    assert tokenizer.tokenizer.convert_ids_to_tokens(ids) == ["Ġ", "a", "Ġ", "c", "a", "t"]


def test_the_first_token_says_nothing_of_a_sentence() -> None:
    with pytest.raises(InputError, match=r"cola\.pooling=first: the first token of a decoder-only model"):
        JointModel(tiny.encoder("llama"), {"cola": Cola(pooling="first")}, {"cola": Labels(("0", "1"))})


def test_a_model_that_translates_is_refused_as_an_encoder() -> None:
    with pytest.raises(InputError, match="BartModel is an encoder-decoder model"):
        Encoder(tiny.translator("bart").base_model, tiny.tokenizer("bert"))


def test_gemma_2_bounds_its_scores_and_one_without_a_causal_mask_sees_all() -> None:
    assert bare("llama").transformer.config._attn_implementation == "sdpa"
    bounded = tiny.encoder_of(tiny.config("gemma2", attn_logit_softcapping=50.0), tiny.tokenizer("gemma2"))
    assert bounded.transformer.config._attn_implementation == "eager"
    embedding = tiny.encoder_of(
        tiny.config("gemma3_text", use_bidirectional_attention=True), tiny.tokenizer("gemma3_text")
    )
    assert (embedding.causal, embedding.pooling, bare().causal) == (False, "mean", True)

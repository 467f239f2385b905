from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from mtl.errors import InputError
from mtl.models.batches import examples
from mtl.models.known_encoders import embedded_minilm
from mtl.models.subwords import Subwords, SubwordTokenizer
from mtl.models.unknown_words import count_unknown
from mtl.tasks.sentence import Sentence
from tests.mtl import tiny

SENTENCES = [
    ["the", "dog", "saw", "a", "cat"],
    ["dog"],
    ["xyz", "the", "\u200d", "don't", "."],
    [],
    ["cat", "123"] * 20,
]
names = pytest.mark.parametrize("name", ["bert", "roberta", "modernbert", "xlm-roberta"])


def pieces_of(tokenizer: SubwordTokenizer, words: list[str]) -> list[list[str]]:
    tokens = tokenizer.encode(words)
    pieces = tokenizer.tokenizer.convert_ids_to_tokens(tokens.ids.tolist())
    edges = np.concatenate([[0], np.cumsum(tokens.counts)])
    return [pieces[a:b] for a, b in itertools.pairwise(edges)]


@names
def test_pieces_are_those_of_each_word_alone(name: str) -> None:
    tokenizer = SubwordTokenizer(tiny.tokenizer(name), 64)
    for words in SENTENCES:
        together = pieces_of(tokenizer, words)
        assert together == [pieces_of(tokenizer, [word])[0] for word in words]
        assert all(together)


@names
def test_all_at_once_is_one_by_one(name: str) -> None:
    tokenizer = SubwordTokenizer(tiny.tokenizer(name), 64)
    for tokens, words in zip(tokenizer.encode_all(SENTENCES), SENTENCES, strict=True):
        alone = tokenizer.encode(words)
        assert tokens.ids.tolist() == alone.ids.tolist()
        assert tokens.counts.tolist() == alone.counts.tolist()
        assert len(tokens) == len(words)
        assert tokens.ids.dtype == tokens.counts.dtype == np.int32


def test_pieces_by_hand() -> None:
    assert pieces_of(SubwordTokenizer(tiny.tokenizer("bert"), 64), ["The", "dogs", "\u200d", "x."]) == [
        ["the"],
        ["dog", "##s"],
        ["[UNK]"],
        ["x", "."],
    ]
    for name in ("roberta", "modernbert"):
        assert pieces_of(SubwordTokenizer(tiny.tokenizer(name), 64), ["the", "dogs", "x"]) == [
            ["Ġthe"],
            ["Ġdog", "s"],
            ["Ġ", "x"],
        ]
    assert pieces_of(SubwordTokenizer(tiny.tokenizer("xlm-roberta"), 64), ["the", "dogs"]) == [
        ["▁the"],
        ["▁dog", "s"],
    ]


def test_an_ordinary_piece_does_not_stand_for_what_the_vocabulary_lacks() -> None:
    """As in Llama 3, there is no token for unknown pieces or padding, and id 0 is an exclamation mark."""
    entries = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<|end|>"]
    assert entries[0] == "!"
    pieces = Tokenizer(models.BPE({entry: number for number, entry in enumerate(entries)}, []))
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer = SubwordTokenizer(PreTrainedTokenizerFast(tokenizer_object=pieces, eos_token="<|end|>"), 16)
    corpus = examples([Sentence(("stop", "!"))], tokenizer, {}, {})
    assert 0 in corpus[0].tokens.ids
    assert count_unknown(corpus, tokenizer.unknown).lacking == 0
    assert tokenizer.unknown == len(entries) - 1


def test_truncation_and_padding_of_the_checkpoint_are_left_out() -> None:
    # The embedded MiniLM's tokenizer cuts at 128 pieces and pads to that.
    plain = AutoTokenizer.from_pretrained(embedded_minilm())
    tokenizer = SubwordTokenizer(plain, 512)
    assert tokenizer.encode(["dog"] * 300).counts.tolist() == [1] * 300
    assert tokenizer.encode(["dog"]).ids.tolist() == [plain.convert_tokens_to_ids("dog")]
    assert plain.backend_tokenizer.truncation["max_length"] == 128


def test_a_word_longer_than_the_window_keeps_its_first_pieces_and_is_counted() -> None:
    tokenizer = SubwordTokenizer(tiny.tokenizer("bert"), 8)
    with pytest.warns(UserWarning, match="2 words have more than 6 pieces") as warned:
        first, second = tokenizer.encode_all([["a", "abcdefghij", "cat"], ["xxxxxxxxx"]])
    assert len(warned) == 1
    assert (first.shortened, second.shortened) == (1, 1)
    assert first.counts.tolist() == [1, 6, 1]
    expected = ["a", "a", "##b", "##c", "##d", "##e", "##f", "cat"]
    assert tokenizer.tokenizer.convert_ids_to_tokens(first.ids.tolist()) == expected
    assert tokenizer.collate([first, second]).width == 3


def test_collate_by_hand() -> None:
    tokenizer = SubwordTokenizer(tiny.tokenizer("bert"), 64)
    subwords = tokenizer.collate(tokenizer.encode_all([["the", "dogs"], [], ["cat"]]))
    text = [tokenizer.tokenizer.convert_ids_to_tokens(row) for row in subwords.input_ids.tolist()]
    pad = "[PAD]"
    assert text == [
        ["[CLS]", "the", "dog", "##s", "[SEP]"],
        ["[CLS]", "[SEP]", pad, pad, pad],
        ["[CLS]", "cat", "[SEP]", pad, pad],
    ]
    assert subwords.attention_mask.sum(1).tolist() == [5, 2, 3]
    assert subwords.slot.tolist() == [[6, 0, 1, 1, 6], [6] * 5, [6, 4, 6, 6, 6]]
    assert (subwords.sentences, subwords.width) == (3, 2)
    assert subwords.sentence.tolist() == [0, 1, 2]


@names
def test_a_long_sentence_is_spread_over_rows_and_no_piece_is_lost(name: str) -> None:
    tokenizer = SubwordTokenizer(tiny.tokenizer(name), 12)
    batch = tokenizer.encode_all(SENTENCES)
    subwords = tokenizer.collate(batch)
    assert subwords.input_ids.shape[1] == 12
    assert subwords.sentence.tolist()[:4] == [0, *subwords.sentence.tolist()[1:4]]
    assert len(subwords.sentence) > len(batch)
    for number, tokens in enumerate(batch):
        edges = np.concatenate([[0], np.cumsum(tokens.counts)])
        for word in range(len(tokens)):
            place = subwords.slot == number * subwords.width + word
            assert place.any(1).sum() == 1
            assert subwords.input_ids[place].tolist() == tokens.ids[edges[word] : edges[word + 1]].tolist()
        rows = subwords.sentence == number
        assert int(subwords.attention_mask[rows].sum()) == tokenizer.length(tokens)
    assert int((subwords.slot < len(batch) * subwords.width).sum()) == sum(len(t.ids) for t in batch)


def equal(one: Subwords, other: Subwords) -> bool:
    """Equal up to columns of padding."""
    columns = min(one.input_ids.shape[1], other.input_ids.shape[1])
    return (
        torch.equal(one.input_ids[:, :columns], other.input_ids[:, :columns])
        and torch.equal(one.attention_mask[:, :columns], other.attention_mask[:, :columns])
        and torch.equal(one.slot[:, :columns], other.slot[:, :columns])
        and torch.equal(one.sentence, other.sentence)
        and (one.sentences, one.width) == (other.sentences, other.width)
    )


@pytest.mark.parametrize("max_length", [12, 130])
@pytest.mark.parametrize("order", [[4, 0, 2, 4, 3, 1], [4, 4, 0]])
def test_taking_sentences_is_collating_them(max_length: int, order: list[int]) -> None:
    tokenizer = SubwordTokenizer(tiny.tokenizer("bert"), max_length)
    batch = tokenizer.encode_all(SENTENCES)
    taken = tokenizer.collate(batch).take(torch.tensor(order))
    assert equal(taken, tokenizer.collate([batch[number] for number in order]))


def test_moving_keeps_everything() -> None:
    tokenizer = SubwordTokenizer(tiny.tokenizer("bert"), 12)
    subwords = tokenizer.collate(tokenizer.encode_all(SENTENCES))
    assert equal(subwords.to("cpu"), subwords)
    assert subwords.to("meta").slot.device.type == "meta"


def test_bad_windows_and_batches_are_refused() -> None:
    with pytest.raises(InputError, match="no room"):
        SubwordTokenizer(tiny.tokenizer("bert"), 2)
    with pytest.raises(InputError, match="stride=7: use a number from 1 to 6"):
        SubwordTokenizer(tiny.tokenizer("bert"), 8, stride=7)
    with pytest.raises(ValueError, match="empty batch"):
        SubwordTokenizer(tiny.tokenizer("bert"), 8).collate([])

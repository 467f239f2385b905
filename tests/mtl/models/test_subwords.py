"""Pairs of sentences: the tokenizer's own inputs and token types, cutting, and the first token's vector."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from mtl.config.instances import Instance
from mtl.corpora.formats.glue import read_glue
from mtl.corpora.formats.lines import read_lines
from mtl.errors import InputError
from mtl.models.batches import Batch, collate, count_unknown, examples
from mtl.models.encoder import Encoder
from mtl.models.found import embedded_minilm
from mtl.models.joint import JointModel
from mtl.models.subwords import Subwords, SubwordTokenizer, rows_of, windows
from mtl.tasks.sentence import Sentence
from mtl.tasks.sentence_tasks import Classify, Mrpc
from mtl.tasks.structured import Dep, Pos
from mtl.tasks.task import Labels
from tests.conftest import SHARED
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


FIRST = ["the dog saw a cat", "dog", "xyz the", "the dogs saw don't .", "a " * 20 + "cat"]
SECOND = ["a cat", "cat the the dog", "\u00e9 the", "x", "cats and dogs"]
PAIR_TEMPLATES = {
    "bert": "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
    "electra": "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
    "deberta": "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
    "deberta-v2": "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
    "roberta": "[CLS]:0 $A:0 [SEP]:0 [SEP]:0 $B:0 [SEP]:0",
    "xlm-roberta": "[CLS]:0 $A:0 [SEP]:0 [SEP]:0 $B:0 [SEP]:0",
    "modernbert": "[CLS]:0 $A:0 [SEP]:0 $B:0 [SEP]:0",
}
families = pytest.mark.parametrize("name", PAIR_TEMPLATES)


def tokenizer_of(name: str) -> PreTrainedTokenizerFast:
    """A tokenizer of the family's kind that joins pairs as the family does."""
    tokenizer = tiny.tokenizer(name)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair=PAIR_TEMPLATES[name], special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def pair(first: str, second: str, **layers) -> Sentence:
    words = first.split()
    return Sentence((*words, *second.split()), second=len(words), **layers)


def encoded(tokenizer: SubwordTokenizer, sentences: list[Sentence]):
    texts = [sentence.words for sentence in sentences]
    return tokenizer.encode_all(texts, [sentence.second for sentence in sentences])


@families
def test_ids_and_types_are_those_of_the_tokenizer(name: str) -> None:
    plain = tokenizer_of(name)
    tokenizer = SubwordTokenizer(plain, 64)
    pairs = [pair(*texts) for texts in zip(FIRST, SECOND, strict=True)]
    subwords = tokenizer.collate(encoded(tokenizer, pairs))
    # Byte-level tokenizers see a space before every word here, the first ones included.
    space = " " if name in tiny.BYTE_LEVEL else ""
    expected = plain(
        [space + " ".join(text.split()) for text in FIRST],
        [space + " ".join(text.split()) for text in SECOND],
        padding=True,
        return_token_type_ids=True,
        return_tensors="pt",
    )
    assert subwords.input_ids.tolist() == expected["input_ids"].tolist()
    assert subwords.attention_mask.tolist() == expected["attention_mask"].tolist()
    assert subwords.token_types.tolist() == expected["token_type_ids"].tolist()
    for row, sentence in zip(subwords.slot.tolist(), pairs, strict=True):
        words = [slot % subwords.width for slot in row if slot < subwords.sentences * subwords.width]
        assert sorted(set(words)) == list(range(len(sentence)))
        assert words == sorted(words)
    for tokens, mask in zip(encoded(tokenizer, pairs), subwords.attention_mask.tolist(), strict=True):
        assert tokenizer.length(tokens) == sum(mask)


def test_bert_by_hand() -> None:
    plain = tokenizer_of("bert")
    tokenizer = SubwordTokenizer(plain, 64)
    subwords = tokenizer.collate([tokenizer.encode(["the", "dogs", "cat"], 2), tokenizer.encode(["the"])])
    assert plain.convert_ids_to_tokens(subwords.input_ids[0].tolist()) == [
        "[CLS]", "the", "dog", "##s", "[SEP]", "cat", "[SEP]"
    ]  # fmt: skip
    assert subwords.slot.tolist() == [[6, 0, 1, 1, 6, 2, 6], [6, 3, 6, 6, 6, 6, 6]]
    assert subwords.token_types.tolist() == [[0, 0, 0, 0, 0, 1, 1], [0] * 7]


@families
def test_single_sentences_are_as_they_were(name: str) -> None:
    """No token types without a pair, and beside a pair the same ids and places."""
    tokenizer = SubwordTokenizer(tokenizer_of(name), 16)
    singles = [Sentence(tuple(text.split())) for text in FIRST]  # the last is spread over windows
    alone = tokenizer.collate(encoded(tokenizer, singles))
    assert alone.token_types is None
    both = tokenizer.collate(encoded(tokenizer, [pair("a", "the"), *singles]))
    rows = len(alone.sentence)
    assert len(both.sentence) == rows + 1 > len(singles) + 1
    ids = alone.attention_mask.bool()
    width = ids.shape[1]
    assert both.input_ids[1:, :width][ids].tolist() == alone.input_ids[ids].tolist()
    assert both.token_types[1:].sum() == 0
    moved = both.take(torch.arange(1, len(singles) + 1))
    assert (
        moved.slot[:, :width][ids].tolist()
        == [
            slot if slot < len(singles) * alone.width else len(singles) * both.width
            for slot in alone.slot[ids].tolist()
        ]
        or alone.width != both.width
    )
    assert moved.token_types.shape == moved.input_ids.shape


@families
def test_long_pairs_lose_the_end_of_the_longer_sentence(name: str) -> None:
    plain = tokenizer_of(name)
    tokenizer = SubwordTokenizer(plain, 16)
    texts = [
        ("the dog " * 9, "a cat"),
        ("a cat", "the dog " * 9),
        ("the dog " * 9, "a cat " * 8),
        ("a", "cat"),
    ]
    pairs = [pair(*text) for text in texts]
    with pytest.warns(UserWarning, match="3 pairs of sentences are longer than a window of 16 positions"):
        tokens = encoded(tokenizer, pairs)
    subwords = tokenizer.collate(tokens)
    space = " " if name in tiny.BYTE_LEVEL else ""
    expected = plain(
        [space + first.strip() for first, _ in texts],
        [space + second.strip() for _, second in texts],
        truncation="longest_first",
        max_length=16,
        padding=True,
        return_token_type_ids=True,
        return_tensors="pt",
    )
    assert subwords.input_ids.tolist() == expected["input_ids"].tolist()
    assert subwords.token_types.tolist() == expected["token_type_ids"].tolist()
    for sentence, one in zip(pairs, tokens, strict=True):
        assert len(one) == len(sentence)
        assert one.counts.sum() == len(one.ids)
    batch = collate(examples(pairs[3:], tokenizer, {}, {}), tokenizer, {})
    assert batch.mask.tolist() == [[True, True]]


def test_words_that_were_cut_off_are_masked() -> None:
    tokenizer = SubwordTokenizer(tokenizer_of("bert"), 8)
    with pytest.warns(UserWarning, match="1 pair of sentences is longer"):
        batch = collate(examples([pair("the dog saw a cat", "a")], tokenizer, {}, {}), tokenizer, {})
    assert batch.mask.tolist() == [[True, True, True, True, False, True]]


def test_a_window_without_room_and_a_tokenizer_without_pairs_are_refused() -> None:
    with pytest.raises(InputError, match="no room for a pair"):
        SubwordTokenizer(tokenizer_of("bert"), 4).encode(["a", "cat"], 1)
    plain = tiny.tokenizer("bert")
    plain.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="$A [SEP] $B", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer = SubwordTokenizer(plain, 16)
    assert len(tokenizer.encode(["a"]).ids) == 1
    with pytest.raises(InputError, match="no template for pairs"):
        tokenizer.encode(["a", "cat"], 1)


def encoder_of(name: str) -> Encoder:
    return tiny.encoder(name, word_dropout=0.0)


@pytest.mark.parametrize(
    "name", ["bert", "roberta", "electra", "deberta", "deberta-v2", "distilbert", "modernbert"]
)
def test_the_encoder_reads_token_types_where_it_has_several(name: str) -> None:
    encoder = encoder_of(name)
    encoder.tokenizer = SubwordTokenizer(tokenizer_of(name if name in PAIR_TEMPLATES else "bert"), 64)
    subwords = encoder.tokenizer.collate(encoded(encoder.tokenizer, [pair("the dog", "a cat")]))
    words = encoder(subwords)
    types = getattr(encoder.transformer.config, "type_vocab_size", 0)
    inputs = {"input_ids": subwords.input_ids, "attention_mask": subwords.attention_mask}
    if types and types > 1:
        inputs["token_type_ids"] = subwords.token_types
        zero = dataclasses.replace(subwords, token_types=torch.zeros_like(subwords.token_types))
        assert torch.allclose(encoder(zero), words) != subwords.token_types.any()
    hidden = encoder.transformer(**inputs).last_hidden_state
    torch.testing.assert_close(encoder(subwords, first=True)[:, 0], hidden[:, 0])
    torch.testing.assert_close(encoder(subwords, first=True)[:, 1:], words)


def test_the_first_vector_of_a_long_sentence_is_that_of_its_first_window() -> None:
    encoder = tiny.encoder("bert", max_length=10, word_dropout=0.0)
    texts = [["cat"], ["the", "dog"] * 9, ["a"] * 11]
    subwords = encoder.tokenizer.collate(encoder.tokenizer.encode_all(texts))
    assert len(subwords.sentence) > 3
    both = encoder(subwords, first=True)
    for row, words in enumerate(texts):
        begin = encoder.tokenizer.collate([encoder.tokenizer.encode(words[: encoder.tokenizer.room])])
        torch.testing.assert_close(both[row, 0], encoder(begin, first=True)[0, 0])


def joint(poolings: dict[str, str]) -> JointModel:
    torch.manual_seed(0)
    encoder = encoder_of("bert")
    encoder.tokenizer = SubwordTokenizer(tokenizer_of("bert"), 64)
    tasks = {"pos": Pos(dropout=0.0), "dep": Dep()}
    tasks |= {
        name: kind(pooling=poolings[name], dropout=0.0)
        for name, kind in (("mrpc", Mrpc), ("classify", Classify))
    }
    labels = {
        "pos": Labels(["X", "Y"]),
        "dep": Labels(["root", "x"]),
        "mrpc": Labels(["0", "1"]),
        "classify": Labels("ab"),
    }
    return JointModel(encoder, tasks, labels).double().eval()


def mixed(model: JointModel) -> Batch:
    sentences = [
        Sentence(("the", "dog"), tags=("X", "Y")),
        pair("the dog", "a cat saw", mrpc="1"),
        Sentence(("a", "cat"), tags=("Y", "X"), classify="b"),
        pair("a", "cat", classify="a", mrpc="0"),
    ]
    tokenizer = model.encoder.tokenizer
    return collate(examples(sentences, tokenizer, model.tasks, model.labels), tokenizer, model.tasks)


def test_each_decoder_reads_what_it_reads_whatever_the_others_do() -> None:
    """POS and mean pooling give the same with and without a task that reads the first token."""
    plain, first = joint({"mrpc": "mean", "classify": "mean"}), joint({"mrpc": "mean", "classify": "first"})
    first.load_state_dict(plain.state_dict())
    batch = mixed(plain)
    assert {name: rows.tolist() for name, rows in batch.rows.items()} == {
        "pos": [0, 2], "mrpc": [1, 3], "classify": [2, 3]
    }  # fmt: skip
    ours, theirs = plain(batch), first(batch)
    for name in ("pos", "mrpc"):
        torch.testing.assert_close(ours[name].scores, theirs[name].scores)
    hidden = first.encoder.transformer(
        input_ids=batch.subwords.input_ids,
        attention_mask=batch.subwords.attention_mask,
        token_type_ids=batch.subwords.token_types,
    ).last_hidden_state
    torch.testing.assert_close(
        theirs["classify"].scores, first.decoder("classify").classifier(hidden[[2, 3], 0])
    )
    words = plain.encoder(batch.subwords)
    torch.testing.assert_close(ours["mrpc"].scores[0], plain.decoder("mrpc").classifier(words[1, :5].mean(0)))


def test_a_scale_per_task_is_a_row_per_task() -> None:
    """Token types and first vectors go with the rows."""
    model = joint({"mrpc": "attention", "classify": "first"})
    batch = mixed(model)
    ones = torch.ones(len(model.tasks), tiny.LAYERS, tiny.HEADS, dtype=torch.float64)
    for name, output in model(batch, ones).items():
        torch.testing.assert_close(output.scores, model(batch)[name].scores)


def test_annotating_gives_each_sentence_what_fits_it() -> None:
    model = joint({"mrpc": "mean", "classify": "first"})
    single, couple = model.annotate([Sentence(("the", "dog")), pair("the dog", "a cat")])
    assert single.tags is not None
    assert single.arcs is not None
    assert single.layers.keys() == {"tags", "arcs", "classify"}
    assert couple.tags is couple.arcs is None
    assert couple.layers.keys() == {"classify", "mrpc"}
    only = JointModel(model.encoder, {"mrpc": Mrpc()}, {"mrpc": Labels(["0", "1"])})
    assert only.annotate([Sentence(("the", "dog"))]) == [Sentence(("the", "dog"))]


def test_the_first_token_must_be_there() -> None:
    encoder = encoder_of("bert")
    plain = tiny.tokenizer("bert")
    plain.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A [SEP]", pair="$A [SEP] $B [SEP]", special_tokens=[("[SEP]", 3)]
    )
    encoder.tokenizer = SubwordTokenizer(plain, 64)
    labels = {"classify": Labels("ab")}
    JointModel(encoder, {"classify": Classify()}, labels)
    with pytest.raises(InputError, match=r"^classify\.pooling=first"):
        JointModel(encoder, {"classify": Classify(pooling="first")}, labels)
    acts = {
        pooling: Instance("class", pooling=pooling).task("acts") for pooling in ("first", "mean", "attention")
    }
    with pytest.raises(InputError, match=r"^tasks\.acts\.pooling=first.* use mean or attention$"):
        JointModel(encoder, {"acts": acts["first"]}, {"acts": Labels("ab")})
    for pooling in ("mean", "attention"):
        JointModel(encoder, {"acts": acts[pooling]}, {"acts": Labels("ab")})


@pytest.mark.parametrize(
    ("task", "file", "columns"),
    [("cola", "CoLA/out_of_domain_dev.tsv", (3,)), ("mrpc", "MRPC/msr_paraphrase_test.txt", (3, 4))],
)
def test_pieces_of_real_lines_are_those_of_the_raw_text(task, file, columns) -> None:
    """Words split at blanks lose nothing to MiniLM's tokenizer."""
    path = SHARED / "corpora" / "glue" / file
    if not path.is_file():
        pytest.skip(f"no file {path}: it is not part of the repository")
    plain = AutoTokenizer.from_pretrained(str(embedded_minilm()))
    tokenizer = SubwordTokenizer(plain, 512)
    lines = read_lines(path)
    for sentence in read_glue(path, task)[:300]:
        raw = lines[int(sentence.place.rsplit(":", 1)[1]) - 1].split("\t")
        expected = plain(*(raw[column] for column in columns), return_token_type_ids=True)
        subwords = tokenizer.collate(encoded(tokenizer, [sentence]))
        assert subwords.input_ids[0].tolist() == expected["input_ids"]
        types = subwords.token_types
        assert ([0] * len(expected["input_ids"]) if types is None else types[0].tolist()) == expected[
            "token_type_ids"
        ]


@given(
    st.lists(st.integers(1, 5), min_size=0, max_size=40),
    st.integers(5, 12),
    st.integers(1, 12),
)
def test_every_word_is_owned_once_where_it_stands_most_centrally(
    counts: list[int], room: int, stride: int
) -> None:
    pieces = np.array(counts, dtype=np.int32)
    found = windows(pieces, room, min(stride, room))
    end = np.cumsum(pieces)
    owner = [
        [w for w, (_, _, mine, mine_end) in enumerate(found) if mine <= word < mine_end]
        for word in range(len(counts))
    ]
    assert all(len(windows_of) == 1 for windows_of in owner)

    def margin(window: int, word: int) -> int:
        first, last, *_ = found[window]
        if not first <= word < last:
            return -1
        return int(min(end[word] - pieces[word] - (end[first] - pieces[first]), end[last - 1] - end[word]))

    for first, last, mine, mine_end in found:
        assert pieces[first:last].sum() <= room
        assert first <= mine <= mine_end <= last
    for word in range(len(counts)):
        assert margin(owner[word][0], word) == max(margin(window, word) for window in range(len(found)))


@pytest.mark.parametrize("stride", [1, 3, 6])
def test_windows_by_hand(stride: int) -> None:
    # One piece a word: windows of 6 words start `stride` apart, the last one ends with the sentence.
    found = windows(np.ones(10, dtype=np.int32), 6, stride)
    assert (
        found
        == {
            1: [(0, 6, 0, 4), (1, 7, 4, 5), (2, 8, 5, 6), (3, 9, 6, 7), (4, 10, 7, 10)],
            3: [(0, 6, 0, 5), (3, 9, 5, 7), (4, 10, 7, 10)],
            6: [(0, 6, 0, 5), (4, 10, 5, 10)],
        }[stride]
    )


def test_rows_carry_the_pieces_of_their_words() -> None:
    counts = [np.array([1, 2]), np.array([2, 2, 2, 2]), np.array([], dtype=np.int64)]
    rows, sentence = rows_of(counts, 5, 2)
    assert sentence.tolist() == [0, 1, 1, 1, 2]
    assert rows.length.tolist() == [3, 4, 4, 4, 0]
    assert rows.pieces.tolist() == [0, 1, 2, 3, 4, 5, 6, 5, 6, 7, 8, 7, 8, 9, 10]
    # Of the second sentence's words each is owned once.
    assert sorted(rows.pieces[rows.owned].tolist()) == list(range(11))

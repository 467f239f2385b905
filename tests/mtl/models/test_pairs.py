"""Pairs of sentences: the tokenizer's own inputs and token types, cutting, and the first token's vector."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tokenizers import processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from mtl.corpora.formats.glue import read_glue
from mtl.corpora.formats.lines import read_lines
from mtl.errors import InputError
from mtl.models.batches import Batch, collate, examples
from mtl.models.encoder import Encoder
from mtl.models.joint import JointModel
from mtl.models.known_encoders import embedded_minilm
from mtl.models.subwords import SubwordTokenizer
from mtl.tasks.classify import Classify
from mtl.tasks.dep import Dep
from mtl.tasks.glue import Mrpc
from mtl.tasks.pos import Pos
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Labels
from tests.conftest import SHARED
from tests.mtl import tiny

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
    with pytest.raises(InputError, match=r"classify\.pooling=first"):
        JointModel(encoder, {"classify": Classify(pooling="first")}, labels)


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

"""The encoder of a translation model over annotated text: pieces of words, attention, scales and cuts."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from mtl.analysis.probe import ObservedCorpus
from mtl.errors import InputError
from mtl.heads.prune import prune_heads
from mtl.probes.measures.probe import NOTHING, HeadRecords
from mtl.tasks.sentence import Sentence
from mtl.translation.pieces import ParallelTokenizer, train_vocabulary
from mtl.translation.seq2seq import Seq2Seq
from mtl.translation.source_encoder import SourceEncoder, SourceTokenizer
from tests.mtl import tiny

TEXTS = ("Two men can't stop.", "A café, closed; naïve dogs ran!", "dogs", "the dog saw a cat .")
WORDS = (
    ("Two", "men", "ca", "n't", "stop", "."),
    ("A", "café", ",", "closed", ";", "naïve", "dogs", "ran", "!"),
    ("dogs",),
    ("the", "dog", "saw", "a", "cat", "."),
)
SENTENCES = [Sentence(words, text=text) for words, text in zip(WORDS, TEXTS, strict=True)]
SITES = 2


def trained(size: int = 330) -> PreTrainedTokenizerFast:
    return train_vocabulary([*TEXTS, *TEXTS, "can't stop", "men can't"], size, 64)


def tokenizers() -> dict[str, PreTrainedTokenizerFast]:
    """Of bytes from scratch, with a special token before the text, and with spaces as letters of pieces."""
    return {"scratch": trained(), "words": tiny.tokenizer("bert"), "pieces": tiny.tokenizer("camembert")}


def source_encoder(name: str = "marian") -> tuple[Seq2Seq, SourceEncoder]:
    torch.manual_seed(1)
    model = Seq2Seq(tiny.translator(name, dtype=torch.float32, vocab_size=330), trained()).eval()
    return model, SourceEncoder(model)


@pytest.mark.parametrize("name", ["scratch", "words", "pieces"])
def test_the_model_reads_what_it_reads_in_translating(name: str) -> None:
    tokenizer = ParallelTokenizer(tokenizers()[name], 64)
    source = SourceTokenizer(tokenizer)
    ours = source.collate(source.encode_sentences(SENTENCES))
    theirs = tokenizer.collate(tokenizer.encode_sentences([Sentence(tuple(text.split())) for text in TEXTS]))
    assert torch.equal(ours.input_ids * ours.attention_mask, theirs.input_ids * theirs.attention_mask)
    assert torch.equal(ours.attention_mask, theirs.attention_mask)
    assert (len(source.prefix), len(source.suffix)) == ((0, 1) if name == "scratch" else (1, 1))


@pytest.mark.parametrize("name", ["scratch", "words", "pieces"])
def test_a_piece_is_of_the_word_that_has_most_of_its_letters(name: str) -> None:
    fast = tokenizers()[name]
    source = SourceTokenizer(ParallelTokenizer(fast, 64))
    for sentence, tokens in zip(SENTENCES, source.encode_sentences(SENTENCES), strict=True):
        owner, place = {}, 0
        for number, word in enumerate(sentence.words):
            for letter in word:
                place = sentence.text.index(letter, place)
                owner[place], place = number, place + 1
        expected: Counter[int] = Counter()
        for start, end in fast(sentence.text, return_offsets_mapping=True, add_special_tokens=False)[
            "offset_mapping"
        ]:
            of_letters = [owner[at] for at in range(start, end) if at in owner]
            after = [number for at, number in owner.items() if at >= start]
            most = Counter(of_letters).most_common(1)[0][1] if of_letters else 0
            best = min((word for word in of_letters if of_letters.count(word) == most), default=after[0])
            expected[best] += 1
        assert tokens.counts.tolist() == [expected[number] for number in range(len(sentence))]


def test_without_the_text_words_have_blanks_between_them() -> None:
    source = SourceTokenizer(ParallelTokenizer(trained(), 64))
    bare = [Sentence(words) for words in WORDS]
    spelt = [Sentence(words, text=" ".join(words)) for words in WORDS]
    for one, other in zip(source.encode_sentences(bare), source.encode_sentences(spelt), strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        assert one.counts.tolist() == other.counts.tolist()
    assert source.encode_sentences(bare)[0].ids.tolist() != source.encode_sentences(SENTENCES)[0].ids.tolist()


def test_a_sentence_without_words_has_no_pieces() -> None:
    source = SourceTokenizer(ParallelTokenizer(trained(), 64))
    empty, full = source.encode_sentences([Sentence(()), Sentence(("a",))])
    assert (len(empty), empty.ids.tolist()) == (0, [])
    assert len(full) == 1


def test_a_word_whose_letters_are_in_its_neighbours_piece_is_not_covered() -> None:
    tokenizer = train_vocabulary(["gimme cannot"] * 50, 300, 64)
    source = SourceTokenizer(ParallelTokenizer(tokenizer, 64))
    merged, apart = Sentence(("gim", "me"), text="gimme"), Sentence(("gimme", "cannot"))
    assert source.covers([merged, apart]) == [False, True]


def test_what_cannot_be_probed_is_one_line() -> None:
    with pytest.raises(InputError, match="ByT5Tokenizer does not say where in a text its pieces are"):
        SourceTokenizer(ParallelTokenizer(ByT5Tokenizer(), 64))
    source = SourceTokenizer(ParallelTokenizer(trained(), 8))
    with pytest.raises(InputError, match=r"a word of \d+ subwords, and the model reads at most 7"):
        source.encode_sentences([Sentence(("xyzxyzxyz",))])


def by_definition(model: Seq2Seq, sentence: Sentence, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """Attention between words and the heads' outputs, by loops over a pass of the whole model."""
    tokenizer = model.tokenizer.tokenizer
    ids = torch.tensor([tokenizer(sentence.text)["input_ids"]])
    counts = SourceTokenizer(model.tokenizer).encode_sentences([sentence])[0].counts.tolist()
    pieces = torch.arange(sum(counts)).split(counts)
    model.transformer.set_attn_implementation("eager")
    full = torch.ones(6, tiny.HEADS) if scale is None else scale
    with torch.no_grad(), model.tap.scale(full), model.tap.observe() as outputs:
        seen = model.transformer(
            input_ids=ids, decoder_input_ids=torch.tensor([[2, 7]]), output_attentions=True
        ).encoder_attentions
    size = len(sentence)
    attention = torch.zeros(SITES, tiny.HEADS, size, size)
    written = torch.zeros(size, SITES, tiny.HEADS, tiny.HEAD_DIM)
    for site in range(SITES):
        for i in range(size):
            written[i, site] = outputs[site][0, pieces[i]].mean(0)
            for j in range(size):
                attention[site, :, i, j] = seen[site][0][:, pieces[i]][:, :, pieces[j]].sum(2).mean(1)
    return attention, written


def of_sentence(found: HeadRecords, number: int) -> slice:
    place = found.sentences.tolist().index(number)
    start = int(found.starts[place])
    return slice(start, start + int(found.lengths[place]))


@pytest.mark.parametrize("name", tiny.EVERY_TRANSLATOR)
def test_records_are_those_of_the_encoder_in_the_whole_model(name: str) -> None:
    model, encoder = source_encoder(name)
    assert [site.attention for site in encoder.tap.sites] == ["encoder", "encoder"]
    assert encoder.without == ("decoder", "cross")
    scale = torch.rand(6, tiny.HEADS)
    for given in (None, scale):
        expected = [by_definition(model, sentence, given) for sentence in SENTENCES]
        model.transformer.set_attn_implementation("sdpa" if name not in ("t5", "mt5") else "eager")
        for batch in ObservedCorpus(encoder, SENTENCES, given, batch_tokens=40):
            for number in batch.sentences.tolist():
                rows = of_sentence(batch, number)
                attention, written = expected[number]
                attention = attention.permute(2, 0, 1, 3)
                torch.testing.assert_close(batch.outputs[rows], written, rtol=1e-3, atol=1e-5)
                torch.testing.assert_close(batch.peak[rows], attention.amax(-1), rtol=1e-3, atol=1e-5)
                chosen = attention.gather(-1, batch.word[rows][..., None])[..., 0]
                torch.testing.assert_close(chosen, attention.amax(-1), rtol=1e-3, atol=1e-5)


def test_heads_that_were_cut_out_attend_to_nothing() -> None:
    model, _ = source_encoder()
    prune_heads(model.transformer, {0: [1], 1: [0, 1, 2, 3], 3: [0]})
    [batch] = ObservedCorpus(SourceEncoder(model), SENTENCES)
    assert (batch.word[:, 0, 1] == NOTHING).all()
    assert (batch.word[:, 1] == NOTHING).all()
    assert (batch.word[: len(batch.row), 0, 0] != NOTHING).all()
    assert not batch.outputs[:, 1].any()

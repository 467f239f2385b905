from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from mtl.analysis.probe import ObservedCorpus, records, word_positions
from mtl.errors import InputError
from mtl.heads.attentions import attentions
from mtl.heads.prune import prune_heads
from mtl.models.encoder import Encoder
from mtl.models.tapped import Observation
from mtl.probes.measures import corpus
from mtl.probes.measures.attention import AttentionProbe
from mtl.probes.measures.probe import NOTHING, ROOT, HeadRecords
from mtl.tasks.sentence import Arcs, Sentence
from tests.mtl import tiny

SENTENCES = [
    Sentence(tuple(text.split()))
    for text in ("the dog saw a cat .", "dog", "xyz the don't saw", "saw abc a cat saw ab a , cat the dog")
]
structures = pytest.mark.parametrize("name", tiny.of_structure(tiny.NAMES))


def word_level(encoder: Encoder, words: tuple[str, ...], scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """By the definition, from loops: attention to root, words and final one, and the heads' outputs."""
    tokens = encoder.tokenizer.encode(words)
    observation = encoder.observe(encoder.tokenizer.collate([tokens]), scale)
    edges = [1]
    for count in tokens.counts.tolist():
        edges.append(edges[-1] + count)
    groups = [[0], *(list(range(begin, end)) for begin, end in pairwise(edges)), [edges[-1]]]
    size, layers, heads = len(groups), encoder.layers, encoder.heads
    attention = torch.zeros(layers, heads, size, size)
    outputs = torch.zeros(len(words), layers, heads, encoder.head_dim)
    for layer in range(layers):
        for head in range(heads):
            matrix = observation.attentions[layer][0, head].tolist()
            # In decoder-only models a word's last piece speaks for it.
            for i, own in enumerate(group[-1:] if encoder.causal else group for group in groups):
                for j, other in enumerate(groups):
                    total = sum(matrix[p][q] for p in own for q in other)
                    attention[layer, head, i, j] = total / len(own)
                if 0 < i < size - 1:
                    outputs[i - 1, layer, head] = observation.outputs[layer][0, own, head].mean(0)
    return attention, outputs


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def of_sentence(found: HeadRecords, sentence: int) -> dict[str, Tensor]:
    """A sentence's part of a batch, its first special token as the last query."""
    place = found.sentences.tolist().index(sentence)
    begin, length = int(found.starts[place]), int(found.lengths[place])
    row = int(found.row[begin])
    queries = [*range(begin, begin + length), len(found.row) + row]
    part = {name: getattr(found, name)[queries] for name in ("word", "peak", "root", "final")}
    return part | {"outputs": found.outputs[begin : begin + length]}


def observed(
    encoder: Encoder, scale: Tensor | None = None, batch_tokens: int = 60
) -> list[dict[str, Tensor]]:
    found: dict[int, dict[str, Tensor]] = {}
    for batch in ObservedCorpus(encoder, SENTENCES, scale, batch_tokens):
        found |= {number: of_sentence(batch, number) for number in batch.sentences.tolist()}
    return [found[number] for number in range(len(SENTENCES))]


@pytest.mark.parametrize("name", tiny.EVERY)
@torch.no_grad()
def test_it_is_the_loop_over_the_definition(name: str) -> None:
    encoder = tiny.encoder(name, dtype=torch.float32)
    scale = torch.rand(encoder.layers, encoder.heads)
    for sentence, found in zip(SENTENCES, observed(encoder, scale), strict=True):
        attention, outputs = word_level(encoder, sentence.words, scale)
        queries = attention[:, :, [*range(1, len(sentence) + 1), 0]].permute(2, 0, 1, 3)
        among = queries[..., 1:-1]
        close(found["outputs"], outputs)
        close(found["peak"], among.amax(-1))
        close(found["root"], queries[..., 0])
        close(found["final"], queries[..., -1])
        # Both sums are rounded: the chosen word need not be the same where two are as good.
        close(among.gather(-1, found["word"][..., None])[..., 0], among.amax(-1))
    what_layers_read_is_what_their_queries_are_made_from_and_is_projected(encoder)


def what_layers_read_is_what_their_queries_are_made_from_and_is_projected(encoder: Encoder) -> None:
    family = encoder.family
    read: list[Tensor] = []
    queries = [
        attention.module.get_submodule(family.query) for attention in attentions(encoder.transformer, family)
    ]
    for query in dict.fromkeys(queries):
        query.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    projections = torch.randn(encoder.layers, read_width(encoder), 3, encoder.head_dim)
    for sentence in SENTENCES:
        tokens = encoder.tokenizer.encode(sentence.words)
        read.clear()
        [found] = ObservedCorpus(encoder, [sentence], projections=projections)
        assert len(read) == encoder.layers
        begin = len(encoder.tokenizer.prefix)
        for word, count in enumerate(tokens.counts.tolist()):
            pieces = range(begin, begin + count)
            begin += count
            for layer in range(encoder.layers):
                # In decoder-only models a word's last piece speaks for it.
                vector = read[layer][0, list(pieces[-1:] if encoder.causal else pieces)].mean(0)
                for draw in range(3):
                    close(found.projected[word, layer, draw], vector @ projections[layer, :, draw])


def read_width(encoder: Encoder) -> int:
    return int(encoder.transformer.config.hidden_size)


def test_a_layer_without_heads_is_projected_as_before_the_cut() -> None:
    encoder = tiny.encoder("bert", dtype=torch.float32)
    projections = torch.randn(encoder.layers, read_width(encoder), 2, encoder.head_dim)
    [before] = ObservedCorpus(encoder, SENTENCES[:1], projections=projections)
    prune_heads(encoder.transformer, {1: range(encoder.heads)})
    [after] = ObservedCorpus(encoder, SENTENCES[:1], projections=projections)
    assert before.projected.any()
    close(after.projected[:, :2], before.projected[:, :2])  # the cut acts on later layers alone
    assert not after.outputs[:, 1].any()


@structures
def test_batches_do_not_matter(name: str) -> None:
    encoder = tiny.encoder(name, dtype=torch.float32)
    for together, alone in zip(observed(encoder), observed(encoder, batch_tokens=1), strict=True):
        for key, value in together.items():
            if key != "word":
                close(value, alone[key])


def test_in_windows_a_word_is_seen_where_it_is_owned_and_looks_around_there() -> None:
    encoder = tiny.encoder("bert", max_length=10)
    words = ("dog", "cat", "saw", "the", "a") * 4
    [batch] = ObservedCorpus(encoder, [Sentence(words)])
    short = tiny.encoder("bert", max_length=10)
    for word, (first, end) in {0: (0, 8), 6: (4, 12), 10: (8, 16), 19: (12, 20)}.items():
        [alone] = ObservedCorpus(short, [Sentence(words[first:end])])
        torch.testing.assert_close(batch.outputs[word], alone.outputs[word - first])
        torch.testing.assert_close(batch.peak[word], alone.peak[word - first])
        torch.testing.assert_close(batch.root[word], alone.root[word - first])
        assert torch.equal(batch.word[word], alone.word[word - first] + first)
        # The first special token attends from the same window.
        root = len(words) + int(batch.row[word])
        torch.testing.assert_close(batch.peak[root], alone.peak[-1])
        assert torch.equal(batch.word[root], alone.word[-1] + first)


def test_long_and_short_sentences_stand_in_one_batch() -> None:
    encoder = tiny.encoder("roberta", max_length=12)
    for together, alone in zip(
        observed(encoder, batch_tokens=500), observed(encoder, batch_tokens=1), strict=True
    ):
        for key, value in together.items():
            torch.testing.assert_close(value, alone[key])


def test_a_head_that_has_been_cut_out_attends_to_nothing_and_writes_nothing() -> None:
    encoder = tiny.encoder("bert")
    prune_heads(encoder.transformer, {1: [2], 2: [0, 1, 2, 3]})
    [batch] = ObservedCorpus(encoder, SENTENCES)
    attended = batch.attended(root=True, final=True)
    for gone in ((1, 2), (2, 0)):
        assert (attended[:, *gone] == NOTHING).all()
        assert (batch.attended(root=False, final=False)[:, *gone] == NOTHING).all()
        assert not batch.outputs[:, *gone].any()
    assert (attended[:, 1, 1] != NOTHING).all()


def test_planted_at_the_level_of_pieces_the_syntactic_head_scores_one() -> None:
    """Attention spread unevenly over the pieces of the right word, with the most on a wrong single piece."""
    encoder = tiny.encoder("bert")
    sentence = Sentence(
        ("the", "xyz", "saw", "abcd"), arcs=Arcs((2, 3, 0, 3), ("det", "nsubj", "root", "obj"))
    )
    tokens = encoder.tokenizer.encode(sentence.words)
    subwords = encoder.tokenizer.collate([tokens])
    places = word_positions(subwords, [tokens], encoder.tokenizer)
    word_of = places.column[0]
    target = torch.tensor([3, *sentence.arcs.heads, 0])[word_of]
    right = word_of == target[:, None]
    spread = right * torch.rand(len(word_of), len(word_of))
    attention = 0.6 * spread / spread.sum(1, keepdim=True)
    # The rest goes to a piece of another word each, and to the final special token.
    attention[:, -1] += 0.25
    attention[torch.arange(len(word_of)), (~right).int()[:, :-1].argmax(1)] += 0.15
    like = torch.zeros(1, len(word_of), 1, 2)
    seen = Observation(torch.zeros(1, 4, 1), [attention[None, None]], [like], [like[:, :, 0]])
    found = records(
        seen,
        places,
        torch.tensor([0]),
        torch.tensor([4]),
        torch.zeros(1, 1, dtype=torch.bool),
        encoder.tokenizer,
    )
    assert found.attended(root=True, final=False).flatten().tolist() == [1, 2, ROOT, 2, 2]
    for final in (False, True):
        index = corpus.index([sentence], corpus.arcs)
        probe = AttentionProbe("dep", index, 1, 1, root=True, final=final)
        probe.update(found)
        assert set(probe.compute().filter(measure="attention")["value"]) == {1.0}


def test_observing_leaves_the_encoder_as_it_was() -> None:
    encoder = tiny.encoder("bert", word_dropout=0.5).train()
    [first], [second] = (list(ObservedCorpus(encoder, SENTENCES)) for _ in range(2))
    assert torch.equal(first.outputs, second.outputs)
    assert encoder.training
    assert encoder.transformer.config._attn_implementation == "sdpa"
    assert not first.outputs.requires_grad


def test_an_empty_sentence_is_refused() -> None:
    with pytest.raises(InputError, match="sentence 2 has no words"):
        ObservedCorpus(tiny.encoder("bert"), [SENTENCES[0], Sentence(())])

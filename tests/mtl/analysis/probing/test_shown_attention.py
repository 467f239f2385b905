"""What `mtl show` shows of a head is what the probes measure of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

import mtl
from mtl.analysis.probe import ObservedCorpus, index_corpus, probe_heads
from mtl.analysis.show import HeadOnCorpus, OpenHead, Relation, attention_of, head_of
from mtl.config.schema import CorpusConfig, Files
from mtl.corpora.formats.jsonl import read_jsonl
from mtl.errors import InputError
from mtl.heads.gates import Mask
from mtl.heads.prune import prune_heads
from mtl.probes.figures.attention import HIT, MISSED, GoldArc, ShownAttention, attention_figure
from mtl.probes.figures.style import render
from mtl.probes.measures.probe import ROOT
from mtl.tasks.sentence import Arcs, Sentence
from tests.mtl import tiny
from tests.mtl.analysis import worth
from tests.mtl.corpora.hostile import WORDS, hostile_sentences

TASKS = ("dep", "srl")
LONG = Sentence(tuple(["the", "dog", "saw", "a", "cat", "near", "xyz", "and"] * 4))


@pytest.mark.parametrize("family", ["bert", "gpt2", "modernbert"])
@pytest.mark.parametrize("window", [None, 14])
def test_weights_are_those_of_the_records(family: str, window: int | None) -> None:
    encoder = tiny.encoder(family, dtype=torch.float32, max_length=window)
    sentences = [Sentence(("the", "don't", "saw")), LONG, Sentence(("dog",))]
    for site in range(encoder.layers):
        head = head_of(encoder, f"L{site}H1")
        shown = attention_of(encoder, sentences, head)
        assert [each.sentence for each in shown] == sentences
        for records in ObservedCorpus(encoder, sentences):
            begin = 0
            for number, length in zip(records.sentences.tolist(), records.lengths.tolist(), strict=True):
                weights = shown[number].weights
                one = np.index_exp[begin : begin + length, site, 1]
                words, found = weights[1:, 1:-1], records.word[one].numpy()
                np.testing.assert_allclose(words.max(1), records.peak[one], rtol=1e-5)
                most = [words[row, to] for row, to in enumerate(found)]
                assert most == pytest.approx(words.max(1))
                if shown[number].special[0]:
                    np.testing.assert_allclose(weights[1:, 0], records.root[one], rtol=1e-5)
                if shown[number].special[1]:
                    np.testing.assert_allclose(weights[1:, -1], records.final[one], rtol=1e-5)
                np.testing.assert_allclose(weights[1:].sum(1), 1, atol=1e-5)
                if shown[number].special[0] and number != 1:  # in several windows it has several
                    assert weights[0].sum() == pytest.approx(1, abs=1e-5)
                begin += length


@pytest.mark.parametrize(("family", "final"), [("bert", False), ("bert", True), ("gpt2", False)])
def test_relations_and_examples_are_those_of_the_probes(toy: Path, family: str, final: bool) -> None:
    encoder = tiny.encoder(family, dtype=torch.float32)
    corpus = index_corpus(read_jsonl(toy / "dev.jsonl"))
    mask = Mask("", TASKS, torch.rand(encoder.layers, encoder.heads))
    table = probe_heads(encoder, corpus, mask, final_special=final)
    for name in ("L0H0", "L2H3"):
        found = HeadOnCorpus(encoder, corpus, head_of(encoder, name), mask, final=final)
        of_head = table.filter(pl.col("layer") == int(name[1]), pl.col("head") == int(name[3]))
        relations = found.relations()
        assert {relation.task for relation in relations} == {*TASKS}
        for relation in relations:
            label = pl.col("label") == relation.label, pl.col("task") == relation.task
            assert relation.value == pytest.approx(
                of_head.filter(*label, pl.col("measure") == "attention")["value"].item()
            )
            offset = table.filter(*label, pl.col("measure") == "attention_offset")
            assert (relation.chance, relation.count) == pytest.approx(offset.select("value", "count").row(0))
        for relation in relations[:2]:
            check_examples(found, relation)
        directions = {
            row["label"]: row["value"]
            for row in of_head.filter(pl.col("measure") == "syntactic").iter_rows(named=True)
        }
        for each in relations:
            if each.task == "dep":
                assert each.to_head == pytest.approx(directions[f"{each.label} to head"])
                assert each.to_dependent == pytest.approx(directions[f"{each.label} to dependent"])
        assert relations[0] == max(relations, key=lambda each: each.rank) == found.relation()


def check_examples(found: HeadOnCorpus, relation: Relation) -> None:
    everywhere = found.shown(range(len(found.corpus.sentences)), relation)
    arcs = [arc for each in everywhere for arc in each.gold]
    assert len(arcs) == relation.count
    assert sum(arc.hit for arc in arcs) == round(relation.value * relation.count)
    hits, misses = (found.examples(relation, which, 1000) for which in ("hits", "misses"))
    assert {*misses} == {
        number for number, each in enumerate(everywhere) if not all(arc.hit for arc in each.gold)
    }
    assert {*hits} <= {number for number, each in enumerate(everywhere) if any(arc.hit for arc in each.gold)}
    assert bool(hits) == (relation.value > 0)
    assert found.examples(relation, "misses", 2) == misses[:2]


def test_the_surest_come_first(toy: Path) -> None:
    encoder = tiny.encoder("bert", dtype=torch.float32)
    corpus = index_corpus(read_jsonl(toy / "dev.jsonl"))
    found = HeadOnCorpus(encoder, corpus, head_of(encoder, "L1H0"))
    relation = next(each for each in found.relations() if 0 < each.value < 1 and each.task == "dep")
    turned = relation.to_head < relation.to_dependent
    for which in ("hits", "misses"):
        sure = []
        for each in found.shown(found.examples(relation, which, 1000), relation):
            arcs = [arc for arc in each.gold if arc.hit == (which == "hits")]
            asked = [(arc.anchor if turned else arc.start) + 1 for arc in arcs]
            sure.append(max(each.weights[query, each.most(query)] for query in asked))
        assert len(sure) > 1
        if which == "misses":
            assert sure == pytest.approx(sorted(sure, reverse=True))


def shown(sentence: Sentence, seed: int = 0, special: bool = True) -> ShownAttention:
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.full(len(sentence) + 2, 0.3), len(sentence) + 1)
    last = len(sentence) - 1
    gold = (GoldArc(0, 1, ROOT, "root", True), GoldArc(last, last + 1, 0, "obj", False))
    names = ("[CLS]", "[SEP]") if special else (None, None)
    return ShownAttention(sentence, "L0H1", names, weights, gold if special else (), root=special)


@pytest.mark.parametrize("view", ["arcs", "matrix"])
@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_hostile_words_are_drawn(view, kind) -> None:
    words = (*WORDS, "我们", "a$b$", "\x1b[31m", "\ud800")
    sentences = [each for each in hostile_sentences(3, 2, words) if len(each) > 1]
    figure = attention_figure([shown(each, special=kind != "pdf") for each in sentences], view)
    assert len(render(figure, kind, dpi=60)) > 1000


def test_arcs_and_gold_of_a_sentence() -> None:
    each = shown(Sentence(("We", "ate", "it"), id="x-1"))
    axes = attention_figure([each], least=0.2).axes[0]
    colours = [patch.get_edgecolor()[:3] for patch in axes.patches]
    drawn = sum(
        each.weights[query, column] >= 0.2 for query in range(4) for column in range(5) if query != column
    )
    assert len(colours) == drawn + 2
    assert [colour for colour in colours if colour in (to_rgb(HIT), to_rgb(MISSED))] == [
        to_rgb(HIT), to_rgb(MISSED),
    ]  # fmt: skip
    assert axes.get_title(loc="left") == "L0H1, x-1, root: 1 of 2 hit"
    *texts, left_out = [text.get_text() for text in axes.texts]
    assert texts == ["[CLS]", "We", "ate", "it", "[SEP]", "root", "obj"]
    faint = (each.weights[:4] > 0) & (each.weights[:4] < 0.2)
    assert left_out.startswith(f"not drawn: {faint.sum()} arcs below 20%, ")
    assert each.said_of_gold(0) == "root of the root: hit"
    assert each.said_of_gold(2) == "obj of We: missed"


def to_rgb(colour: str) -> tuple[float, ...]:
    return tuple(int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))


def test_a_sentence_too_long_for_a_picture_is_refused() -> None:
    with pytest.raises(ValueError, match="a sentence of 100 words does not fit into a picture of arcs"):
        attention_figure([shown(Sentence(("a",) * 100))])


def test_plot_attention_gives_figure_and_axes(toy: Path, tiny_encoder: Path) -> None:
    model = worth.joint_model(toy, ("pos", "dep"), masks=("pos", "dep"), dtype=torch.float32)
    sentence = Sentence(("the", "dog", "saw"), arcs=Arcs((2, 3, 0), ("det", "nsubj", "root")))
    figure, axes = mtl.plot_attention(model, sentence, "L1H0", relation="nsubj", task="dep")
    assert figure.axes == [axes]
    assert "nsubj: " in axes.get_title(loc="left")
    _, axes = figure.subplots(1, 2)
    assert mtl.plot_attention(model.encoder, "The dog saw.", "L1H0", ax=axes) == (figure, axes)
    assert len([text for text in axes.texts if not text.get_text().startswith("not drawn: ")]) == 6
    _, axes = mtl.plot_attention(tiny_encoder, ["the", "dog"], "L0H0", view="matrix")
    assert axes.images[0].get_array().shape == (3, 4)
    for changed, message in (
        ({"task": None}, "every task has heads of its own"),
        ({"task": "ner"}, "task='ner': use one of pos, dep"),
        ({"relation": "amod"}, "no arc of the corpus is dep amod"),
        ({"sentence": "We ate. We left."}, "these are 2 sentences"),
        ({"sentence": ["the"] * 100}, "100 words does not fit"),
        ({"head": "L9H0"}, "the model has layers 0 to 2"),
        ({"head": "L1"}, "L1 is a whole layer"),
    ):
        given = {"sentence": sentence, "head": "L1H0", "task": "dep", **changed}
        with pytest.raises(InputError, match=message):
            mtl.plot_attention(model, **given)


def test_a_model_in_memory_is_drawn_with_its_tokenizer_and_arcs_left_out_are_counted() -> None:
    model, tokenizer = tiny.model("bert"), tiny.tokenizer("bert")
    words = ["the", "dog", "saw", "a", "cat"]
    _, axes = mtl.plot_attention(model, words, "L1H2", tokenizer=tokenizer, least=0.2)
    weights = mtl.observe_heads(model, " ".join(words), tokenizer).pattern("L1H2")[0, :-1]
    faint = weights[weights < 0.2]
    share = float(faint.sum() / weights.sum())
    said = f"not drawn: {len(faint)} arcs below 20%, in all {share:.0%} of attention"
    assert axes.texts[-1].get_text() == said
    _, axes = mtl.plot_attention(model, words, "L1H2", tokenizer=tokenizer, least=0.0)
    assert not axes.texts[-1].get_text().startswith("not drawn")
    with pytest.raises(InputError, match="tokenizer=None: use the fast tokenizer of the model"):
        mtl.plot_attention(model, words, "L1H2")
    with pytest.raises(InputError, match="this model has its own: leave it out"):
        mtl.plot_attention(tiny.encoder("bert"), words, "L1H2", tokenizer=tokenizer)


def test_masks_act_on_attention_above_them(toy: Path) -> None:
    model = worth.joint_model(toy, ("pos", "dep"), masks=("pos", "dep"), dtype=torch.float32)
    head = head_of(model.encoder, "L2H0")
    pos, dep = (
        attention_of(model.encoder, [LONG], head, mask)[0].weights
        for mask in model.scales.masks(("pos", "dep"))
    )
    assert not np.allclose(pos, dep)


def test_a_head_that_was_cut_out_is_refused() -> None:
    encoder = tiny.encoder("bert", dtype=torch.float32)
    prune_heads(encoder.transformer, {1: [2]})
    with pytest.raises(InputError, match="L1H2 was cut out of this model"):
        head_of(encoder, "L1H2")
    assert attention_of(encoder, [LONG], head_of(encoder, "L1H3"))[0].weights.sum() > 1


def test_a_corpus_of_layers_without_arcs_is_refused(tiny_encoder: Path) -> None:
    names = Files("train.txt", "dev.txt", "test.txt", format="conll2003")
    head = OpenHead(str(tiny_encoder), "L1H2")
    with pytest.raises(InputError, match=r"its corpus has no arcs .*: use --sentence, or --corpus=FOLDER"):
        head.on_corpus(CorpusConfig(None, ner=names), "test", sentences=5)

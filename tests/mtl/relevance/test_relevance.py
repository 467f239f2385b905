"""The relevance of heads: conservation through decoders, planted heads, masks, cuts and long sentences."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import torch

from mtl.corpora.formats.jsonl import read_jsonl
from mtl.heads.attentions import attentions
from mtl.heads.families import family_of
from mtl.heads.gates import Mask
from mtl.heads.prune import prune_heads
from mtl.models.joint import JointModel
from mtl.relevance.propagation import Explainer, RelevanceItem, head_relevance, layer_shares
from mtl.relevance.rules import Rules
from mtl.tasks.catalogue import TASKS
from mtl.tasks.sentence import Sentence
from tests.mtl import tiny

NAMES = ("pos", "ner", "dep", "con", "srl")
EVERY = Mask("", NAMES, None)


@pytest.fixture(scope="module")
def sentences(toy: Path) -> list[Sentence]:
    return read_jsonl(toy / "test.jsonl")[:8]


def model(sentences: list[Sentence], family: str = "bert", tasks: tuple[str, ...] = NAMES) -> JointModel:
    encoder = tiny.encoder(family)
    chosen = {name: TASKS[name]() for name in tasks}
    built = JointModel(
        encoder, chosen, {name: task.labels(sentences) for name, task in chosen.items()}
    ).double()
    torch.manual_seed(3)
    for parameter in built.decoders.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return built.eval()


def relevance(explainer: Explainer) -> dict[RelevanceItem, torch.Tensor]:
    """By item, the heads' relevance summed over all sentences."""
    sums: dict[RelevanceItem, torch.Tensor] = {}
    for batch in range(len(explainer.batches)):
        for result in explainer.relevance(batch):
            sums[result.item] = sums.get(result.item, 0.0) + result.heads.sum(0)
    return sums


@pytest.mark.parametrize("task", NAMES)
@pytest.mark.parametrize("rules", ["paper", "attnlrp"])
def test_relevance_is_conserved_from_the_score_to_the_embeddings(
    task: str, rules: Rules, sentences: list[Sentence]
) -> None:
    labels = TASKS[task]().labels(sentences)
    items = [RelevanceItem(task, ""), RelevanceItem(task, labels[0])]
    explainer = Explainer(model(sentences), sentences, items, rules=rules)
    conservation = explainer.conservation(0)
    assert conservation.error < 1e-9
    scores = [result.score.sum() for result in explainer.relevance(0)]
    assert conservation.score == pytest.approx(float(sum(scores)))


@pytest.mark.parametrize("rules", ["paper", "attnlrp"])
def test_only_planted_heads_are_relevant(rules: Rules, sentences: list[Sentence]) -> None:
    """A model that reads two heads and no other: their columns of the output projections are not 0."""
    built = model(sentences)
    planted = {(0, 2), (2, 1)}
    for attention in attentions(built.encoder.transformer, family_of(built.encoder.transformer)):
        for head in range(tiny.HEADS):
            if (attention.site.layer, head) not in planted:
                columns = slice(head * tiny.HEAD_DIM, (head + 1) * tiny.HEAD_DIM)
                attention.output.weight.data[:, columns] = 0
    heads, conservation = head_relevance(built, sentences, EVERY, rules=rules)
    assert conservation.error < 1e-9
    for task in NAMES:
        of_task = heads.filter(measure="relevance", task=task)
        assert {
            (row["layer"], row["head"]) for row in of_task.iter_rows(named=True) if row["value"]
        } == planted
        assert of_task.filter(pl.col("value") > 0)["value"].to_list() == pytest.approx([1.0, 1.0])


def test_shares_sum_to_one_in_every_layer(sentences: list[Sentence]) -> None:
    heads, _ = head_relevance(model(sentences), sentences, EVERY)
    sums = heads.filter(measure="relevance").group_by("task", "label", "layer").agg(pl.sum("value"))
    assert sums["value"].to_list() == pytest.approx([1.0] * len(NAMES) * tiny.LAYERS)
    assert set(heads["choice"]) == {"paper, gold, absolute", "paper, gold"}
    assert (heads.filter(measure="relevance_signed")["value"] < 0).any()
    made = layer_shares(torch.tensor([[[1.0, -3.0], [0.0, 0.0]]]))
    assert made.tolist() == [[[0.25, 0.75], [0.0, 0.0]]]


@pytest.mark.slow
def test_batches_and_padding_change_nothing(sentences: list[Sentence]) -> None:
    built = model(sentences)
    items = [RelevanceItem(name, "") for name in NAMES]
    together = relevance(Explainer(built, sentences, items))
    alone = relevance(Explainer(built, sentences, items, batch_tokens=1))
    for item in items:
        torch.testing.assert_close(alone[item], together[item])
    # The model is left as it was.
    assert all(parameter.requires_grad and parameter.grad is None for parameter in built.parameters())
    assert built.encoder.transformer.config._attn_implementation == "sdpa"


def test_a_sentence_in_several_windows(sentences: list[Sentence]) -> None:
    words = tuple(word for sentence in sentences for word in sentence.words)
    tags = tuple(tag for sentence in sentences for tag in sentence.tags or ())
    long = [Sentence(words, tags=tags)]
    built = model(sentences, tasks=("pos",))
    built.encoder.tokenizer = type(built.encoder.tokenizer)(built.encoder.tokenizer.tokenizer, 20)
    explainer = Explainer(built, long, [RelevanceItem("pos", "")])
    assert explainer.conservation(0).error < 1e-9
    (result,) = explainer.relevance(0)
    assert result.heads.shape == (1, tiny.LAYERS, tiny.HEADS)


def test_under_a_mask_as_with_scaled_columns(sentences: list[Sentence]) -> None:
    built, changed = model(sentences, tasks=("dep",)), model(sentences, tasks=("dep",))
    scale = torch.rand(tiny.LAYERS, tiny.HEADS, dtype=torch.float64).round(decimals=1)
    scale[1, 2] = 0
    for attention in attentions(changed.encoder.transformer, family_of(changed.encoder.transformer)):
        attention.output.weight.data *= scale[attention.site.layer].repeat_interleave(tiny.HEAD_DIM)
    item = RelevanceItem("dep", "")
    masked = relevance(Explainer(built, sentences, [item], scale))[item]
    torch.testing.assert_close(masked, relevance(Explainer(changed, sentences, [item]))[item])
    assert masked[1, 2] == 0


def test_a_cut_head_is_not_relevant_and_the_others_are_as_under_its_mask(sentences: list[Sentence]) -> None:
    built, cut = model(sentences, tasks=("dep",)), model(sentences, tasks=("dep",))
    scale = torch.ones(tiny.LAYERS, tiny.HEADS, dtype=torch.float64)
    scale[0] = 0
    scale[1, 3] = 0
    prune_heads(cut.encoder.transformer, {0: range(tiny.HEADS), 1: [3]})
    item = RelevanceItem("dep", "")
    found = relevance(Explainer(cut, sentences, [item]))[item]
    torch.testing.assert_close(found, relevance(Explainer(built, sentences, [item], scale))[item])
    assert (found[0] == 0).all()
    prune_heads(cut.encoder.transformer, {1: range(tiny.HEADS), 2: range(tiny.HEADS)})
    assert (relevance(Explainer(cut, sentences, [item]))[item] == 0).all()


@pytest.mark.slow
def test_of_a_prediction_that_is_the_gold_annotation_the_same(sentences: list[Sentence]) -> None:
    built = model(sentences)
    annotated = built.annotate(sentences)
    for name in NAMES:
        item = RelevanceItem(name, "")
        gold = relevance(Explainer(built, annotated, [item]))
        predicted = relevance(Explainer(built, sentences, [item], output="predicted"))
        torch.testing.assert_close(predicted[item], gold[item])


def test_sentences_without_the_label_do_not_count(sentences: list[Sentence]) -> None:
    built = model(sentences)
    label = built.labels["pos"][0]
    mixed = [*sentences, Sentence(("the", "dog"))]
    heads, _ = head_relevance(built, mixed, EVERY, labels=[label])
    with_label = [sentence for sentence in sentences if label in (sentence.tags or ())]
    assert 0 < len(with_label) < len(sentences)
    of_label = heads.filter(task="pos", label=label)
    assert set(of_label["count"]) == {len(with_label)}
    alone, _ = head_relevance(built, with_label, Mask("", ("pos",), None), labels=[label])
    assert of_label["value"].to_list() == pytest.approx(alone.filter(label=label)["value"].to_list())
    assert set(heads.filter(task="pos", label="")["count"]) == {len(sentences)}

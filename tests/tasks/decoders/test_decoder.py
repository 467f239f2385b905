"""Probabilities of what decoders predict: against enumeration, the scores themselves, and laws.
Shared layers against supar's and against their own laws.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mtl.corpora.formats.jsonl import read_jsonl
from mtl.tasks.catalogue import TASKS
from mtl.tasks.decoders.decoder import Alternative, Biaffine, Decoder, Item, Mlp, k_best
from mtl.tasks.sentence_tasks import Classify
from mtl.tasks.structured import Con
from mtl.tasks.task import Labels
from tests.tasks.test_cky import bracketings

EVERYTHING = 10_000
WORD_BY_WORD = {
    "pos": "label", "ner": "span", "ner bio": "span", "dep": "relation", "con": "constituent", "srl": "role",
    "srl spans": "role",
}  # fmt: skip
"""Tasks, with their `decoder` where it is not the default, and the kind of their items."""


class Case:
    """A decoder with random weights, its predictions and alternatives for a few sentences."""

    def __init__(self, name: str, toy: Path, k: int = EVERYTHING) -> None:
        torch.manual_seed(0)
        name, _, decoder = name.partition(" ")
        task = TASKS[name](**({"decoder": decoder} if decoder else {}))
        sentences = list(read_jsonl(toy / "test.jsonl"))[:5]
        self.labels = task.labels(sentences)
        self.decoder: Decoder = task.new_decoder(8, self.labels).double().eval()
        for parameter in self.decoder.parameters():
            torch.nn.init.normal_(parameter, std=0.4)
        lengths = torch.tensor([len(sentence) for sentence in sentences])
        self.mask = torch.arange(int(lengths.max())) < lengths[:, None]
        words = torch.randn(*self.mask.shape, 8, dtype=torch.float64)
        with torch.inference_mode():
            self.scores = self.decoder(words, self.mask)
            self.decoded = self.decoder.decode(self.scores, self.mask)
            self.items = self.decoder.alternatives(self.scores, self.mask, self.decoded, k)

    def of(self, row: int, kind: str) -> list[Item]:
        return [item for item in self.items[row] if item.kind == kind]


@pytest.mark.parametrize("name", WORD_BY_WORD)
def test_values_are_in_order_and_their_probabilities_sum_to_one(name: str, toy: Path) -> None:
    case = Case(name, toy)
    assert len(case.items) == len(case.decoded)
    assert any(case.of(row, WORD_BY_WORD[name]) for row in range(len(case.items)))
    for items in case.items:
        for item in items:
            chances = [chance for _, chance in item.best]
            assert chances == sorted(chances, reverse=True)
            assert all(0 < chance <= 1 + 1e-9 for chance in chances)
            if item.kind not in ("constituent", "predicate"):  # these may be absent, so their sum is less
                assert sum(chances) == pytest.approx(1)


@pytest.mark.parametrize("name", WORD_BY_WORD)
def test_fewer_values_are_the_first_of_more(name: str, toy: Path) -> None:
    few, all_ = Case(name, toy, 2), Case(name, toy)
    cut = [tuple([item._replace(best=item.best[:2]) for item in items]) for items in all_.items]
    assert few.items == cut


def test_labels_of_words_are_the_predicted_ones_first(toy: Path) -> None:
    case = Case("pos", toy)
    for row, tags in enumerate(case.decoded):
        items = case.of(row, "label")
        assert [item.best[0].value for item in items] == list(tags)
        assert [(item.start, item.end) for item in items] == [(w, w + 1) for w in range(len(tags))]
        for word, item in enumerate(items):
            expected = case.scores[row, word].softmax(0)
            assert all(chance == expected[case.labels.index(str(tag))] for tag, chance in item.best)


def test_heads_are_a_softmax_over_candidates_and_relations_are_of_the_predicted_head(toy: Path) -> None:
    case = Case("dep", toy)
    others = 0
    for row, arcs in enumerate(case.decoded):
        heads, relations = case.of(row, "head"), case.of(row, "relation")
        assert [item.best[0].value for item in relations] == list(arcs.relations)
        for word, item in enumerate(heads):
            assert {value for value, _ in item.best} == set(range(len(heads) + 1)) - {word + 1}
            candidates = case.scores.arcs[row, word, : len(heads) + 1].softmax(0)
            assert all(chance == pytest.approx(candidates[head].item()) for head, chance in item.best)
            others += item.best[0].value != arcs.heads[word]
    assert others  # a tree takes some head that is not the word's best


def test_types_of_a_span_compete_with_no_entity(toy: Path) -> None:
    case = Case("ner", toy)
    for row, spans in enumerate(case.decoded):
        for span, item in zip(spans, case.of(row, "span"), strict=True):
            assert (item.start, item.end) == span[:2]
            odds = case.scores[row, span.start, span.end - 1].exp()
            values = dict(item.best)
            assert values["O"] == pytest.approx(1 / (1 + odds.sum()).item())
            for label, odd in zip(case.labels.names, odds, strict=True):
                assert values[label] == pytest.approx((odd / (1 + odds.sum())).item())


def test_constituents_have_the_marginal_of_the_span_times_that_of_the_chain() -> None:
    torch.manual_seed(0)
    decoder = Con(span_dim=6, label_dim=5).new_decoder(4, Labels(["", "X", "Y Z"])).double().eval()
    mask = torch.ones(1, 5, dtype=torch.bool)
    scores = decoder(torch.randn(1, 5, 4).double(), mask)
    scores = scores._replace(brackets=torch.randn(1, 6, 6).double())
    decoded = decoder.decode(scores, mask)
    [items] = decoder.alternatives(scores, mask, decoded, EVERYTHING)
    assert {(item.start, item.end) for item in items} == {span[:2] for span in decoded[0]}
    trees = list(bracketings(0, 5))
    chances = torch.stack([sum(scores.brackets[0, i, j] for i, j in tree) for tree in trees]).softmax(0)
    for item in items:
        place = (item.start, item.end)
        marginal = sum(chance for tree, chance in zip(trees, chances.tolist(), strict=True) if place in tree)
        hidden = torch.nn.functional.leaky_relu(scores.starts[0, item.start] + scores.ends[0, item.end], 0.1)
        chains = decoder.label(hidden).softmax(0).tolist()
        expected = {"X": marginal * chains[1], "Y Z": marginal * chains[2]}
        assert dict(item.best) == pytest.approx(expected)


def test_roles_are_tags_of_each_predicate(toy: Path) -> None:
    """At a word, the probabilities of B and I of a role and O; what is predicted has some of it."""
    case = Case("srl", toy)
    for row, frames in enumerate(case.decoded):
        predicates = case.of(row, "predicate")
        assert [item.start for item in predicates] == [frame.predicate for frame in frames]
        for frame, item in zip(frames, predicates, strict=True):
            chance = case.scores.predicates[row, frame.predicate].sigmoid().item()
            assert item.best == (Alternative("predicate", pytest.approx(chance)),)
            words = {
                each.start: dict(each.best) for each in case.of(row, "role") if each.predicate == item.start
            }
            assert set(words) == set(range(int(case.mask[row].sum()))) - {frame.predicate}
            for start, end, role in frame.arguments:
                assert words[start][f"B-{role}"] > 0
                assert all(words[word][f"I-{role}"] > 0 for word in range(start + 1, end))


def test_a_sentence_has_one_item() -> None:
    torch.manual_seed(0)
    decoder = Classify(pooling="first").new_decoder(4, Labels(["bad", "good"])).eval()
    mask = torch.tensor([[True, True, True], [True, True, False]])
    scores = decoder(torch.randn(2, 3, 4), mask)
    decoded = decoder.decode(scores, mask)
    items = decoder.alternatives(scores, mask, decoded, 1)
    assert [(item.kind, item.start, item.end) for (item,) in items] == [("label", 0, 2), ("label", 0, 1)]
    assert [item.best[0].value for (item,) in items] == decoded


def test_impossible_values_are_left_out() -> None:
    assert k_best(torch.tensor([[0.0, 0.25, 0.75]]), ["a", "b", "c"], 3) == [(("c", 0.75), ("b", 0.25))]


def _filled(inputs: int, labels: int, bias_left: bool, bias_right: bool) -> Biaffine:
    layer = Biaffine(inputs, labels, bias_left, bias_right).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("bias_left", [False, True])
@pytest.mark.parametrize("bias_right", [False, True])
def test_biaffine_equals_supar(labels: int, bias_left: bool, bias_right: bool) -> None:
    from supar import modules

    torch.manual_seed(0)
    ours = _filled(5, labels, bias_left, bias_right)
    theirs = modules.Biaffine(5, labels, bias_x=bias_left, bias_y=bias_right).double()
    with torch.no_grad():
        theirs.weight[:, :5, :5] = ours.weight
        if ours.of_right is not None:
            theirs.weight[:, 5, :5] = ours.of_right
        if ours.of_left is not None:
            theirs.weight[:, :5, 5] = ours.of_left
        if ours.bias is not None:
            theirs.weight[:, 5, 5] = ours.bias
    left, right = torch.randn(2, 4, 5).double(), torch.randn(2, 6, 5).double()
    expected = theirs(left, right)
    expected = expected[..., None] if labels == 1 else expected.permute(0, 2, 3, 1)
    torch.testing.assert_close(ours(left, right), expected)


def test_pairs_are_entries_of_all_pairs() -> None:
    torch.manual_seed(1)
    layer = _filled(5, 3, True, True)
    left, right = torch.randn(2, 4, 5).double(), torch.randn(2, 6, 5).double()
    row, a, b = torch.tensor([0, 1, 1]), torch.tensor([3, 0, 2]), torch.tensor([5, 1, 1])
    torch.testing.assert_close(layer.pairs(left[row, a], right[row, b]), layer(left, right)[row, a, b])
    assert layer.pairs(left[0, :0], right[0, :0]).shape == (0, 3)


def test_biaffine_is_differentiable_in_both_forms() -> None:
    torch.manual_seed(2)
    layer = _filled(3, 2, True, True)
    left = torch.randn(1, 3, 3, dtype=torch.double, requires_grad=True)
    right = torch.randn(1, 3, 3, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (left, right))
    assert torch.autograd.gradcheck(lambda x, y: layer.pairs(x[0], y[0]), (left, right))


def test_mlp_drops_the_same_features_at_all_words_of_a_sentence() -> None:
    torch.manual_seed(3)
    layer = Mlp(4, 50, dropout=0.5)
    layer.linear.bias.data.fill_(10.0)
    dropped = layer(torch.zeros(3, 5, 4)) == 0
    assert (dropped == dropped[:, :1]).all()
    assert not (dropped[0] == dropped[1]).all()
    by_row = layer(torch.zeros(5, 4)) == 0
    assert not (by_row == by_row[:1]).all()


def test_mlp_keeps_its_mean_under_dropout_and_drops_nothing_in_evaluation() -> None:
    torch.manual_seed(4)
    layer = Mlp(4, 20_000, dropout=0.25)
    layer.linear.bias.data.fill_(10.0)
    zeros = torch.zeros(2, 4)
    assert layer(zeros).mean().item() == pytest.approx(10.0, rel=0.02)
    assert (layer.eval()(zeros) == 10.0).all()

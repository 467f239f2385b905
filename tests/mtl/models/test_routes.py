"""Heads that belong to some tasks only."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mtl.analysis.ablation.joint import Ablator, ablations, joined
from mtl.analysis.importance.gradients import task_importance
from mtl.errors import InputError
from mtl.heads.clone import clone_heads
from mtl.heads.gates import HeadGates
from mtl.models.apply_masks import apply_masks, gates_for
from mtl.models.evaluate import evaluate
from mtl.models.joint import JointModel
from tests.mtl import tiny
from tests.mtl.analysis import worth

NAMES = ("pos", "dep")
TOKENS = 200


def plain_model(toy: Path) -> JointModel:
    model = worth.joint_model(toy)
    smaller = JointModel(
        model.encoder,
        {name: model.tasks[name] for name in NAMES},
        {name: model.labels[name] for name in NAMES},
    )
    for name in NAMES:
        smaller.decoders[name] = model.decoders[name]
    return smaller.to(next(model.parameters()).dtype).eval()


def routed_model(toy: Path, *, different: bool = True, gates: bool = False) -> JointModel:
    """Head 1 of layer 0 and head 2 of layer 2 are there for pos, and as copies for dep."""
    plain = plain_model(toy)
    encoder = plain.encoder
    made = clone_heads(
        encoder.transformer, {0: [1], 2: [2]}, 2, divide=False, noise=0.5 if different else 0.0
    )
    assert made == {0: {1: (4,)}, 2: {2: (4,)}}
    owners = {(0, 1): ("pos",), (0, 4): ("dep",), (2, 2): ("pos",), (2, 4): ("dep",)}
    model = JointModel(encoder, plain.tasks, plain.labels, owners=owners)
    if gates:
        absent = [(1, 4)]
        model.gates = HeadGates(3, 5, masks=NAMES, init_mean=0.0, init_std=2.0, absent=absent)
    model.decoders = plain.decoders
    return model.to(next(plain.parameters()).dtype).eval()


def test_equal_copies_change_no_task(toy: Path) -> None:
    plain, routed = plain_model(toy), routed_model(toy, different=False)
    corpus = worth.corpus(plain, toy, 6)
    for batch in worth.loader(plain, corpus, TOKENS):
        before, after = plain.losses(batch, plain(batch)), routed.losses(batch, routed(batch))
        for name in NAMES:
            torch.testing.assert_close(after[name], before[name], rtol=0, atol=1e-6)


def test_a_task_trains_the_shared_heads_and_its_own(toy: Path) -> None:
    model = routed_model(toy)
    corpus = worth.corpus(model, toy, 6)
    [batch, *_] = worth.loader(model, corpus, 10_000)
    query = model.encoder.transformer.encoder.layer[0].attention.self.query
    for name, own, other in (("pos", 1, 4), ("dep", 4, 1)):
        model.zero_grad()
        model.losses(batch, model(batch))[name].backward()
        moved = query.weight.grad.unflatten(0, (5, tiny.HEAD_DIM)).abs().sum((1, 2))
        assert moved[other] == 0
        assert all(moved[head] > 0 for head in (0, 2, 3, own))


def test_a_routed_model_saves_and_loads(toy: Path, tmp_path: Path) -> None:
    model = routed_model(toy).float()
    model.save(tmp_path)
    loaded = JointModel.from_pretrained(tmp_path)
    assert loaded.owners == model.owners
    assert torch.equal(loaded.routes, model.routes)
    sentences = [["the", "dog", "saw", "a", "cat"], ["the", "cat"]]
    assert loaded.annotate(sentences) == model.annotate(sentences)


def test_shuffled_owners_swap_in_training_only(toy: Path) -> None:
    model = routed_model(toy)
    model.shuffle_owners = True
    assert torch.equal(model.scales.in_pass(model.training), model.routes)
    model.train()
    torch.manual_seed(0)
    drawn = [model.scales.in_pass(model.training) for _ in range(20)]
    swapped = [torch.equal(scale, model.routes.flip(0)) for scale in drawn]
    assert 4 < sum(swapped) < 16
    assert all(swap or torch.equal(scale, model.routes) for swap, scale in zip(swapped, drawn, strict=True))


@pytest.mark.parametrize("gates", [False, True])
def test_what_heads_are_worth_is_measured_under_each_tasks_own_heads(toy: Path, gates: bool) -> None:
    model = routed_model(toy, gates=gates)
    corpus = worth.corpus(model, toy, 6)
    of_masks = {mask.name: mask for mask in model.scales.masks(NAMES)}
    for mask in of_masks.values():
        assert mask.tasks == (mask.name,)
    batches = worth.loader(model, corpus, TOKENS)
    measured = task_importance(model, batches)
    chosen = ablations("head", model.encoder.tap.remaining)
    assert len(chosen) == 14
    ablate = Ablator(model, chosen)
    counts = joined([ablate(batch) for batch in worth.loader(model, corpus, TOKENS)])
    plain = evaluate(model, worth.loader(model, corpus, TOKENS))
    for name, other in (("pos", 4), ("dep", 1)):
        importance = measured[name].value("importance")
        assert importance[0, other] == importance[1, 4] == 0
        metric = model.tasks[name].metric()
        unchanged = metric.score(counts[name].unchanged.sum(0, keepdims=True) * 1.0)[0]
        assert unchanged == pytest.approx(plain[name][model.tasks[name].score])
        for index, ablation in enumerate(chosen):
            scale = torch.stack([of_masks[task].head_scale for task in NAMES])
            for place in ablation.closed:
                scale[:, place[0], place[1]] = 0
            expected = evaluate(model, worth.loader(model, corpus, TOKENS), scale)[name]
            found = metric.score(counts[name].ablated.sum(1) * 1.0)[index]
            assert found == pytest.approx(expected[model.tasks[name].score])
    opened = {mask.name: mask.head_scale for mask in model.scales.masks(NAMES, gated=False)}
    assert torch.equal(torch.stack([opened[name] for name in NAMES]), model.routes)
    scales = {name: model.scales.of_task(name, gated=False) for name in NAMES}
    assert [int(scales[name].sum()) for name in NAMES] == [12, 12]


@pytest.mark.parametrize("gates", [False, True])
def test_a_routed_model_is_cut_for_one_task(toy: Path, gates: bool) -> None:
    model = routed_model(toy, gates=gates)
    sentences = [["the", "dog", "saw", "a", "cat"], ["the", "cat"]]
    expected = [sentence.arcs for sentence in model.annotate(sentences)]
    with pytest.raises(InputError, match="every task has heads of its own"):
        gates_for(model, None)
    scale, names = gates_for(model, "dep")
    cut = apply_masks(model, scale, names)
    assert cut.routes is None
    assert [sentence.arcs for sentence in cut.annotate(sentences)] == expected
    assert 1 not in cut.encoder.tap.remaining[0]
    if not gates:
        assert cut.encoder.tap.remaining == [(0, 2, 3, 4), (0, 1, 2, 3), (0, 1, 3, 4)]


def test_gates_of_numbers_without_a_head_stay_closed_and_uncounted() -> None:
    gates = HeadGates(2, 5, absent=[(1, 4), (0, 3)])
    assert gates.present == 8
    assert gates.open().sum() == 8
    assert float(gates.expected_l0().detach()) < 8
    assert HeadGates(**gates.configuration()).absent == ((1, 4), (0, 3))
    assert "absent" not in HeadGates(2, 5).configuration()

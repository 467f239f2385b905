from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from mtl.analysis.importance import of_tasks, task_importance
from mtl.models.batches import collate
from tests.launches import Launches
from tests.mtl import tiny
from tests.mtl.analysis import worth

SHAPE = (tiny.LAYERS, tiny.HEADS)
STEP = 1e-6
"""Small, since decoders have kinks (leaky ReLU)."""


@pytest.fixture(scope="module")
def model(toy):
    return worth.joint_model(toy)


@pytest.fixture(scope="module")
def corpus(model, toy):
    return worth.corpus(model, toy, 3)


@torch.no_grad()
def sentence_losses(model, corpus, scale, name):
    """The loss of each sentence by itself, all heads scaled."""
    losses = []
    for example in corpus:
        batch = of_tasks(collate([example], model.encoder.tokenizer, model.tasks), [name])
        output = model(batch, scale)[name]
        losses.append(model.decoder(name).loss(output.scores, batch.targets[name], output.mask)[0])
    return torch.stack(losses)


def differences(model, corpus, name, scale=None):
    """Central finite differences of the sentences' losses in every gate: [sentence layer head]."""
    base = torch.ones(SHAPE, dtype=torch.float64) if scale is None else scale.double()
    found = torch.zeros(len(corpus), *SHAPE, dtype=torch.float64)
    for place in np.ndindex(SHAPE):
        up, down = base.clone(), base.clone()
        up[place] *= 1 + STEP
        down[place] *= 1 - STEP
        change = sentence_losses(model, corpus, up, name) - sentence_losses(model, corpus, down, name)
        found[:, *place] = change / (2 * STEP)
    return found


@pytest.mark.parametrize("name", worth.STRUCTURED)
def test_measures_are_those_of_finite_differences(model, corpus, name) -> None:
    measured = task_importance(model, worth.loader(model, corpus, 200))[name]
    gradient = differences(model, corpus, name).numpy()
    np.testing.assert_allclose(measured.value("importance"), np.abs(gradient).mean(0), rtol=1e-3, atol=1e-9)
    np.testing.assert_allclose(measured.value("taylor"), -gradient.mean(0), rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(measured.value("fisher"), np.square(gradient).mean(0), rtol=2e-3, atol=1e-9)
    assert measured.examples == len(corpus)


@pytest.mark.parametrize("per", ["example", "token"])
def test_batches_make_no_difference(model, corpus, per) -> None:
    alone = task_importance(model, worth.loader(model, corpus, 1), per=per, steps=2)
    together = task_importance(model, worth.loader(model, corpus, 10_000), per=per, steps=2)
    for name in worth.STRUCTURED:
        for measure in ("importance", "taylor", "fisher", "integrated"):
            np.testing.assert_allclose(
                alone[name].value(measure), together[name].value(measure), rtol=1e-9, atol=1e-12
            )


def test_windows_of_a_sentence_are_one_sentence(toy) -> None:
    model = worth.joint_model(toy, ("pos",))
    model.encoder.tokenizer.room, model.encoder.tokenizer.stride = 12, 6
    corpus = worth.corpus(model, toy, 4)
    assert any(len(example.tokens.ids) > 12 for example in corpus)
    measured = task_importance(model, worth.loader(model, corpus, 10_000))["pos"]
    gradient = differences(model, corpus, "pos").abs().mean(0)
    np.testing.assert_allclose(measured.value("importance"), gradient, rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("masks", [("shared",), worth.STRUCTURED])
@pytest.mark.parametrize("per", ["example", "token"])
def test_on_a_gpu_all_tasks_share_both_passes(toy, masks, per, monkeypatch) -> None:
    """Sentences have several windows, and the last one lacks a task."""
    model = worth.joint_model(toy, worth.STRUCTURED, masks=masks)
    model.encoder.tokenizer.room, model.encoder.tokenizer.stride = 12, 6
    *others, last = worth.corpus(model, toy, 4)
    kept = {name: target for name, target in last.targets.items() if name != "dep"}
    corpus = [*others, dataclasses.replace(last, targets=kept)]
    found, launches = [], []
    for on_cpu in (True, False):
        monkeypatch.setattr("mtl.analysis.importance._on_cpu", lambda device, on_cpu=on_cpu: on_cpu)
        with Launches() as counted:
            found.append(task_importance(model, worth.loader(model, corpus, 10_000), per=per, steps=2))
        launches.append(counted.total())
    assert launches[1] < (0.75 if len(masks) == 1 else 0.55) * launches[0]
    for name in worth.STRUCTURED:
        one, other = (of_device[name] for of_device in found)
        assert one.examples == other.examples == len(corpus) - (name == "dep")
        for measure in ("importance", "taylor", "fisher", "integrated"):
            np.testing.assert_allclose(one.value(measure), other.value(measure), rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_per_token_sums_sizes_of_positions(model, corpus) -> None:
    """In each copy of a sentence a head's output is scaled at one position, by a hook of the test's own."""
    tokens = task_importance(model, worth.loader(model, corpus[:1], 500), per="token")["pos"]
    projections = [layer.attention.output.dense for layer in model.encoder.transformer.encoder.layer]
    width = collate(corpus[:1], model.encoder.tokenizer, {}).subwords.input_ids.shape[1]
    copies = of_tasks(collate(corpus[:1] * width, model.encoder.tokenizer, model.tasks), ["pos"])
    each = torch.arange(width)
    expected = np.zeros(SHAPE)
    for site, head in np.ndindex(SHAPE):
        values = []
        for factor in (1 + STEP, 1 - STEP):

            def scaled(module, inputs, factor=factor, head=head):
                outputs = inputs[0].clone()
                outputs[each, each, head * tiny.HEAD_DIM : (head + 1) * tiny.HEAD_DIM] *= factor
                return (outputs,)

            handle = projections[site].register_forward_pre_hook(scaled)
            with torch.no_grad():
                output = model(copies, None)["pos"]
                values.append(model.decoder("pos").loss(output.scores, copies.targets["pos"], output.mask))
            handle.remove()
        expected[site, head] = (values[0] - values[1]).abs().sum() / (2 * STEP)
    np.testing.assert_allclose(tokens.value("importance"), expected, rtol=1e-3, atol=1e-8)


@pytest.mark.slow
def test_integrated_gradients_sum_to_what_all_heads_are_worth(model, corpus) -> None:
    few = corpus[:2]
    measured = task_importance(model, worth.loader(model, few, 500), steps=200)
    for name in ("pos", "srl"):
        closed = sentence_losses(model, few, torch.zeros(SHAPE), name)
        opened = sentence_losses(model, few, torch.ones(SHAPE), name)
        worth_of_all = float((closed - opened).mean())
        np.testing.assert_allclose(measured[name].value("integrated").sum(), worth_of_all, rtol=2e-3)


def test_masks_of_tasks_are_multiplied_in(toy) -> None:
    model = worth.joint_model(toy, ("pos", "dep"), masks=("pos", "dep"))
    with torch.no_grad():
        model.gates.log_alpha[:, 0, :2] = -9.0
    corpus = worth.corpus(model, toy, 4)
    measured = task_importance(model, worth.loader(model, corpus, 300))
    plain = task_importance(model, worth.loader(model, corpus, 300), masks=False)
    for turn, name in enumerate(("pos", "dep")):
        gradient = differences(model, corpus, name, model.gates.gate()[turn].detach()).abs().mean(0)
        np.testing.assert_allclose(measured[name].value("importance"), gradient, rtol=1e-3, atol=1e-9)
        assert (measured[name].value("importance")[0, :2] == 0).all()
        assert (plain[name].value("importance") > 0).all()


def test_a_layer_s_importances_are_normalised_on_request(model, corpus) -> None:
    measured = task_importance(model, worth.loader(model, corpus, 500))["dep"]
    table = measured.table("dep", normalise=True)
    table = table.filter(table["measure"] == "importance")
    assert table["choice"].unique().to_list() == ["per example, normalised per layer"]
    for (_,), layer in table.group_by("layer"):
        assert (layer["value"] ** 2).sum() == pytest.approx(1)


def test_the_model_is_left_as_it_was(model, corpus) -> None:
    trained = [parameter.requires_grad for parameter in model.parameters()]
    task_importance(model, worth.loader(model, corpus, 500))
    assert [parameter.requires_grad for parameter in model.parameters()] == trained
    assert all(parameter.grad is None for parameter in model.parameters())


def test_sentences_without_the_task_do_not_count(model, toy) -> None:
    import dataclasses

    corpus = worth.corpus(model, toy, 6)
    lacking = [
        dataclasses.replace(
            example, targets={key: value for key, value in example.targets.items() if key != "dep"}
        )
        if number % 2
        else example
        for number, example in enumerate(corpus)
    ]
    measured = task_importance(model, worth.loader(model, lacking, 500))
    expected = task_importance(model, worth.loader(model, corpus[::2], 500))
    assert (measured["pos"].examples, measured["dep"].examples) == (6, 3)
    np.testing.assert_allclose(measured["dep"].value("importance"), expected["dep"].value("importance"))

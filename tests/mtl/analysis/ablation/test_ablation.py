from __future__ import annotations

import numpy as np
import pytest
import torch

from mtl.analysis.ablation import Ablation, Ablator, ablations, joined_counts, mean_outputs
from mtl.analysis.importance import task_importance
from mtl.models.batches import examples
from mtl.models.evaluate import evaluate_model
from mtl.models.joint import JointModel
from mtl.tasks.sentence import Sentence
from mtl.tasks.sentence_tasks import Cola, Mrpc, Stsb
from mtl.tasks.structured import Pos
from mtl.tasks.task import Labels
from tests.mtl import tiny
from tests.mtl.analysis import worth

SHAPE = (tiny.LAYERS, tiny.HEADS)


def scores(model, corpus, chosen, tokens=200, **settings):
    """By task, the main score without ablation and under each ablation."""
    ablate = Ablator(model, chosen, **settings)
    counts = joined_counts([ablate(batch) for batch in worth.loader(model, corpus, tokens)])
    return {
        name: (
            float(model.tasks[name].metric().score(of_task.unchanged.sum(0, keepdims=True) * 1.0)[0]),
            model.tasks[name].metric().score(of_task.ablated.sum(1) * 1.0),
        )
        for name, of_task in counts.items()
    }


def evaluated(model, corpus, scale):
    found = evaluate_model(model, worth.loader(model, corpus, 200), scale)
    return {name: found[name][model.tasks[name].score] for name in found}


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("bert", worth.STRUCTURED),
        *((family, ("pos", "dep")) for family in ("albert", "modernbert", "distilbert", "deberta-v2")),
    ],
)
def test_ablation_equals_evaluation_without_the_head(toy, family, names) -> None:
    model = worth.joint_model(toy, names, family=family)
    corpus = worth.corpus(model, toy, 6)
    chosen = [
        ablation
        for kind in ("head", "all_but_one", "layer")
        for ablation in ablations(kind, model.encoder.tap.remaining)
    ]
    assert len(chosen) == 2 * tiny.LAYERS * tiny.HEADS + tiny.LAYERS
    chosen.append(Ablation("chosen", frozenset({(0, 1), (2, 3)})))
    ours = scores(model, corpus, chosen)
    plain = evaluated(model, corpus, None)
    for index, ablation in enumerate(chosen):
        expected = evaluated(model, corpus, ablation.scale(*SHAPE))
        for name, (unchanged, ablated) in ours.items():
            assert unchanged == pytest.approx(plain[name])
            assert ablated[index] == pytest.approx(expected[name]), (ablation, name)


def test_how_many_go_together_makes_no_difference(toy) -> None:
    model = worth.joint_model(toy)
    corpus = worth.corpus(model, toy, 6)
    chosen = ablations("head", model.encoder.tap.remaining)
    one = scores(model, corpus, chosen, tokens=1, passes=1)
    many = scores(model, corpus, chosen, tokens=10_000, passes=100_000)
    for name in worth.STRUCTURED:
        np.testing.assert_allclose(one[name][1], many[name][1])


def test_ablations_come_on_top_of_each_task_s_mask(toy) -> None:
    model = worth.joint_model(toy, ("pos", "dep"), masks=("pos", "dep"))
    with torch.no_grad():
        model.gates.log_alpha[0, 0, :2] = -9.0
    corpus = worth.corpus(model, toy)
    chosen = ablations("head", model.encoder.tap.remaining)
    ours = scores(model, corpus, chosen)
    gates = model.gates.gate().detach()
    for index, ablation in enumerate(chosen):
        expected = evaluated(model, corpus, gates * ablation.scale(*SHAPE))
        for name in ("pos", "dep"):
            assert ours[name][1][index] == pytest.approx(expected[name])
    # A head that the mask closes is worth nothing under it.
    assert (ours["pos"][1][:2] == ours["pos"][0]).all()


def test_a_closed_head_may_hand_out_its_mean(toy) -> None:
    model = worth.joint_model(toy, ("pos",))
    corpus = worth.corpus(model, toy)
    means = mean_outputs(model, worth.loader(model, corpus, 300))
    with torch.no_grad(), model.encoder.tap.observe() as outputs:
        total, positions = torch.zeros(*SHAPE, tiny.HEAD_DIM, dtype=torch.float64), 0
        for example in corpus:
            outputs.clear()
            subwords = model.encoder.tokenizer.collate([example.tokens])
            model.encoder(subwords)
            for row, length in enumerate(subwords.attention_mask.sum(1).tolist()):
                total += torch.stack([output[row, :length].sum(0) for output in outputs])
                positions += length
    torch.testing.assert_close(means[""].double(), total / positions, rtol=1e-5, atol=1e-6)

    chosen = ablations("head", model.encoder.tap.remaining)
    ours = scores(model, corpus, chosen, means=means)["pos"][1]
    projections = [layer.attention.output.dense for layer in model.encoder.transformer.encoder.layer]
    for index, ablation in enumerate(chosen):
        here = slice(ablation.head * tiny.HEAD_DIM, (ablation.head + 1) * tiny.HEAD_DIM)

        def mean(module, inputs, ablation=ablation, here=here):
            changed = inputs[0].clone()
            changed[..., here] = means[""][ablation.site, ablation.head].to(changed)
            return (changed,)

        handle = projections[ablation.site].register_forward_pre_hook(mean)
        assert ours[index] == pytest.approx(evaluated(model, corpus, None)["pos"])
        handle.remove()


def test_two_heads_that_matter_are_found(toy) -> None:
    """All other heads write nothing: closing them changes nothing, and no loss depends on their gates."""
    model = worth.joint_model(toy, ("pos", "dep"))
    matter = [(0, 1), (2, 3)]
    with torch.no_grad():
        for site, layer in enumerate(model.encoder.transformer.encoder.layer):
            for head in range(tiny.HEADS):
                if (site, head) not in matter:
                    columns = slice(head * tiny.HEAD_DIM, (head + 1) * tiny.HEAD_DIM)
                    layer.attention.output.dense.weight[:, columns] = 0
                else:
                    layer.attention.output.dense.weight *= 30
    corpus = worth.corpus(model, toy, 30)
    ablate = Ablator(model, ablations("head", model.encoder.tap.remaining))
    counts = joined_counts([ablate(batch) for batch in worth.loader(model, corpus, 200)])
    importance = task_importance(model, worth.loader(model, corpus, 200))
    for name in ("pos", "dep"):
        changed = (counts[name].ablated != counts[name].unchanged).any((1, 2)).reshape(SHAPE)
        assert [tuple(map(int, place)) for place in np.argwhere(changed)] == matter
        value = importance[name].value("importance")
        assert [tuple(map(int, place)) for place in np.argwhere(value > 1e-12)] == matter


def test_counts_sum_to_the_task_s_score(toy) -> None:
    model = worth.joint_model(toy)
    corpus = worth.corpus(model, toy, 30)
    ours = scores(model, corpus, [])
    plain = evaluated(model, corpus, None)
    assert set(ours) == set(worth.STRUCTURED)
    for name, (unchanged, ablated) in ours.items():
        assert unchanged == pytest.approx(plain[name])
        assert ablated.shape == (0,)


@pytest.mark.slow
def test_ablation_of_tasks_on_sentences_and_pairs(toy) -> None:
    """Token types and the first token's vector go with the copies of a batch."""
    tasks = {
        "pos": Pos(), "cola": Cola(pooling="first"), "mrpc": Mrpc(pooling="attention"), "stsb": Stsb()
    }  # fmt: skip
    base = worth.joint_model(toy, ("pos",))
    labels = {**base.labels, "cola": Labels("01"), "mrpc": Labels("01"), "stsb": Labels(())}
    model = JointModel(base.encoder, tasks, labels).double().eval()
    tiny.shake(model.decoders)
    sentences = []
    for number, sentence in enumerate(example.sentence for example in worth.corpus(base, toy, 16)):
        if number % 3:
            bare = Sentence(sentence.words, tags=sentence.tags if number % 2 else None)
            sentences.append(bare.with_layers({"cola": str(number % 2)}))
        else:
            pair = Sentence(sentence.words, second=len(sentence) // 2)
            sentences.append(pair.with_layers({"mrpc": str(number % 2), "stsb": float(number)}))
    corpus = examples(sentences, model.encoder.tokenizer, model.tasks, model.labels)
    chosen = ablations("head", model.encoder.tap.remaining)
    plain, ours = evaluated(model, corpus, None), scores(model, corpus, chosen)
    assert list(ours) == ["pos", "cola", "mrpc", "stsb"]
    moved = 0.0
    for index, ablation in enumerate(chosen):
        expected = evaluated(model, corpus, ablation.scale(*SHAPE))
        for name, (unchanged, ablated) in ours.items():
            assert unchanged == pytest.approx(plain[name], abs=1e-4)
            assert ablated[index] == pytest.approx(expected[name], abs=1e-4), (ablation, name)
        moved += abs(expected["stsb"] - plain["stsb"])
    assert moved > 1

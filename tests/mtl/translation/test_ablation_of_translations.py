"""Ablation of translation models against closing each head in a search of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
import torch
from torch import Tensor

import mtl.translation.ablation as ablated_translations
from mtl.analysis.ablation import Ablation, Ablator, ablations, mean_outputs
from mtl.heads.gates import Mask
from mtl.models.batches import Batch, collate, examples
from mtl.models.joint import JointModel
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Labels
from mtl.translation.config import Seq2SeqConfig
from mtl.translation.pieces import train_vocabulary
from mtl.translation.seq2seq import Seq2Seq, from_scratch, translations
from mtl.translation.task import Translate
from tests.mtl import tiny
from tests.mtl.translation.digits import pair

PAIRS = [pair(digits) for digits in ("12", "7", "3041", "99", "580")]
SITES, HEADS = 6, 2


def joint_model(architecture: str) -> tuple[JointModel, Batch]:
    """A random model of 2 + 2 layers of 2 heads in double precision, and sentences of unequal length."""
    tokenizer = train_vocabulary([text for both in PAIRS for text in both], 300, 64)
    torch.manual_seed(1)
    transformer = from_scratch(Seq2SeqConfig(architecture, 2, None, 2, 16, 24, 0.1, 300), tokenizer)
    tiny.shake(transformer)
    encoder = Seq2Seq(transformer.double(), tokenizer, "digits", "names", max_length=14)
    model = JointModel(encoder, {"translate": Translate(beam=3)}, {"translate": Labels(())}).eval()
    sentences = [Sentence(tuple(source.split()), translate=target) for source, target in PAIRS]
    corpus = examples(sentences, encoder.tokenizer, model.tasks, model.labels)
    batch = collate(corpus, encoder.tokenizer, model.tasks)
    assert not bool(batch.subwords.attention_mask.all())
    return model, batch


def every_ablation(model: JointModel) -> list[Ablation]:
    """Single heads, layers, and sets over several kinds of attention."""
    remaining = model.encoder.tap.remaining
    chosen = [*ablations("layer", remaining), *ablations("head", remaining)]
    places = ({(1, 0), (5, 1)}, {(0, 1), (1, 0), (2, 0)}, {(3, 1), (4, 0)})
    return chosen + [Ablation("chosen", frozenset(of_set)) for of_set in places]


def searched(
    model: JointModel, batch: Batch, mask: Tensor | None, closed: Tensor, fill: Tensor | None
) -> list[str]:
    """One search for one ablation, which shares nothing."""
    with ExitStack() as scaled:
        if mask is not None:
            scaled.enter_context(model.encoder.tap.scale(mask))
        scaled.enter_context(model.encoder.tap.scale(closed, fill))
        return translations(model.encoder, model.tasks["translate"], batch.subwords, batch.sentences)


@contextmanager
def translated(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """All translations that ablation finds inside the block."""
    texts: list[str] = []

    def recorded(*given, **named) -> list[str]:
        texts.extend(of_pass := translations(*given, **named))
        return of_pass

    with monkeypatch.context() as patched:
        patched.setattr(ablated_translations, "translations", recorded)
        yield texts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "by", "masked"),
    [
        pytest.param("marian", "zero", False, marks=pytest.mark.slow),
        ("marian", "mean", True),
        ("t5", "zero", True),
        pytest.param("marian", "zero", True, marks=pytest.mark.slow),
        pytest.param("marian", "mean", False, marks=pytest.mark.slow),
        pytest.param("mbart", "zero", False, marks=pytest.mark.slow),
    ],
)
def test_ablations_translate_as_a_search_for_each_does(architecture, by, masked, monkeypatch) -> None:
    model, batch = joint_model(architecture)
    mask = None
    if masked:
        mask = torch.ones(SITES, HEADS, dtype=torch.float64)
        mask[0, 1], mask[1, 0], mask[3, 0], mask[4] = 0.5, 0.0, 0.7, 0.9
    masks = [Mask("", ("translate",), mask)]
    means = mean_outputs(model, [batch], masks) if by == "mean" else None
    chosen = every_ablation(model)
    # Searches of several copies, so that each holds ablations of several kinds.
    ablate = Ablator(model, chosen, means=means, masks=masks, passes=400)
    with translated(monkeypatch) as texts:
        counts = ablate(batch)["translate"]

    metric, sentences = Translate(beam=3).metric(), len(batch.sentences)
    expected = [searched(model, batch, mask, torch.ones(SITES, HEADS), None)]
    for index, ablation in enumerate(chosen):
        if mask is None or any(mask[place] != 0 for place in ablation.closed):
            closed, fill = ablation.scale(SITES, HEADS), None if means is None else means[""]
            expected.append(searched(model, batch, mask, closed, fill))
            alone = expected[-1]
        else:
            alone = expected[0]  # closes nothing that the mask leaves open
        np.testing.assert_array_equal(
            counts.ablated[index], metric.sentence_counts(alone, batch.sentences), err_msg=str(ablation)
        )
    np.testing.assert_array_equal(counts.unchanged, metric.sentence_counts(expected[0], batch.sentences))
    assert texts == [text for of_search in expected for text in of_search]
    # The ablations matter, or the comparison would show nothing.
    assert len({tuple(of_search) for of_search in expected}) > len(expected) // 2
    assert len(texts) == sentences * len(expected)


def test_the_encoder_is_called_once_for_heads_of_the_decoder() -> None:
    model, batch = joint_model("marian")
    remaining = model.encoder.tap.remaining
    sources = model.encoder.transformer.get_encoder()
    calls = {"encoder": 0, "first layer": 0, "rows": 0}

    def encoder_called(module, inputs, named) -> None:
        calls["encoder"] += 1
        calls["rows"] += len(named["input_ids"])

    def layer_called(module, inputs) -> None:
        calls["first layer"] += 1

    handles = [
        sources.register_forward_pre_hook(encoder_called, with_kwargs=True),
        sources.layers[0].fc1.register_forward_pre_hook(layer_called),
    ]
    above = [ablation for ablation in ablations("head", remaining) if ablation.site >= 2]
    assert len(above) == 8
    Ablator(model, above, passes=100)(batch)
    assert calls["encoder"] == 1
    assert calls["rows"] == len(batch.sentences)

    # Heads of the encoder's second layer: the first layer is not computed again, the encoder's rest is.
    calls.update(dict.fromkeys(calls, 0))
    of_second = [ablation for ablation in ablations("head", remaining) if ablation.site == 1]
    Ablator(model, of_second)(batch)
    assert calls["encoder"] == 2
    assert calls["rows"] == 3 * len(batch.sentences)
    assert calls["first layer"] == 1
    for handle in handles:
        handle.remove()

"""The loss of translations, against torch's own, and its gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from mtl.tasks.task import UNKNOWN
from mtl.translation.translator import (
    PieceTargets,
    Reference,
    Translator,
    collate_pieces,
    smoothed_cross_entropy,
)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_and_its_gradient_are_those_of_torch(smoothing):
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(5, 9, 13, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 13, (5, 9), generator=generator)
    targets[1, 4:] = UNKNOWN
    upstream = torch.rand(5, 9, generator=generator, dtype=torch.float64)
    results = []
    for loss in (
        lambda x: smoothed_cross_entropy(x, targets, smoothing),
        lambda x: functional.cross_entropy(
            x.flatten(0, 1), targets.flatten(), label_smoothing=smoothing, reduction="none"
        ).view(5, 9),
    ):
        leaf = scores.clone().requires_grad_()
        losses = loss(leaf)
        (losses * upstream).sum().backward()
        results.append((losses.detach(), leaf.grad))
    assert torch.allclose(results[0][0], results[1][0], atol=1e-12)
    assert torch.allclose(results[0][1], results[1][1], atol=1e-12)
    assert smoothed_cross_entropy(scores, targets, smoothing)[1, 4:].eq(0).all()


def test_narrow_scores_have_a_wide_loss():
    scores = torch.randn(2, 3, 7).bfloat16().requires_grad_()
    losses = smoothed_cross_entropy(scores, torch.ones(2, 3, dtype=torch.long), 0.1)
    assert losses.dtype == torch.float32
    losses.sum().backward()
    assert scores.grad.dtype == torch.bfloat16


def test_labels_are_smoothed_in_training_only_and_references_are_counted():
    decoder = Translator(0.3)
    targets = collate_pieces([PieceTargets(np.array([1, 2, 3])), PieceTargets(np.array([4]))])
    assert targets.pieces.tolist() == [[1, 2, 3], [4, UNKNOWN, UNKNOWN]]
    scores, mask = torch.randn(2, 3, 5), torch.ones(2, 1, dtype=torch.bool)
    training = decoder.loss(scores, targets, mask)
    plain = decoder.eval().loss(scores, targets, mask)
    assert not torch.allclose(training, plain)
    expected = -scores.log_softmax(2)[0, [0, 1, 2], [1, 2, 3]].sum()
    assert torch.allclose(plain[0], expected)
    references = decoder.references(scores, targets)
    assert [reference.pieces for reference in references] == [3, 1]
    assert isinstance(references[0], Reference)
    assert references[0].nats == pytest.approx(float(expected), rel=1e-5)
    score = decoder.structure_score(scores, targets, mask)
    assert score.items.tolist() == [3, 1]
    assert torch.allclose(score.score[1], scores[1, 0, 4])
    with pytest.raises(ValueError, match=r"JointModel\.decoded"):
        decoder.decode(scores, mask)

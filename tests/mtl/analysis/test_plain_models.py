"""`head_importance` and `ablate_heads` on a `transformers` model: against differences and scaled heads."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import TypeCheckError
from transformers import BertForSequenceClassification

from mtl import ablate_heads, head_importance, head_scale
from mtl.errors import InputError
from tests.mtl import tiny

SHAPE = (tiny.LAYERS, tiny.HEADS)
STEP = 1e-6


@pytest.fixture(scope="module")
def classifier():
    torch.manual_seed(0)
    model = BertForSequenceClassification(tiny.config("bert", num_labels=3)).double().eval()
    tiny.shake(model)
    return model


def class_loss(model, batch):
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    return torch.nn.functional.cross_entropy(logits, batch["labels"], reduction="none")


def class_batch():
    ids, mask = tiny.batch()
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([0, 1, 2, 1])}


def test_any_transformers_model_with_any_loss(classifier) -> None:
    batch = class_batch()
    table = head_importance(classifier, [batch], class_loss).filter(measure="importance")
    assert table.height == tiny.LAYERS * tiny.HEADS
    for row in table.iter_rows(named=True):
        losses = []
        for factor in (1 + STEP, 1 - STEP):
            scale = torch.ones(SHAPE, dtype=torch.float64)
            scale[row["layer"], row["head"]] = factor
            with torch.no_grad(), head_scale(classifier, scale):
                losses.append(class_loss(classifier, batch))
        expected = ((losses[0] - losses[1]) / (2 * STEP)).abs().mean()
        assert row["value"] == pytest.approx(float(expected), rel=1e-3)
        assert row["count"] == 4


@pytest.mark.parametrize("fault", ["mean", "detached"])
def test_a_loss_that_is_no_vector_of_rows_is_refused(classifier, fault) -> None:
    def loss(model, batch):
        value = class_loss(model, batch)
        return value.mean() if fault == "mean" else value.detach()

    with pytest.raises(InputError, match="reduction='none'"):
        head_importance(classifier, [class_batch()], loss)


def test_no_batches_are_refused(classifier) -> None:
    with pytest.raises(InputError, match="at least one batch"):
        head_importance(classifier, [], class_loss)


def class_score(model, batch):
    return -class_loss(model, batch)


@pytest.mark.parametrize(("kind", "copies"), [("head", 1), ("head", 3), ("layer", 2), ("all_but_one", 4)])
def test_any_transformers_model_with_any_score(classifier, kind, copies) -> None:
    batch = class_batch()
    table = ablate_heads(classifier, [batch, batch], class_score, kind=kind, copies=copies, draws=20)
    assert table.height == (tiny.LAYERS if kind == "layer" else tiny.LAYERS * tiny.HEADS)
    with torch.no_grad():
        plain = class_score(classifier, batch).mean()
        for row in table.iter_rows(named=True):
            scale = torch.ones(SHAPE, dtype=torch.float64)
            if kind == "head":
                scale[row["layer"], row["head"]] = 0
            else:
                scale[row["layer"]] = 0
            if kind == "all_but_one":
                scale[row["layer"], row["head"]] = 1
            with head_scale(classifier, scale):
                assert row["loss"] == pytest.approx(float(plain - class_score(classifier, batch).mean()))


def test_a_kind_of_ablation_that_is_none_is_refused(classifier) -> None:
    # Types are checked first in tests, not where `mtl` is installed.
    with pytest.raises((InputError, TypeCheckError), match="chosen"):
        ablate_heads(classifier, [class_batch()], class_score, kind="chosen")


def test_a_score_that_is_no_vector_of_rows_is_refused() -> None:
    model = tiny.model("bert")
    ids, mask = tiny.batch()
    batch = {"input_ids": ids, "attention_mask": mask}
    with pytest.raises(InputError, match="one value for each of the 4 rows"):
        ablate_heads(model, [batch], lambda model, batch: model(**batch).last_hidden_state.mean())
    with pytest.raises(InputError, match="at least one batch"):
        ablate_heads(model, [], lambda model, batch: torch.zeros(4))

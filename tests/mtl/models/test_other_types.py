"""Joint models in other types than float32, without values (on `meta`) and with NaN."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch

from mtl.errors import InputError
from mtl.models.joint import JointModel
from tests.mtl.analysis import worth

WORDS = [["The", "dog", "saw", "a", "cat"], ["We", "ate"]]


@pytest.fixture(scope="module")
def made(toy: Path) -> JointModel:
    return worth.joint_model(toy, ("pos", "ner", "dep", "con", "srl")).eval()


@pytest.mark.parametrize("part", ["whole", "encoder"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_a_model_of_any_type_annotates(part: str, dtype: torch.dtype, made: JointModel) -> None:
    model = copy.deepcopy(made)
    (model if part == "whole" else model.encoder.transformer).to(dtype)
    annotated = model.annotate(WORDS)
    assert [list(sentence.words) for sentence in annotated] == WORDS
    if dtype == torch.float64:
        assert annotated == made.annotate(WORDS)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("part", ["encoder.transformer", "decoders.pos", "decoders.dep"])
def test_scores_that_are_no_numbers_are_named_and_not_saved(
    part: str, value: float, made: JointModel, tmp_path: Path
) -> None:
    model = copy.deepcopy(made)
    for parameter in model.get_submodule(part).parameters():
        parameter.data.fill_(value)
    name = part.rpartition(".")[2] if "decoders" in part else "pos"
    with pytest.raises(InputError, match=f"the scores of {name} are not numbers"):
        model.annotate(WORDS)
    with pytest.raises(InputError, match=f"{part}.*not finite"):
        model.save_pretrained(tmp_path / "broken")
    assert not (tmp_path / "broken").exists()


def test_a_model_without_numbers_is_named(made: JointModel) -> None:
    with pytest.raises(InputError, match=r"annotate: .* is on the device meta"):
        copy.deepcopy(made).to("meta").annotate(WORDS)

"""A text has one annotation: `mtl serve` answers what `annotate_text` returns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings

from mtl.models.joint import JointModel
from mtl.serving.service import Limits, parsed, response_body, sentence_body
from tests.kit.texts import TEXT
from tests.mtl.analysis import worth

LIMITS = Limits(bytes=1 << 20, sentences=1000, words=1000, waiting=1000, seconds=9)


@pytest.fixture(scope="module")
def model(toy: Path) -> JointModel:
    return worth.joint_model(toy, ("pos", "ner"), dtype=torch.float32)


def of_service(model: JointModel, text: str) -> dict[str, Any]:
    request = parsed(json.dumps({"text": text}).encode(), ["pos"], "en", LIMITS)
    found = model.annotate(request.sentences, probabilities=1)
    return json.loads(response_body(request, [sentence_body(each, None) for each in found]))


@given(text=TEXT)
@example(text="Annual report\n\nAnn ate in Paris.\n")
@example(text="Thanks!!\r\n\r\nGreat !!! See  you.\u2029Bye\u00a0now")
@example(text="\x00\x07We\x1f ate\u2028\u2028It rained")
@example(text="\ufeffHe left.\n\ufeff\n\ufeff\ufeffIt rained.")
@settings(deadline=None, max_examples=60)
def test_the_service_answers_what_annotate_text_returns(model: JointModel, text: str) -> None:
    assert of_service(model, text) == json.loads(json.dumps(model.annotate_text(text).to_json()))

"""Models of images and sound, and a row that is given by its name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mtl.collaborative.sharing import collaborate
from mtl.errors import InputError
from mtl.heads.attentions import attentions
from mtl.heads.families import family_of
from mtl.heads.family_table import FAMILIES
from mtl.heads.load import load_pruned
from tests.mtl import sensory

FAST = ("beit", "clip", "vit", "wav2vec2")
"""One for each way in which models are laid out."""


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in sensory.NAMES]
)
def test_shared_components_leave_the_output(name: str, tmp_path: Path) -> None:
    model, given = sensory.model(name), sensory.batch(name)
    found = attentions(model, family_of(model))
    with torch.no_grad():
        plain = sensory.vectors(model, given)
        if FAMILIES[name].not_shareable_because:
            with pytest.raises(InputError, match="cannot share query and key components"):
                collaborate(model, 8)
            return
        collaborate(model, max(place.heads * place.size for place in found), steps=1)
        torch.testing.assert_close(sensory.vectors(model, given), plain, rtol=0, atol=1e-6)
        model.save_pretrained(tmp_path)
        torch.testing.assert_close(sensory.vectors(load_pruned(tmp_path), given), plain, rtol=0, atol=1e-6)


def test_a_row_of_the_table_is_given_by_its_name() -> None:
    model = sensory.model("vit")
    model.config.model_type = "vit-of-ours"
    collaborate(model, 16, steps=1, family="vit")

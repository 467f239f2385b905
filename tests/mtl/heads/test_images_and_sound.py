"""Models of images and sound: the laws of the table hold for their inputs, too."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Mapping
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PreTrainedModel,
    WhisperConfig,
    WhisperForConditionalGeneration,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from mtl import (
    ablate_heads,
    head_importance,
    head_scale,
    load_pruned,
    plot_heads,
    prune_heads,
)
from mtl.errors import InputError
from mtl.heads.attentions import Attention, attentions, recorded_cuts
from mtl.heads.families import family_of
from mtl.probes.sites import with_names
from tests.mtl import sensory, tiny
from tests.mtl.sensory import vectors

FAST = ("beit", "clip", "vit", "wav2vec2")
"""One for each way in which models are laid out."""
structures = pytest.mark.parametrize("name", tiny.of_structure(sensory.NAMES))
families = pytest.mark.parametrize(
    "name",
    [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in sensory.NAMES],
)
FLOAT32_INSIDE = ("dinov3_vit",)
"""Families that compute rotations in float32 whatever their weights are."""


def score(model: PreTrainedModel, given: Mapping[str, Tensor]) -> Tensor:
    """A number for each row, on the scale of one."""
    return vectors(model, given).flatten(1).mul(7).sin().mean(1)


def sites(model: PreTrainedModel) -> list[Attention]:
    return attentions(model, family_of(model))


def cuts(found: list[Attention]) -> dict[int, list[int]]:
    """Some heads of each site; the first one of each kind loses all."""
    return {
        site: list(range(place.heads)) if not place.site.layer else [place.heads - 1]
        for site, place in enumerate(found)
    }


def without(model: PreTrainedModel, heads: Mapping[int, list[int]]) -> Tensor:
    found = sites(model)
    scale = torch.ones(len(found), max(place.heads for place in found), dtype=torch.float64)
    for site, cut in heads.items():
        scale[site, cut] = 0
    return scale


@families
def test_a_scale_is_that_of_the_columns_of_the_output_projection(name: str) -> None:
    model, given = sensory.model(name), sensory.batch(name)
    found = sites(model)
    generator = torch.Generator().manual_seed(2)
    scale = torch.rand(without(model, {}).shape, generator=generator, dtype=torch.float64)
    scale[:, 1] = 0
    with torch.no_grad():
        plain = vectors(model, given)
        with head_scale(model, torch.ones_like(scale)):
            assert torch.equal(vectors(model, given), plain)
        with head_scale(model, scale):
            scaled = vectors(model, given)
        zeroed = copy.deepcopy(model)
        for site, place in enumerate(sites(zeroed)):
            place.output.weight *= scale[site, : place.heads].repeat_interleave(place.size)
        torch.testing.assert_close(vectors(zeroed, given), scaled, rtol=0, atol=1e-6)
        of_rows = torch.stack([scale, torch.ones_like(scale), torch.ones_like(scale)])
        with head_scale(model, of_rows):
            by_row = score(model, given)
        # In a matrix of images and captions, the first image meets captions under other scales.
        if len({place.site.attention for place in found}) == 1 or name in ("whisper", "speech_to_text"):
            with head_scale(model, scale):
                torch.testing.assert_close(by_row[0], score(model, given)[0], rtol=0, atol=1e-6)
            torch.testing.assert_close(by_row[1:], score(model, given)[1:], rtol=0, atol=1e-6)
    assert (scaled - plain).abs().max() > 1e-3


@structures
def test_importance_is_the_finite_difference(name: str) -> None:
    model, given = sensory.model(name), sensory.batch(name)
    table = head_importance(model, [given], score)
    found = sites(model)
    size, tolerance = (1e-2, 1e-3) if name in FLOAT32_INSIDE else (1e-4, 1e-6)
    taylor = table.filter(table["measure"] == "taylor")
    assert taylor.height == sum(place.heads for place in found)
    values = dict(zip(taylor.select("attention", "layer", "head").iter_rows(), taylor["value"], strict=True))
    for site, place in enumerate(found):
        head = site % place.heads
        steps = []
        for step in (-size, size):
            scale = without(model, {})
            scale[site, head] += step
            with torch.no_grad(), head_scale(model, scale):
                steps.append(score(model, given).mean().item())
        slope = (steps[1] - steps[0]) / (2 * size)
        np.testing.assert_allclose(-values[*place.site, head], slope, tolerance * 10, tolerance)


@structures
def test_ablation_is_closing_each_head(name: str) -> None:
    model, given = sensory.model(name), sensory.batch(name)
    table = ablate_heads(model, [given], score, draws=5, copies=3)
    found = sites(model)
    assert table.height == sum(place.heads for place in found)
    lost = dict(zip(table.select("attention", "layer", "head").iter_rows(), table["loss"], strict=True))
    with torch.no_grad():
        plain = score(model, given).mean()
        for site, place in enumerate(found):
            for head in (1, place.heads - 1):
                with head_scale(model, without(model, {site: [head]})):
                    expected = (plain - score(model, given).mean()).item()
                assert lost[*place.site, head] == pytest.approx(expected, abs=1e-7)
    assert table["loss"].abs().max() > 1e-4
    figure, axes = plot_heads(table)
    assert axes.images[0].get_array().count() == table.height
    plt.close(figure)
    kinds = [place.site.attention for place in found]
    assert with_names(table)["name"][1] == (f"{kinds[0]} L0H1" if len({*kinds}) > 1 else "L0H1")


@families
def test_a_cut_model_is_the_masked_model_and_loads(name: str, tmp_path: Path) -> None:
    model, given = sensory.model(name), sensory.batch(name)
    heads = cuts(sites(model))
    with torch.no_grad():
        plain = vectors(model, given)
        with head_scale(model, without(model, heads)):
            masked = vectors(model, given)
        before = model.num_parameters()
        prune_heads(model, heads)
        torch.testing.assert_close(vectors(model, given), masked, rtol=0, atol=1e-6)
    assert (masked - plain).abs().max() > 1e-3
    assert model.num_parameters() < before - sum(map(len, heads.values())) * 4 * 24 * 8 / 2
    assert recorded_cuts(model.config) == heads
    attended = model(**given, output_attentions=True)
    kinds = [key for key in attended if "attentions" in key]
    assert all(part.shape[1] == 0 for key in kinds for part in attended[key][:1])
    model.save_pretrained(tmp_path)
    loaded = load_pruned(tmp_path)
    assert type(loaded) is type(model)
    with torch.no_grad():
        torch.testing.assert_close(vectors(loaded, given), masked, rtol=0, atol=1e-6)
    with pytest.raises(RuntimeError, match=r"size mismatch|mismatch"):
        type(model).from_pretrained(tmp_path)


def classes(name: str) -> list[str]:
    """The classes of a family's models, with and without a head on top."""
    config = CONFIG_MAPPING[name]
    module = importlib.import_module(config.__module__.replace("configuration", "modeling"))
    kinds = {kind: getattr(module, kind) for kind in module.__all__}
    return [
        kind
        for kind, found in kinds.items()
        if issubclass(found, PreTrainedModel) and found.config_class is config
        if not kind.endswith(("PreTrainedModel", "ForPreTraining", "ForSemanticSegmentation", "CausalLM"))
    ]


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name in tiny.of_structure(sensory.NAMES) for kind in classes(name)]
)
def test_every_class_is_read_again(name: str, kind: str, tmp_path: Path) -> None:
    model = sensory.model(name, kind=kind)
    prune_heads(model, cuts(sites(model)))
    model.save_pretrained(tmp_path)
    loaded, expected = load_pruned(tmp_path), model.state_dict()
    assert type(loaded).__name__ == kind
    assert loaded.state_dict().keys() == expected.keys()
    assert all(torch.equal(weight, expected[path]) for path, weight in loaded.state_dict().items())


def test_a_cut_model_of_speech_writes_with_its_cache_what_the_masked_one_does() -> None:
    torch.manual_seed(0)
    settings = WhisperConfig(**sensory.SPEECH, suppress_tokens=None, begin_suppress_tokens=None)
    model = WhisperForConditionalGeneration(settings).double().eval()
    tiny.shake(model)
    heads, sound = cuts(sites(model)), sensory.batch("whisper")["input_features"]
    limits = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    with head_scale(model, without(model, heads)):
        masked = model.generate(sound, use_cache=False, **limits)
    prune_heads(model, heads)
    assert torch.equal(model.generate(sound, use_cache=True, **limits), masked)


@torch.no_grad()
def test_towers_are_scaled_and_cut_by_themselves_inside_a_whole_model(tmp_path: Path) -> None:
    model, given = sensory.model("clip"), sensory.batch("clip")
    tower = model.vision_model
    with head_scale(tower, torch.tensor([[1.0, 0, 1, 1], [0, 0, 0, 0]])):
        scaled = vectors(model, given)
    with head_scale(model, without(model, {0: [1], 1: [0, 1, 2, 3]})):
        assert torch.equal(scaled, vectors(model, given))
    prune_heads(tower, {0: [1], 1: [0, 1, 2, 3]})
    prune_heads(model.text_model, {1: [0]})
    expected = vectors(model, given)
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(vectors(load_pruned(tmp_path), given), expected, rtol=0, atol=1e-9)


@torch.no_grad()
def test_the_parts_of_a_model_without_a_row_are_cut_saved_and_loaded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    settings = LlavaConfig(
        vision_config=CLIPVisionConfig(**sensory.IMAGES).to_dict(),
        text_config=LlamaConfig(
            **sensory.OF_VECTORS, vocab_size=50, num_key_value_heads=2, pad_token_id=0, bos_token_id=1,
            eos_token_id=2,
        ).to_dict(),
        image_token_index=49,
    )  # fmt: skip
    model = LlavaForConditionalGeneration(settings).eval()
    with pytest.raises(InputError, match=r"made of several models.*use one of its parts, such as \.model"):
        prune_heads(model, {0: [0]})
    prune_heads(model.model.language_model, {0: [1]})
    prune_heads(model.model.vision_tower, {1: [3]})
    given = {
        "input_ids": torch.tensor([[5, 49, 49, 49, 49, 7]]),
        "pixel_values": sensory.batch("vit")["pixel_values"][:1].float(),
    }
    expected = model(**given).logits
    model.save_pretrained(tmp_path)
    loaded = load_pruned(tmp_path)
    assert torch.equal(loaded(**given).logits, expected)
    assert loaded.model.language_model.config.keys_of_heads == {0: [0, 1, 1]}


def test_a_loss_on_what_comes_before_all_heads_is_worth_nothing() -> None:
    model, given = sensory.model("vit"), sensory.batch("vit")

    def first(model: PreTrainedModel, batch: Mapping[str, Tensor]) -> Tensor:
        return model(**batch, output_hidden_states=True).hidden_states[0].square().sum((1, 2))

    assert set(head_importance(model, [given], first)["value"]) == {0.0}
    assert not any(parameter.grad is not None for parameter in model.parameters())

"""Models made of parts: a change of the whole shows in its parts, and a change of a part in the whole."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import MT5EncoderModel, PreTrainedModel, T5EncoderModel, UMT5EncoderModel

from mtl import head_importance, head_scale, load_pruned, prune_heads
from mtl.errors import InputError
from mtl.heads.attentions import Attention, attentions, is_whole
from mtl.heads.families import family_of
from mtl.heads.family_table import FAMILIES
from mtl.heads.load import load_model
from mtl.heads.tap import HeadTap
from tests.mtl import sensory, tiny

STACKED = tuple(name for name, family in FAMILIES.items() if len(family.stacks) > 1)
"""All families whose models have several stacks of attention."""
structures = pytest.mark.parametrize("name", tiny.of_structure(STACKED))
families = pytest.mark.parametrize(
    "name",
    [name if name in tiny.STRUCTURES else pytest.param(name, marks=pytest.mark.slow) for name in STACKED],
)
TOWERS = tuple(name for name, family in FAMILIES.items() if any(stack.config for stack in family.stacks))


def build(name: str) -> PreTrainedModel:
    """A model whose stacks have different numbers of layers, where the configuration can say so."""
    if name in sensory.NAMES:
        return sensory.model(name)
    key = "num_layers" if name in ("t5", "mt5", "umt5") else "encoder_layers"
    return tiny.translator(name, **{key: 3})


def sites(model: PreTrainedModel) -> list[Attention]:
    return attentions(model, family_of(model))


def parts(model: PreTrainedModel) -> dict[str, PreTrainedModel]:
    """The models inside a model that have heads."""
    return {
        path: part
        for path, part in model.named_modules()
        if isinstance(part, PreTrainedModel) and part.config.model_type in FAMILIES
    }


def agree(model: PreTrainedModel) -> bool:
    """Whether each part states the heads that the whole does; the parts must have all of its modules."""
    heads = {place.module: (place.site.layer, place.remaining, place.size) for place in sites(model)}
    found = [place for path, part in parts(model).items() if path for place in sites(part)]
    assert {place.module for place in found} == heads.keys()
    return all((place.site.layer, place.remaining, place.size) == heads[place.module] for place in found)


def cut_some(model: PreTrainedModel, head: int) -> None:
    """Cut a head of every site, each time another one, and in the end all heads of the first and last."""
    places = sites(model)
    heads = {site: [(head + site) % place.heads] for site, place in enumerate(places) if site % 3 != head % 3}
    if head == 2:
        heads |= {site: list(range(places[site].heads)) for site in (0, len(places) - 1)}
    prune_heads(model, heads)


def outputs(name: str, model: PreTrainedModel) -> Tensor:
    given = sensory.batch(name) if name in sensory.NAMES else tiny.parallel_batch()
    with torch.no_grad():
        found = model(**given)
    return found[0] if isinstance(found[0], Tensor) else found.last_hidden_state


@families
def test_parts_of_a_changed_model_are_what_the_whole_is(name: str, tmp_path: Path) -> None:
    model = build(name)
    assert agree(model)
    for head in range(3):
        cut_some(model, head)
        assert agree(model)
        assert agree(copy.deepcopy(model))
        assert agree(pickle.loads(pickle.dumps(model)))
    model.save_pretrained(tmp_path)
    loaded = load_pruned(tmp_path)
    assert agree(loaded)
    assert [place.remaining for place in sites(loaded)] == [place.remaining for place in sites(model)]
    torch.testing.assert_close(outputs(name, loaded), outputs(name, model), rtol=0, atol=1e-9)
    prune_heads(loaded, {1: sites(loaded)[1].remaining[:1]})
    assert agree(loaded)


@structures
def test_parts_of_a_cut_model_are_scaled(name: str) -> None:
    model = build(name)
    cut_some(model, 0)
    whole, plain = HeadTap(model, family_of(model)), outputs(name, model)
    for path, part in parts(model).items():
        tap = HeadTap(part, family_of(part))
        scale = torch.ones(len(tap.sites), tap.heads, dtype=torch.float64)
        with head_scale(part, scale):
            assert torch.equal(outputs(name, model), plain)
        scale[:, 1] = 0.5
        with head_scale(part, scale):
            found = outputs(name, model)
        modules = {place.module for place in sites(part)}
        scale = torch.ones(len(whole.sites), whole.heads, dtype=torch.float64)
        scale[[site for site, place in enumerate(sites(model)) if place.module in modules], 1] = 0.5
        with head_scale(model, scale):
            assert torch.equal(outputs(name, model), found), path
        assert not torch.equal(found, plain)


@structures
def test_a_part_that_is_cut_alone_is_cut_in_the_whole(name: str, tmp_path: Path) -> None:
    model, reference = build(name), build(name)
    inside = {path: part for path, part in parts(model).items() if path}
    for path, part in inside.items():
        if not is_whole(part, family_of(part)):
            with pytest.raises(InputError, match="part of an encoder-decoder model: use the whole model"):
                prune_heads(part, {0: [1]})
            continue
        prune_heads(part, {0: [1], 1: [0]})
        first = next(site for site, place in enumerate(sites(model)) if place.module is sites(part)[0].module)
        prune_heads(reference, {first: [1], first + 1: [0]})
        assert agree(model), path
    assert agree(model)
    assert torch.equal(outputs(name, model), outputs(name, reference))
    cut_some(model, 2)
    cut_some(reference, 2)
    assert agree(model)
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(
        outputs(name, load_pruned(tmp_path)), outputs(name, reference), rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("name", TOWERS)
def test_towers_are_saved_and_loaded_by_themselves(name: str, tmp_path: Path) -> None:
    model = build(name)
    cut_some(model, 0)
    for kind in ("vision", "text"):
        tower = getattr(model, f"{kind}_model")
        tower.save_pretrained(tmp_path / kind)
        loaded = load_pruned(tmp_path / kind)
        assert [place.remaining for place in sites(loaded)] == [place.remaining for place in sites(tower)]
        assert all(torch.equal(one, tower.state_dict()[key]) for key, one in loaded.state_dict().items())


@pytest.mark.parametrize("name", ["t5", "mt5", "umt5"])
def test_an_encoder_of_a_cut_model_is_measured_and_loaded_alone(name: str, tmp_path: Path) -> None:
    model = build(name)
    cut_some(model, 1)
    ids, mask = tiny.batch()

    def score(encoder: PreTrainedModel, batch: Tensor) -> Tensor:
        return encoder(input_ids=batch, attention_mask=mask).last_hidden_state.tanh().sum((1, 2))

    expected = head_importance(model.get_encoder(), [ids], score)
    left = sum(len(place.remaining) for place in sites(model) if place.site.attention == "encoder")
    assert (expected["measure"] == "taylor").sum() == left
    assert head_importance(model.encoder, [ids], score).equals(expected)
    model.get_encoder().save_pretrained(tmp_path / "stack")
    stack = load_pruned(tmp_path / "stack")
    assert type(stack) is type(model.get_encoder())
    assert head_importance(stack, [ids], score).equals(expected)
    alone = {"t5": T5EncoderModel, "mt5": MT5EncoderModel, "umt5": UMT5EncoderModel}[name]
    model.save_pretrained(tmp_path / "whole")
    encoder = load_model(tmp_path / "whole", alone, model.config).model
    assert agree(encoder)
    assert head_importance(encoder, [ids], score).equals(expected)
    prune_heads(encoder, {1: [3]})
    assert agree(encoder)
    assert 3 in sites(model)[1].remaining
    encoder.save_pretrained(tmp_path / "encoder")
    again = load_pruned(tmp_path / "encoder")
    assert type(again) is alone
    assert agree(again)
    torch.testing.assert_close(score(again, ids), score(encoder, ids), rtol=0, atol=1e-9)


def test_a_decoder_of_a_cut_model_is_not_loaded_alone(tmp_path: Path) -> None:
    model = build("bart")
    model.get_decoder().save_pretrained(tmp_path / "uncut")
    assert type(load_pruned(tmp_path / "uncut")) is type(model.get_decoder())
    prune_heads(model, {0: [1]})
    model.get_decoder().save_pretrained(tmp_path / "cut")
    with pytest.raises(InputError, match=r"Decoder does not have: save and load the whole model"):
        load_pruned(tmp_path / "cut")


@pytest.mark.parametrize("name", ["bert", "llama", "t5", "clip"])
def test_two_models_of_one_configuration_are_changed_apart(name: str, tmp_path: Path) -> None:
    first = tiny.model(name) if name in tiny.NAMES else build(name)
    config = first.config
    second = type(first)(config)
    prune_heads(first, {0: [0, 1], 1: [1]})
    for part in first.modules():
        assert all(value is not config for value in vars(part).values())
        if isinstance(part, PreTrainedModel):
            assert part.config._attn_implementation == config._attn_implementation
    assert [place.remaining for place in sites(second)] == [tuple(range(p.heads)) for p in sites(second)]
    second.save_pretrained(tmp_path / "second")
    assert all(len(place.remaining) == place.heads for place in sites(load_pruned(tmp_path / "second")))
    prune_heads(second, {1: [0]})
    assert sites(second)[0].remaining == tuple(range(sites(second)[0].heads))
    assert 0 not in sites(first)[0].remaining
    first.save_pretrained(tmp_path / "first")
    assert [p.remaining for p in sites(load_pruned(tmp_path / "first"))] == [
        p.remaining for p in sites(first)
    ]
    assert not hasattr(config, "pruned_heads")

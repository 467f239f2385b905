"""Encoder-decoder models: the laws of the table hold for all three kinds of attention."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from mtl import ablate_heads, head_importance
from mtl.errors import InputError
from mtl.heads.attentions import attentions, recorded_cuts
from mtl.heads.families import family_of
from mtl.heads.load import load_pruned
from mtl.heads.prune import prune_heads
from mtl.heads.replay import LayerReplay
from mtl.heads.tap import HeadTap, eager_attention, head_scale
from mtl.models.tapped import TappedModel
from mtl.probes.sites import Site
from tests.mtl import tiny

translators = pytest.mark.parametrize("name", tiny.EVERY_TRANSLATOR)
structures = pytest.mark.parametrize("name", tiny.of_structure(tiny.TRANSLATORS))
SITES = 6
KINDS = ("encoder", "decoder", "cross")
# One site of each kind loses all of its heads: in the first layers, whose biases and caches others read.
CUTS: tuple[dict[int, list[int]], ...] = (
    {0: [0, 1, 2, 3], 1: [2], 2: [0, 1, 2, 3], 3: [1, 3], 4: [0, 1, 2, 3], 5: [0]},
    {0: [1], 2: [0, 3], 4: [1, 2]},
    {1: [0, 1, 2, 3], 3: [0, 1, 2, 3], 5: [0, 1, 2, 3]},
    {4: [0, 1, 2, 3], 5: [0, 1, 2, 3]},
)


def losses(model: PreTrainedModel, given: Mapping[str, Tensor]) -> Tensor:
    return tiny.logits(model, given).log_softmax(-1)[..., 5].mean(1)


def without(heads: Mapping[int, list[int]]) -> Tensor:
    scale = torch.ones(SITES, tiny.HEADS, dtype=torch.float64)
    for site, cut in heads.items():
        scale[site, cut] = 0
    return scale


@translators
def test_scales_of_one_and_of_zero_at_every_site(name: str) -> None:
    model = tiny.translator(name)
    tap = HeadTap(model, family_of(model))
    assert tap.sites == tuple(Site(kind, layer) for kind in KINDS for layer in range(2))
    given = tiny.parallel_batch()
    plain = tiny.logits(model, given)
    with tap.scale(without({})):
        assert torch.equal(tiny.logits(model, given), plain)
    for site in range(SITES):
        scale = without({site: [0, 2, 3]})
        with tap.scale(scale):
            gated = tiny.logits(model, given)
        zeroed = copy.deepcopy(model)
        attentions(zeroed, family_of(zeroed))[site].output.weight.data *= scale[site].repeat_interleave(8)
        torch.testing.assert_close(gated, tiny.logits(zeroed, given), rtol=0, atol=1e-12)
        assert (gated - plain).abs().max() > 1e-6


@structures
def test_what_is_observed_is_what_the_projection_of_the_site_is_given(name: str) -> None:
    model = tiny.translator(name)
    tap = HeadTap(model, family_of(model))
    given: dict[int, Tensor] = {}
    handles = [
        attention.output.register_forward_pre_hook(
            lambda module, inputs, site=site: given.update({site: inputs[0]})  # type: ignore[misc]
        )
        for site, attention in enumerate(attentions(model, family_of(model)))
    ]
    with tap.observe() as outputs:
        tiny.logits(model)
    for handle in handles:
        handle.remove()
    assert len(outputs) == SITES
    for site, output in enumerate(outputs):
        assert torch.equal(output.flatten(2), given[site])


@pytest.mark.parametrize(("name", "heads"), tiny.with_variants(tiny.TRANSLATORS, *zip(CUTS, strict=True)))
def test_a_cut_model_is_the_masked_model(name: str, heads: dict[int, list[int]]) -> None:
    model = tiny.translator(name)
    given = tiny.parallel_batch()
    plain = tiny.logits(model, given)
    with head_scale(model, without(heads)):
        masked = tiny.logits(model, given)
    assert (masked - plain).abs().max() > 1e-4
    before = model.num_parameters()
    prune_heads(model, heads)
    torch.testing.assert_close(tiny.logits(model, given), masked, rtol=0, atol=1e-5)
    gone = sum(len(cut) for cut in heads.values())
    assert before - model.num_parameters() >= gone * 4 * 32 * 8
    kept = [8 * (4 - len(heads.get(site, ()))) for site in range(SITES)]
    assert [attention.output.weight.shape[1] for attention in attentions(model, family_of(model))] == kept


@structures
def test_cutting_in_steps_is_cutting_at_once(name: str) -> None:
    once, steps = tiny.translator(name), tiny.translator(name)
    prune_heads(once, CUTS[0])
    prune_heads(steps, {site: cut[:1] for site, cut in CUTS[0].items()})
    prune_heads(steps, CUTS[0])
    assert recorded_cuts(once.config) == recorded_cuts(steps.config) == CUTS[0]
    torch.testing.assert_close(
        tiny.logits(steps),
        tiny.logits(once),
        rtol=0,
        atol=1e-12,
    )


@structures
def test_a_cut_model_saves_loads_and_trains_on(name: str, tmp_path: Path) -> None:
    model = tiny.translator(name, dtype=torch.float32)
    prune_heads(model, CUTS[0])
    given = tiny.parallel_batch()
    expected = tiny.logits(model, given)
    model.save_pretrained(tmp_path)
    loaded = load_pruned(tmp_path)
    assert type(loaded) is type(model)
    assert recorded_cuts(loaded.config) == CUTS[0]
    torch.testing.assert_close(tiny.logits(loaded, given), expected, rtol=0, atol=1e-6)
    optimiser = torch.optim.AdamW(loaded.parameters(), lr=1e-2)
    history = []
    for _ in range(6):
        loss = -losses(loaded, given).mean()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        history.append(loss.item())
    assert history[-1] < history[0]


@pytest.mark.parametrize("name", tiny.of_structure(tiny.TRANSLATORS))
def test_probabilities_have_an_entry_for_each_layer_or_none(name: str) -> None:
    """Attention by `sdpa` computes none, and a list of layers without heads alone would mislead."""
    model = tiny.translator(name)
    prune_heads(model, {1: range(4), 2: range(4), 5: range(4)})
    for implementation, entries in (("sdpa", [[], [], []]), ("eager", [[4, 0], [0, 4], [4, 0]])):
        model.set_attn_implementation(implementation)
        output = model(**tiny.parallel_batch(), output_attentions=True)
        kinds = (output.encoder_attentions, output.decoder_attentions, output.cross_attentions)
        assert [[matrices.shape[1] for matrices in kind] for kind in kinds] == entries


@pytest.mark.parametrize("name", tiny.of_structure(tiny.TRANSLATORS))
@pytest.mark.parametrize("heads", [[0], [0, 1, 2, 3]])
def test_a_cut_model_generates_with_a_static_cache(name: str, heads: list[int]) -> None:
    """The cache has room for all positions from the start, and T5's bias by position covers them."""
    model = tiny.translator(name)
    prune_heads(model, {0: heads, 2: heads, 4: heads})
    settings = {"input_ids": tiny.batch()[0], "max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    plain = model.generate(**settings, use_cache=False)
    assert torch.equal(model.generate(**settings, cache_implementation="static"), plain)


@pytest.mark.parametrize(
    ("name", "heads", "beams"),
    tiny.with_options(tiny.TRANSLATORS, [CUTS[0], CUTS[1], CUTS[3]], [3, 1]),
)
def test_a_cut_model_generates_with_its_cache_what_the_masked_one_does(
    name: str, heads: dict[int, list[int]], beams: int
) -> None:
    model = tiny.translator(name)
    given = {key: value for key, value in tiny.parallel_batch().items() if not key.startswith("decoder")}
    settings = {"max_new_tokens": 8, "num_beams": beams, "do_sample": False, "min_new_tokens": 8}
    with head_scale(model, without(heads)):
        masked = model.generate(**given, **settings, use_cache=False)
    prune_heads(model, heads)
    assert torch.equal(model.generate(**given, **settings, use_cache=True), masked)
    batch, source = tiny.parallel_batch(), tiny.parallel_batch()["input_ids"]
    with eager_attention(model):
        cached, plain = (model(**batch, use_cache=use, output_attentions=True) for use in (True, False))
    torch.testing.assert_close(cached.logits, plain.logits, rtol=0, atol=1e-9)
    assert cached.past_key_values.get_seq_length() == batch["decoder_input_ids"].shape[1]
    assert {part.shape[3] for part in cached.cross_attentions} == {source.shape[1]}


@translators
def test_replay_at_every_site_equals_whole_passes(name: str) -> None:
    model = tiny.translator(name)
    tap, replay = HeadTap(model, family_of(model)), LayerReplay(model, family_of(model))
    given = tiny.parallel_batch()
    with torch.no_grad():
        with replay.record():
            plain = tiny.logits(model, given)
        for site in range(SITES):
            scales = torch.stack([without({site: [head]}) for head in range(2)])
            with tap.scale(scales[0]):
                first = tiny.logits(model, given)
            with tap.scale(scales[1]):
                second = tiny.logits(model, given)
            twice = {key: value.repeat(2, 1) for key, value in given.items()}
            with replay.start_at(site, 2), tap.scale(scales.repeat_interleave(4, 0)):
                both = tiny.logits(model, twice)
            torch.testing.assert_close(both, torch.cat([first, second]), rtol=0, atol=1e-12)
        # The sites of a decoder's layer alternate.
        assert replay.first([3, 4]) == 4
        assert replay.first([2, 4]) == 2
        assert replay.first([0, 5]) == 0
        assert torch.equal(tiny.logits(model, given), plain)


@translators
def test_importance_is_the_derivative_in_the_gate(name: str) -> None:
    model = tiny.translator(name)
    given = tiny.parallel_batch()
    table = head_importance(model, [given], losses).sort("measure", maintain_order=True)
    taylor = table.filter(table["measure"] == "taylor")
    assert taylor["attention"].unique(maintain_order=True).to_list() == list(KINDS)
    found = -taylor["value"].to_numpy().reshape(SITES, tiny.HEADS)
    # T5's norms compute in float32 whatever the weights are.
    size, rtol = (5e-3, 5e-3) if name in ("t5", "mt5", "umt5") else (1e-4, 1e-5)

    def loss(site: int, head: int, step: float) -> float:
        scale = without({})
        scale[site, head] += step
        with torch.no_grad(), head_scale(model, scale):
            return losses(model, given).mean().item()

    for place in ((0, 1), (3, 2), (4, 0), (5, 3)):
        near, far = (loss(*place, k * size) - loss(*place, -k * size) for k in (1, 2))
        np.testing.assert_allclose(found[place], (8 * near - far) / (12 * size), rtol, 1e-9)


@structures
def test_ablation_is_closing_each_head(name: str) -> None:
    model = tiny.translator(name)
    given = tiny.parallel_batch()
    table = ablate_heads(model, [given], losses, copies=3, draws=50)
    assert table["attention"].to_list() == [kind for kind in KINDS for _ in range(8)]
    with torch.no_grad():
        plain = losses(model, given).mean()
        expected = []
        for site in range(SITES):
            for head in range(tiny.HEADS):
                with head_scale(model, without({site: [head]})):
                    expected.append((plain - losses(model, given).mean()).item())
    np.testing.assert_allclose(table["loss"].to_numpy(), expected, rtol=0, atol=1e-10)


def test_another_number_of_heads_in_the_decoder() -> None:
    """Heads that a kind lacks are in no table, and cannot be cut; runs have one number for all kinds."""
    model = tiny.translator("bart", decoder_attention_heads=2)
    given = tiny.parallel_batch()
    assert head_importance(model, [given], losses).filter(measure="taylor").height == 2 * 4 + 4 * 2
    assert ablate_heads(model, [given], losses, draws=5).height == 2 * 4 + 4 * 2
    with pytest.raises(InputError, match="cross L1H2 cannot be cut: the heads of cross L1 are 0, 1"):
        prune_heads(model, {5: [2]})
    with pytest.raises(InputError, match="encoder 4, decoder 2, cross 2"):
        TappedModel(model, family_of(model))

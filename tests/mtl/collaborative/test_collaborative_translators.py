"""Collaborative attention in encoder-decoder models: three kinds of attention, and the decoder's cache."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel

from mtl.collaborative.attention import CollaborativeAttention
from mtl.collaborative.sharing import collaborate, recorded_components, start_collaborative
from mtl.heads.attentions import attentions, query_key_parameters
from mtl.heads.families import family_of
from mtl.heads.family_table import FAMILIES
from mtl.heads.load import load_pruned
from mtl.heads.prune import prune_heads
from mtl.heads.tap import HeadTap
from tests.mtl import tiny
from tests.mtl.collaborative.modules import collaborative_modules

FULL = tiny.HEADS * tiny.HEAD_DIM
SITES = 6
ABLE = tuple(name for name in tiny.TRANSLATORS if not FAMILIES[name].not_shareable_because)
able = pytest.mark.parametrize("name", tiny.with_variants(ABLE, ()))
structures = pytest.mark.parametrize("name", tiny.of_structure(ABLE))


def shared(name: str, components: int = 10) -> PreTrainedModel:
    """A random model whose heads share components in all three kinds of attention."""
    model = tiny.translator(name)
    start_collaborative(model, components, 0.2)
    tiny.shake(model)
    return model


@able
def test_all_components_give_the_same_model_and_translations(name: str) -> None:
    model = tiny.translator(name)
    expected = tiny.logits(model)
    ids, mask = tiny.batch(9)
    settings = {"num_beams": 3, "do_sample": False, "max_new_tokens": 8, "min_new_tokens": 6}
    pieces = model.generate(input_ids=ids, attention_mask=mask, **settings)
    collaborate(model, FULL)
    assert len(collaborative_modules(model)) == SITES
    for kind in ("eager", "sdpa"):
        model.set_attn_implementation(kind)
        torch.testing.assert_close(tiny.logits(model), expected, rtol=0, atol=1e-9)
    # Beam search reorders the rows of the cache.
    for cached in (True, False):
        again = model.generate(input_ids=ids, attention_mask=mask, use_cache=cached, **settings)
        assert torch.equal(again, pieces)


@structures
def test_a_step_with_the_cache_is_that_of_the_whole_pass(name: str) -> None:
    model = shared(name)
    inputs = tiny.parallel_batch()
    del inputs["decoder_attention_mask"]
    targets = inputs.pop("decoder_input_ids")
    for kind in ("eager", "sdpa"):
        model.set_attn_implementation(kind)
        whole = model(**inputs, decoder_input_ids=targets, use_cache=False).logits
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        # Three pieces at once, and then one by one.
        steps = [targets[:, :3], *targets[:, 3:].split(1, dim=1)]
        parts = []
        for step in steps:
            output = model(**inputs, decoder_input_ids=step, past_key_values=cache, use_cache=True)
            parts.append(output.logits)
        torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-12)
        assert cache.get_seq_length() == targets.shape[1]
        keys = cache.self_attention_cache.layers[0].keys
        assert keys.shape == (len(targets), 1, targets.shape[1], 10 + tiny.HEADS)
        crossed = cache.cross_attention_cache.layers[1]
        assert crossed.keys.shape == (len(targets), 1, 9, 10 + tiny.HEADS)
        assert crossed.values.shape == (len(targets), tiny.HEADS, 9, tiny.HEAD_DIM)


def test_no_piece_sees_a_later_one() -> None:
    model = shared("marian")
    inputs = tiny.parallel_batch()
    del inputs["decoder_attention_mask"]
    for kind in ("eager", "sdpa"):
        model.set_attn_implementation(kind)
        before = model(**inputs, use_cache=False).logits
        changed = inputs["decoder_input_ids"].clone()
        changed[:, 4:] = 7
        after = model(**(inputs | {"decoder_input_ids": changed}), use_cache=False).logits
        torch.testing.assert_close(after[:, :4], before[:, :4], rtol=0, atol=1e-12)
        assert (after[:, 4:] - before[:, 4:]).abs().max() > 1e-3


def test_scores_are_those_of_the_equations() -> None:
    model = shared("bart")
    for attention in attentions(model, family_of(model)):
        module = attention.module
        assert isinstance(module, CollaborativeAttention)
        generator = torch.Generator().manual_seed(0)
        asking = torch.randn(2, 3, 32, generator=generator, dtype=torch.float64)
        asked = torch.randn(2, 5, 32, generator=generator, dtype=torch.float64)
        crossing = attention.site.attention == "cross"
        source = asked if crossing else asking
        queries, keys = module.shared()
        scores = (
            torch.stack(
                [
                    (asking @ queries @ module.mixing[head].diag()) @ (source @ keys).transpose(1, 2)
                    + (source @ module.content[head])[:, None]
                    for head in range(tiny.HEADS)
                ],
                dim=1,
            )
            / tiny.HEAD_DIM**0.5
        )
        if attention.site.attention == "decoder":
            scores = scores.masked_fill(torch.ones(3, 3, dtype=torch.bool).triu(1), -torch.inf)
        context, probabilities = module(asking, key_value_states=source if crossing else None)
        torch.testing.assert_close(probabilities, scores.softmax(-1), rtol=0, atol=1e-12)
        values = module.get_submodule("v_proj")(source).unflatten(-1, (-1, tiny.HEAD_DIM)).transpose(1, 2)
        output = module.get_submodule("out_proj")
        expected = output((scores.softmax(-1) @ values).transpose(1, 2).flatten(2))
        torch.testing.assert_close(context, expected, rtol=0, atol=1e-12)


def test_gradients_are_finite_differences() -> None:
    model = shared("marian", 3)
    inputs = tiny.parallel_batch()

    def loss() -> Tensor:
        scores = model(**inputs, use_cache=False).logits.log_softmax(-1)
        return (scores[..., 5] * inputs["decoder_attention_mask"]).mean()

    loss().backward()
    for module in collaborative_modules(model):
        for parameter in (module.mixing, module.content, module.get_submodule("q_proj").weight):
            place = (1, 2)
            assert parameter.grad is not None
            with torch.no_grad():
                before = parameter[place].item()
                values = []
                for step in (1e-5, -1e-5):
                    parameter[place] = before + step
                    values.append(loss().item())
                parameter[place] = before
            expected = (values[0] - values[1]) / 2e-5
            assert parameter.grad[place].item() == pytest.approx(expected, rel=1e-4, abs=1e-10)


def test_the_start_is_a_block_for_each_head() -> None:
    model = tiny.translator("marian")
    others = {name: value.clone() for name, value in model.state_dict().items()}
    start_collaborative(model, 10, 0.1)
    first = collaborative_modules(model)[0]
    blocks = [[0, 1, 2], [3, 4], [5, 6, 7], [8, 9]]
    for head, block in enumerate(blocks):
        assert first.mixing[head].nonzero().flatten().tolist() == block
        assert first.mixing[head, block].tolist() == [1] * len(block)
    assert not first.content.any()
    weight = torch.cat(
        [part.flatten() for module in collaborative_modules(model) for part in module.shared()]
    )
    assert weight.std().item() == pytest.approx(0.1, rel=0.05)
    for name, value in model.state_dict().items():
        if not any(part in name for part in ("q_proj", "k_proj", "mixing", "content")):
            assert torch.equal(value, others[name])
    assert recorded_components(model.config) == dict.fromkeys(range(SITES), 10)


def test_parameters_of_queries_and_keys_are_counted() -> None:
    model = tiny.translator("bart")
    assert query_key_parameters(model) == SITES * 2 * (32 * 32 + 32)
    before = model.num_parameters()
    start_collaborative(model, 10, 0.1)
    counted = SITES * (2 * 32 * 10 + tiny.HEADS * 10 + tiny.HEADS * 32)
    assert query_key_parameters(model) == counted
    assert before - model.num_parameters() == SITES * 2 * (32 * 32 + 32) - counted


@structures
def test_a_saved_model_is_rebuilt_also_after_a_cut(name: str, tmp_path: Path) -> None:
    model = shared(name)
    model.save_pretrained(tmp_path / "whole")
    torch.testing.assert_close(
        tiny.logits(load_pruned(tmp_path / "whole", torch.float64)), tiny.logits(model)
    )
    heads = {0: [0, 1, 2, 3], 1: [2], 2: [0, 1, 2, 3], 3: [1, 3], 4: [0, 1, 2, 3], 5: [0]}
    tap = HeadTap(model, family_of(model))
    scale = torch.ones(SITES, tiny.HEADS, dtype=torch.float64)
    for site, cut in heads.items():
        scale[site, cut] = 0
    with tap.scale(scale):
        expected = tiny.logits(model)
    cut = copy.deepcopy(model)
    prune_heads(cut, heads)
    torch.testing.assert_close(tiny.logits(cut), expected, rtol=0, atol=1e-12)
    cut.save_pretrained(tmp_path / "cut")
    loaded = load_pruned(tmp_path / "cut", torch.float64)
    torch.testing.assert_close(tiny.logits(loaded), expected, rtol=0, atol=1e-12)
    ids, mask = tiny.batch(9)
    pieces = [
        loaded.generate(input_ids=ids, attention_mask=mask, use_cache=cached, max_new_tokens=6, num_beams=2)
        for cached in (True, False)
    ]
    assert torch.equal(*pieces)


def test_models_hand_out_probabilities_of_every_kind() -> None:
    model = shared("marian")
    model.set_attn_implementation("eager")
    output = model(**tiny.parallel_batch(), use_cache=False, output_attentions=True)
    assert [part.shape[-2:] for part in output.encoder_attentions] == [(9, 9)] * 2
    assert [part.shape[-2:] for part in output.decoder_attentions] == [(7, 7)] * 2
    assert [part.shape[-2:] for part in output.cross_attentions] == [(7, 9)] * 2

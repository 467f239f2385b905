from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from transformers import BartConfig, BartModel, PreTrainedModel

from mtl.errors import InputError
from mtl.heads.attentions import attentions
from mtl.heads.families import family_of
from mtl.heads.family_table import Family, Stack
from mtl.heads.prune import prune_heads
from mtl.heads.tap import HeadTap, eager_attention, head_scale
from mtl.probes.sites import Site
from tests.mtl import tiny

# Rotary positions and root mean square norms are computed in float32 whatever the weights are.
FLOAT32_INSIDE = (
    "modernbert", "esm", "eurobert", "gemma2", "gemma3_text", "gptj", "llama", "mistral", "olmo2", "phi3",
    "qwen2", "qwen3", "smollm3", "gte", "jina_embeddings_v3", "layoutlm", "nomic_bert", "splinter",
    *tiny.LIKE_LLAMA, *tiny.MIXTURES,
)  # fmt: skip
structures = pytest.mark.parametrize("name", tiny.of_structure(tiny.NAMES))


def tapped(name: str, dtype: torch.dtype = torch.float64) -> tuple[PreTrainedModel, HeadTap]:
    model = tiny.model(name, dtype=dtype)
    return model, HeadTap(model, family_of(model))


def random_scale(*rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.rand(*rows, tiny.LAYERS, tiny.HEADS, generator=generator, dtype=torch.float64)


def test_heads_of_a_model_with_bounded_scores_are_scaled() -> None:
    bounded, plain = (
        tiny.model("gemma2", attn_logit_softcapping=bound, attn_implementation="eager")
        for bound in (0.5, None)
    )
    before = tiny.vectors(bounded)
    assert (before - tiny.vectors(plain)).abs().max() > 1e-3
    tap, scale = HeadTap(bounded, family_of(bounded)), (random_scale() > 0.5).double()
    with tap.scale(torch.ones(tiny.LAYERS, tiny.HEADS)):
        assert torch.equal(tiny.vectors(bounded), before)
    with tap.scale(scale):
        gated = tiny.vectors(bounded)
    for layer, attention in enumerate(attentions(bounded, family_of(bounded))):
        attention.output.weight.data *= scale[layer].repeat_interleave(tiny.HEAD_DIM)
    torch.testing.assert_close(gated, tiny.vectors(bounded), rtol=0, atol=1e-12)
    assert (gated - before).abs().max() > 1e-3


@pytest.mark.parametrize("name", tiny.EVERY)
def test_a_scale_of_one_changes_nothing_and_one_of_zero_zeroes_columns_of_the_projection(name: str) -> None:
    # ALBERT without sharing; with sharing see below.
    changes = {"num_hidden_groups": tiny.LAYERS} if name == "albert" else {}
    model = tiny.model(name, **changes)
    tap = HeadTap(model, family_of(model))
    ids, mask = tiny.batch()
    plain = tiny.vectors(model, ids, mask)
    ones = torch.ones(tiny.LAYERS, tiny.HEADS)
    for scale in (ones, ones.expand(len(ids), -1, -1)):
        with tap.scale(scale):
            assert torch.equal(tiny.vectors(model, ids, mask), plain)
    scale = (random_scale() > 0.5).double()
    scale[1] = 0
    with tap.scale(scale):
        gated = tiny.vectors(model, ids, mask)
    of_rows = torch.stack([scale, ones, scale, ones])
    with tap.scale(of_rows), tiny.in_double():
        by_row = tiny.vectors(model, ids, mask)
    with tap.scale(scale), tiny.in_double():
        torch.testing.assert_close(by_row[::2], tiny.vectors(model, ids, mask)[::2], rtol=0, atol=1e-10)
    with tiny.in_double():
        torch.testing.assert_close(by_row[1::2], tiny.vectors(model, ids, mask)[1::2], rtol=0, atol=1e-10)
    zeroed = copy.deepcopy(model)
    for layer, attention in enumerate(attentions(zeroed, family_of(zeroed))):
        columns = scale[layer].repeat_interleave(tiny.HEAD_DIM)
        attention.output.weight.data *= columns[:, None] if name == "gpt2" else columns
    torch.testing.assert_close(gated, tiny.vectors(zeroed, ids, mask), rtol=0, atol=1e-12)
    assert (gated - plain).abs().max() > 1e-3


def test_layers_that_share_a_module_have_scales_of_their_own() -> None:
    shared, separate = tiny.model("albert"), tiny.model("albert", num_hidden_groups=tiny.LAYERS)
    weights = shared.state_dict()
    separate.load_state_dict(
        {
            path: weights[path.replace(f"layer_groups.{path.split('.')[2]}", "layer_groups.0")]
            if "layer_groups" in path
            else weights[path]
            for path in separate.state_dict()
        }
    )
    ids, mask = tiny.batch()
    scale = random_scale()
    outputs = []
    for model in (shared, separate):
        with HeadTap(model, family_of(model)).scale(scale):
            outputs.append(tiny.vectors(model, ids, mask))
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=1e-12)


@structures
def test_a_scale_per_row_is_each_row_alone(name: str) -> None:
    model, tap = tapped(name)
    ids, mask = tiny.batch()
    scale = random_scale(len(ids))
    with tap.scale(scale), tiny.in_double():
        together = tiny.vectors(model, ids, mask)
    for row in range(len(ids)):
        with tap.scale(scale[row]), tiny.in_double():
            alone = tiny.vectors(model, ids[row : row + 1], mask[row : row + 1])
        torch.testing.assert_close(together[row], alone[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize(("name", "rows"), tiny.with_variants(tiny.NAMES, ((),), ((4,),)))
def test_the_gradient_of_the_scale_is_the_finite_difference(name: str, rows: tuple[int, ...]) -> None:
    # The choice of experts is a step function, which finite differences do not fit: all experts are chosen.
    model = tiny.model(
        name, **({"num_experts_per_tok": tiny.EXPERTS_IN_ALL} if name in tiny.MIXTURES else {})
    )
    tap = HeadTap(model, family_of(model))
    ids, mask = tiny.batch()
    target = torch.randn(*ids.shape, 32, generator=torch.Generator().manual_seed(4), dtype=torch.float64)

    def loss(scale: Tensor) -> Tensor:
        with tap.scale(scale):
            return (tiny.vectors(model, ids, mask) * target).sum()

    scale = random_scale(*rows).requires_grad_()
    (gradient,) = torch.autograd.grad(loss(scale), scale)
    direction = torch.randn(scale.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    size, rtol, atol = (5e-3, 1e-3, 1e-3) if name in FLOAT32_INSIDE else (1e-3, 1e-7, 1e-7)
    if name in ("exaone4", "jais2"):  # so curved that a step of 0.005 is off by more
        size = 2e-3
    with torch.no_grad():
        near, far = (loss(scale + k * size * direction) - loss(scale - k * size * direction) for k in (1, 2))
    torch.testing.assert_close(
        (gradient * direction).sum(), (8 * near - far) / (12 * size), rtol=rtol, atol=atol
    )


@structures
def test_observed_outputs_are_probabilities_times_values(name: str) -> None:
    model, tap = tapped(name, torch.float32)
    ids, mask = tiny.batch()
    family = family_of(model)
    values: list[Tensor] = []
    handles = [
        module.get_submodule(family.query if family.fused else family.value).register_forward_hook(
            lambda module, inputs, output: values.append(output)
        )
        for module in dict.fromkeys(attention.module for attention in attentions(model, family))
    ]
    with eager_attention(model), tap.observe() as outputs:
        probabilities = model(input_ids=ids, attention_mask=mask, output_attentions=True).attentions
    for handle in handles:
        handle.remove()
    assert len(outputs) == len(values) == len(probabilities) == tiny.LAYERS
    for layer in range(tiny.LAYERS):
        value = values[layer]
        if family.fused == "blocks":
            value = value[..., 32:].chunk(2, -1)[1]
        value = value.unflatten(-1, (-1, tiny.HEAD_DIM))
        if family.fused == "heads":
            value = value[:, :, 2::3]
        if name == "deberta":
            bias = attentions(model, family)[layer].module.v_bias.unflatten(0, (tiny.HEADS, tiny.HEAD_DIM))
            value = value + bias
        value = value.repeat_interleave(tiny.HEADS // value.shape[2], 2)
        expected = torch.einsum("rhqk,rkhd->rqhd", probabilities[layer], value)
        torch.testing.assert_close(outputs[layer], expected, rtol=0, atol=1e-5)


def test_nothing_is_left_after_an_exception() -> None:
    model, tap = tapped("bert")
    ids, mask = tiny.batch()
    plain = tiny.vectors(model, ids, mask)
    with pytest.raises(KeyError), tap.scale(torch.zeros(tiny.LAYERS, tiny.HEADS)):
        raise KeyError
    with pytest.raises(InputError), tap.scale(torch.zeros(3, tiny.LAYERS, tiny.HEADS)):
        tiny.vectors(model, ids, mask)
    assert torch.equal(tiny.vectors(model, ids, mask), plain)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_pass_that_failed_halfway_does_not_shift_the_next_ones_layers() -> None:
    model, tap = tapped("albert")
    ids, mask = tiny.batch()
    scale = random_scale()
    with tap.scale(scale):
        expected = tiny.vectors(model, ids, mask)
        norm = model.encoder.albert_layer_groups[0].albert_layers[0].full_layer_layer_norm

        def fail(module: object, inputs: object) -> None:
            raise KeyError

        handle = norm.register_forward_pre_hook(fail)
        with pytest.raises(KeyError):
            tiny.vectors(model, ids, mask)
        handle.remove()
        assert torch.equal(tiny.vectors(model, ids, mask), expected)


def test_what_is_observed_inside_a_scale_is_scaled() -> None:
    model, tap = tapped("bert")
    ids, mask = tiny.batch()
    scale = random_scale()
    with tap.observe() as raw, tap.scale(scale), tap.observe() as scaled:
        tiny.vectors(model, ids, mask)
    for layer in range(tiny.LAYERS):
        torch.testing.assert_close(scaled[layer], raw[layer] * scale[layer][:, None])


@structures
def test_a_patched_head_hands_on_what_it_did_for_other_inputs(name: str) -> None:
    # ALBERT without sharing, since the hook below serves one module.
    model = tiny.model(name, **({"num_hidden_groups": tiny.LAYERS} if name == "albert" else {}))
    tap = HeadTap(model, family_of(model))
    ids, mask = tiny.batch()
    with tap.observe() as source:
        tiny.vectors(model, ids.roll(1, 0), mask)
    fill = [outputs.nan_to_num() for outputs in source]  # ModernBERT's padding attends to nothing
    mine = slice(2 * tiny.HEAD_DIM, 3 * tiny.HEAD_DIM)

    def patch(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        whole = inputs[0].clone()
        whole[..., mine] = fill[1][:, :, 2]
        return (whole, *inputs[1:])

    hook = attentions(model, family_of(model))[1].output.register_forward_pre_hook(patch)
    expected = tiny.vectors(model, ids, mask)
    hook.remove()
    scale = torch.ones(tiny.LAYERS, tiny.HEADS)
    scale[1, 2] = 0
    with head_scale(model, scale, fill=fill):
        torch.testing.assert_close(tiny.vectors(model, ids, mask), expected, rtol=0, atol=1e-12)
    assert (expected - tiny.vectors(model, ids, mask)).abs().max() > 1e-6
    means = [outputs.mean((0, 1)) for outputs in fill]
    wide = [mean.expand(1, 1, *mean.shape) for mean in means]
    with head_scale(model, scale, fill=means), tap.observe() as seen:
        by_mean = tiny.vectors(model, ids, mask)
    torch.testing.assert_close(seen[1][:, :, 2], means[1][2].expand_as(seen[1][:, :, 2]), rtol=0, atol=0)
    with head_scale(model, scale, fill=wide):
        assert torch.equal(tiny.vectors(model, ids, mask), by_mean)


def test_a_cut_model_is_patched_by_the_numbers_of_the_uncut_one() -> None:
    model, _ = tapped("bert")
    ids, mask = tiny.batch()
    whole = copy.deepcopy(model)
    prune_heads(model, {0: [1, 3]})
    with HeadTap(model, family_of(model)).observe() as source:
        tiny.vectors(model, ids.roll(1, 0), mask)
    scale = torch.ones(tiny.LAYERS, tiny.HEADS)
    scale[0, [1, 2, 3]] = 0
    with head_scale(model, scale, fill=[*source]):
        found = tiny.vectors(model, ids, mask)
    # Cut heads have zeros, which stand for them in the uncut model, too.
    with head_scale(whole, scale, fill=[*source]):
        torch.testing.assert_close(tiny.vectors(whole, ids, mask), found, rtol=0, atol=1e-12)


def test_a_fill_that_does_not_fit_is_refused() -> None:
    model, _ = tapped("bert")
    ids, mask = tiny.batch()
    scale = torch.zeros(tiny.LAYERS, tiny.HEADS)
    whole = torch.zeros(4, 9, tiny.HEADS, tiny.HEAD_DIM)
    for fill, message in (
        ([whole] * 2, "use 3 tensors, one for each layer"),
        ([whole[..., :3, :]] * 3, r"its last two axes must be the heads and dimensions of L0, \(4, 8\)"),
        ([whole, None, whole], "L1 ran, and has nothing here"),
        ([whole[:, :8]] * 3, r"rows and positions \(4, 8\) in a pass of \(4, 9\)"),
    ):
        with pytest.raises(InputError, match=message), head_scale(model, scale, fill=fill):
            tiny.vectors(model, ids, mask)


def test_eager_attention_is_restored() -> None:
    model = tiny.model("bert")
    before = model.config._attn_implementation
    with eager_attention(model):
        assert model.config._attn_implementation == "eager"
    assert model.config._attn_implementation == before == "sdpa"
    with pytest.raises(KeyError), eager_attention(model):
        raise KeyError
    assert model.config._attn_implementation == before == "sdpa"


def test_a_scale_of_another_shape_is_refused() -> None:
    _, tap = tapped("bert")
    with pytest.raises(InputError, match="does not fit 3 layers of 4 heads"), tap.scale(torch.ones(4, 3)):
        pass


def test_a_family_with_three_kinds_of_attention() -> None:
    """Sites are named by kind and layer, and the laws of scaling hold for each of them."""
    family = Family(
        (
            Stack("self", "encoder.layers.{}.self_attn", "out_proj"),
            Stack("decoder", "decoder.layers.{}.self_attn", "out_proj"),
            Stack("cross", "decoder.layers.{}.encoder_attn", "out_proj"),
        )
    )
    settings = BartConfig(
        d_model=32, vocab_size=100, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    model = BartModel(settings).double().eval()
    tiny.shake(model)
    tap = HeadTap(model, family)
    kinds = ("self", "decoder", "cross")
    assert tap.sites == tuple(Site(kind, layer) for kind in kinds for layer in range(2))
    ids, mask = tiny.batch()
    plain = tiny.vectors(model, ids, mask)
    ones = torch.ones(6, 4, dtype=torch.float64)
    with tap.scale(ones):
        assert torch.equal(tiny.vectors(model, ids, mask), plain)
    for site in range(6):
        scale = ones.clone()
        scale[site, :3] = 0
        with tap.scale(scale):
            gated = tiny.vectors(model, ids, mask)
        zeroed = copy.deepcopy(model)
        attentions(zeroed, family)[site].output.weight.data *= scale[site].repeat_interleave(8)
        torch.testing.assert_close(gated, tiny.vectors(zeroed, ids, mask), rtol=0, atol=1e-12)
        assert (gated - plain).abs().max() > 1e-6

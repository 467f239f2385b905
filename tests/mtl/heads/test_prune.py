from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertForMaskedLM, BertModel

import mtl
from mtl.errors import InputError
from mtl.heads.attentions import attentions, recorded_cuts
from mtl.heads.families import family_of, in_features
from mtl.heads.load import load_pruned
from mtl.heads.prune import prune_heads
from mtl.heads.tap import eager_attention, head_scale
from mtl.models.encoder import Encoder
from tests.kit.absent import may_be_absent
from tests.mtl import tiny

structures = pytest.mark.parametrize("name", tiny.CUTTABLE)
# The middle layer loses all of its heads.
HEADS = {0: [1, 2], 1: [0, 1, 2, 3], 2: [3]}


def without(heads: dict[int, list[int]]) -> Tensor:
    scale = torch.ones(tiny.LAYERS, tiny.HEADS, dtype=torch.float64)
    for layer, cut in heads.items():
        scale[layer, cut] = 0
    return scale


def masked_and_cut(name: str, heads: dict[int, list[int]], **changes: object) -> tuple[Tensor, Tensor]:
    model = tiny.model(name, **changes)
    ids, mask = tiny.batch()
    with head_scale(model, without(heads)):
        masked = tiny.vectors(model, ids, mask)
    assert (masked - tiny.vectors(model, ids, mask)).abs().max() > 1e-3
    prune_heads(model, heads)
    return masked, tiny.vectors(model, ids, mask)


@pytest.mark.parametrize(
    ("name", "heads"),
    tiny.with_variants(
        tiny.CUTTABLE_NAMES, (HEADS,), ({2: [0]},), ({layer: [0, 1, 2, 3] for layer in range(3)},)
    ),
)
def test_a_cut_model_is_the_masked_model_and_smaller(name: str, heads: dict[int, list[int]]) -> None:
    model, cut = tiny.model(name), tiny.model(name)
    ids, mask = tiny.batch()
    with head_scale(model, without(heads)):
        masked = tiny.vectors(model, ids, mask)
    assert (masked - tiny.vectors(model, ids, mask)).abs().max() > 1e-3
    prune_heads(cut, heads)
    torch.testing.assert_close(tiny.vectors(cut, ids, mask), masked, rtol=0, atol=1e-6)
    assert recorded_cuts(cut.config) == heads
    kept = [in_features(attention.output) for attention in attentions(cut, family_of(cut))]
    left = [tiny.HEADS - len(heads.get(layer, ())) for layer in range(tiny.LAYERS)]
    assert kept == [number * tiny.HEAD_DIM for number in left]
    if "num_key_value_heads" not in tiny.OWN.get(name, {}):
        # Query, key, value and output of 32 x 8 weights each at least.
        gone = sum(map(len, heads.values()))
        assert model.num_parameters() - cut.num_parameters() >= gone * 4 * 32 * 8


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("deberta-v2", {"share_att_key": True}),
        ("deberta-v2", {"pos_att_type": ["c2p"]}),
        ("deberta", {"relative_attention": False, "position_biased_input": True}),
        ("modernbert", {"attention_bias": True}),
        ("eurobert", {"attention_bias": True, "num_key_value_heads": 1}),
        ("eurobert", {"num_key_value_heads": 4}),
        # Gemma 2 bounds its scores, here so tightly that it matters. Only eager attention does so.
        ("gemma2", {"attn_logit_softcapping": 0.5, "attn_implementation": "eager"}),
    ],
)
def test_variants_of_a_family(name: str, changes: dict[str, object]) -> None:
    masked, cut = masked_and_cut(name, HEADS, **changes)
    torch.testing.assert_close(cut, masked, rtol=0, atol=1e-6)


@structures
def test_cutting_in_steps_is_cutting_at_once(name: str) -> None:
    once, steps = tiny.model(name), tiny.model(name)
    prune_heads(once, HEADS)
    prune_heads(steps, {0: [2], 1: [3, 0]})
    prune_heads(steps, {0: [2, 1], 1: [1, 2], 2: [3]})
    assert recorded_cuts(once.config) == recorded_cuts(steps.config) == HEADS
    ids, mask = tiny.batch()
    torch.testing.assert_close(
        tiny.vectors(steps, ids, mask), tiny.vectors(once, ids, mask), rtol=0, atol=1e-12
    )


@structures
def test_fractional_scales_are_folded_into_the_weights(name: str) -> None:
    model = tiny.model(name)
    ids, mask = tiny.batch()
    scale = without(HEADS) * torch.rand(
        tiny.LAYERS, tiny.HEADS, generator=torch.Generator().manual_seed(7), dtype=torch.float64
    )
    with head_scale(model, scale):
        masked = tiny.vectors(model, ids, mask)
    prune_heads(model, HEADS, scale)
    torch.testing.assert_close(tiny.vectors(model, ids, mask), masked, rtol=0, atol=1e-6)
    with head_scale(model, torch.ones(tiny.LAYERS, tiny.HEADS)):
        torch.testing.assert_close(tiny.vectors(model, ids, mask), masked, rtol=0, atol=1e-6)


@structures
def test_a_cut_model_saves_loads_and_trains_on(name: str, tmp_path: Path) -> None:
    model = tiny.model(name, dtype=torch.float32)
    ids, mask = tiny.batch()
    prune_heads(model, HEADS)
    expected = tiny.vectors(model, ids, mask)
    model.save_pretrained(tmp_path)
    loaded = load_pruned(tmp_path)
    assert type(loaded) is type(model)
    assert recorded_cuts(loaded.config) == HEADS
    assert not loaded.training
    torch.testing.assert_close(tiny.vectors(loaded, ids, mask), expected, rtol=0, atol=1e-6)
    optimiser = torch.optim.AdamW(loaded.parameters(), lr=1e-3)
    losses = []
    for _ in range(8):
        loss = (tiny.vectors(loaded, ids, mask) - 1).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(loaded.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@structures
def test_a_cut_model_is_tapped_and_observed_in_the_old_numbering(name: str) -> None:
    encoder = tiny.encoder(name, dtype=torch.float32)
    subwords = encoder.tokenizer.collate(encoder.tokenizer.encode_all([["the", "dog"], ["cat"]]))
    further = torch.rand(tiny.LAYERS, tiny.HEADS, generator=torch.Generator().manual_seed(8))
    before = encoder.observe(subwords, further * without(HEADS).float())
    prune_heads(encoder.transformer, HEADS)
    after = encoder.observe(subwords, further)
    torch.testing.assert_close(after.words, before.words, rtol=0, atol=1e-4)
    real = subwords.attention_mask.bool()
    for layer in range(tiny.LAYERS):
        gone = HEADS[layer]
        stay = [head for head in range(tiny.HEADS) if head not in gone]
        assert not after.outputs[layer][:, :, gone].any()
        assert not after.attentions[layer][:, gone].any()
        torch.testing.assert_close(
            after.attentions[layer][:, stay].transpose(1, 2)[real],
            before.attentions[layer][:, stay].transpose(1, 2)[real],
            rtol=0,
            atol=1e-4,
        )
        torch.testing.assert_close(
            after.outputs[layer][real][:, stay], before.outputs[layer][real][:, stay], rtol=0, atol=1e-4
        )


def test_probabilities_where_no_layer_has_heads_are_zeros() -> None:
    encoder = tiny.encoder("bert", dtype=torch.float32)
    prune_heads(encoder.transformer, {layer: range(tiny.HEADS) for layer in range(tiny.LAYERS)})
    seen = encoder.observe(encoder.tokenizer.collate([encoder.tokenizer.encode(["the", "dog"])]))
    assert [attention.shape for attention in seen.attentions] == [(1, 4, 4, 4)] * 3
    assert not any(attention.any() for attention in seen.attentions)


@pytest.mark.parametrize("name", ["bert", "mpnet", "modernbert"])
def test_a_cut_encoder_saves_and_loads(name: str, tmp_path: Path) -> None:
    encoder = tiny.encoder(name, dtype=torch.float32, layers="mix")
    prune_heads(encoder.transformer, HEADS)
    encoder.save(tmp_path)
    loaded = Encoder.load(tmp_path).eval()
    subwords = encoder.tokenizer.collate(encoder.tokenizer.encode_all([["the", "dog"], ["cat"]]))
    torch.testing.assert_close(loaded(subwords), encoder(subwords), rtol=0, atol=1e-6)
    assert loaded.tap.remaining == encoder.tap.remaining == [(0, 3), (), (0, 1, 2)]


@structures
def test_probabilities_of_a_cut_model_have_an_entry_for_each_layer(name: str) -> None:
    model = tiny.model(name, dtype=torch.float32)
    model.set_attn_implementation("eager")
    ids, mask = tiny.batch()
    prune_heads(model, HEADS)
    given = model(input_ids=ids, attention_mask=mask, output_attentions=True).attentions
    assert [matrices.shape for matrices in given] == [(4, heads, 9, 9) for heads in (2, 0, 3)]


def test_sdpa_computes_no_probabilities_of_layers_without_heads_either() -> None:
    model = tiny.model("bert")
    prune_heads(model, HEADS)
    assert model(input_ids=tiny.batch()[0], output_attentions=True).attentions == ()


@structures
def test_a_cut_model_can_be_copied_and_pickled(name: str) -> None:
    model = tiny.model(name)
    prune_heads(model, HEADS)
    ids, mask = tiny.batch()
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(model), torch.load(buffer, weights_only=False)):
        assert torch.equal(tiny.vectors(other, ids, mask), tiny.vectors(model, ids, mask))


@structures
def test_eager_and_sdpa_agree_on_a_cut_model(name: str) -> None:
    model = tiny.model(name, dtype=torch.float32)
    prune_heads(model, HEADS)
    ids, mask = tiny.batch()
    with eager_attention(model):
        eager = tiny.vectors(model, ids, mask)
    torch.testing.assert_close(tiny.vectors(model, ids, mask), eager, rtol=1e-3, atol=1e-4)


def test_a_model_with_tied_weights_and_a_head_loads(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = BertForMaskedLM(tiny.config("bert")).eval()
    prune_heads(model, HEADS)
    model.save_pretrained(tmp_path)
    loaded = load_pruned(tmp_path)
    ids, mask = tiny.batch()
    assert isinstance(loaded, BertForMaskedLM)
    assert loaded.cls.predictions.decoder.weight is loaded.bert.embeddings.word_embeddings.weight
    assert torch.equal(
        loaded(input_ids=ids, attention_mask=mask).logits, model(input_ids=ids, attention_mask=mask).logits
    )


def test_an_uncut_folder_loads_too(tmp_path: Path) -> None:
    model = tiny.model("bert", dtype=torch.float32)
    model.save_pretrained(tmp_path)
    ids, mask = tiny.batch()
    assert torch.equal(tiny.vectors(load_pruned(tmp_path), ids, mask), tiny.vectors(model, ids, mask))


def test_hooks_on_a_projection_stay_when_all_its_heads_go() -> None:
    model = tiny.model("bert")
    handle = model.encoder.layer[1].attention.output.dense.register_forward_hook(lambda *given: given[-1] * 2)
    with head_scale(model, torch.tensor([[1.0] * 4, [0.0] * 4, [1.0] * 4])):
        expected = tiny.vectors(model)
    prune_heads(model, {1: range(4)})
    torch.testing.assert_close(tiny.vectors(model), expected)
    handle.remove()
    assert not torch.equal(tiny.vectors(model), expected)


HOOKS: tuple[Callable[[Any, list[str]], Any], ...] = (
    lambda module, seen: module.register_forward_pre_hook(lambda *_: seen.append("before")),
    lambda module, seen: module.register_forward_pre_hook(lambda *_: seen.append("named"), with_kwargs=True),
    lambda module, seen: module.register_forward_hook(lambda *_: seen.append("after")),
    lambda module, seen: module.register_full_backward_hook(lambda *_: seen.append("gradient")),
    lambda module, seen: module.register_full_backward_pre_hook(lambda *_: seen.append("before gradient")),
    lambda module, seen: module.register_state_dict_post_hook(lambda *_: seen.append("saved")),
    lambda module, seen: module.register_load_state_dict_pre_hook(lambda *_: seen.append("loading")),
    lambda module, seen: module.register_load_state_dict_post_hook(lambda *_: seen.append("loaded")),
)


CHANGES = ("prune",) if may_be_absent(["collaborate"]) else ("prune", "collaborate")
"""What can be done to the heads of a model."""


@pytest.mark.parametrize("name", ["bert", "mpnet", "gpt2", "t5"])
def test_hooks_on_an_attention_stay_when_it_is_replaced(name: str) -> None:
    """With all heads gone, and with heads that share components; their handles remove them."""
    ids, mask = tiny.batch()

    def run(model: Any) -> int:
        named = {"decoder_input_ids": ids} if name == "t5" else {}
        output = model(input_ids=ids, attention_mask=mask, output_attentions=True, **named)
        output[0].sum().backward()
        model.load_state_dict(model.state_dict())
        return len(output.encoder_attentions if name == "t5" else output.attentions)

    for change in ("prune",) if name in ("t5", "gpt2") else CHANGES:
        model: Any = tiny.translator(name) if name == "t5" else tiny.model(name)
        seen: list[str] = []
        model.set_attn_implementation("eager")
        layers = run(model)  # transformers puts hooks of its own there
        attention = attentions(model, family_of(model))[0]
        handles = [put(module, seen) for module in (attention.module, attention.output) for put in HOOKS]
        run(model)
        before = sorted(seen)
        seen.clear()
        if change == "prune":
            prune_heads(model, {0: range(4)})
        else:
            mtl.collaborate(model, 8, steps=1)
        assert run(model) == layers
        assert sorted(seen) == before
        assert len(before) == 2 * len(HOOKS)
        for handle in handles:
            handle.remove()
        seen.clear()
        run(model)
        assert not seen


@pytest.mark.parametrize("what", ["hooks", "forward"])
def test_what_others_did_to_a_part_that_would_go_is_refused(what: str) -> None:
    changes = (
        lambda model: prune_heads(model, {1: [0, 1, 2, 3]}),
        lambda model: mtl.collaborate(model, 8, steps=1),
    )
    for change in changes[: len(CHANGES)]:
        model = tiny.model("bert")
        attention = model.encoder.layer[1].attention.self
        if what == "hooks":
            handle = attention.query.register_forward_hook(lambda *_: None)
        else:
            attention.forward = attention.forward
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(InputError, match=rf"encoder\.layer\.1\.attention\.self.* {what}") as caught:
            change(model)
        assert "\n" not in str(caught.value)
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
        prune_heads(model, {1: [0, 1]})
        if what == "hooks":
            handle.remove()
        else:
            del attention.forward
        change(model)


def test_a_configuration_that_records_other_heads_is_refused() -> None:
    config = tiny.config("bert")
    first, second = BertModel(config), BertModel(config)
    for cut in ([1], [1, 2], [0, 1, 2, 3]):
        prune_heads(first, {0: cut})
        second.config = first.config
        with pytest.raises(InputError, match=r"has 4 heads, and its configuration records \d: .*of its own"):
            prune_heads(second, {1: [0]})
    whole = BertModel(tiny.config("bert"))
    whole.encoder = first.encoder
    with pytest.raises(InputError, match="has 0 heads, and its configuration records 4"):
        prune_heads(whole, {1: [0]})


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_scale_that_is_too_large_for_the_weights_is_refused(dtype: torch.dtype) -> None:
    model = tiny.model("bert", dtype=dtype)
    before = copy.deepcopy(model.state_dict())
    scale = torch.full((tiny.LAYERS, tiny.HEADS), 1e39, dtype=torch.float64)
    with pytest.raises(InputError, match=f"not finite numbers in {dtype}"):
        prune_heads(model, {0: [1]}, scale)
    with pytest.raises(InputError, match=f"not finite numbers in {dtype}"), head_scale(model, scale):
        pass
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_frozen_weights_stay_frozen() -> None:
    model = tiny.model("bert").requires_grad_(False)
    prune_heads(model, HEADS)
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_what_cannot_be_cut_is_said() -> None:
    with pytest.raises(InputError, match="one attention module serves several layers"):
        prune_heads(tiny.model("albert"), HEADS)
    with pytest.raises(InputError, match="talking heads"):
        prune_heads(tiny.model("deberta", talking_head=True), HEADS)
    model = tiny.model("bert")
    with pytest.raises(InputError, match="L3 cannot be cut: the model has L0 to L2"):
        prune_heads(model, {3: [0]})
    with pytest.raises(InputError, match="L1H4 cannot be cut: the heads of L1 are 0, 1, 2, 3"):
        prune_heads(model, {0: [1], 1: [4]})
    with pytest.raises(InputError, match="does not fit 3 layers of 4 heads"):
        prune_heads(model, {}, torch.ones(4, 3))
    assert recorded_cuts(model.config) == {}
    assert attentions(model, family_of(model))[0].output.in_features == 32
    translator = tiny.translator("bart")
    with pytest.raises(InputError, match=r"site 6 cannot be cut: .* encoder L0 \(0\) to cross L1 \(5\)"):
        prune_heads(translator, {6: [0]})
    with pytest.raises(InputError, match="cross L1H4 cannot be cut: the heads of cross L1 are 0, 1, 2, 3"):
        prune_heads(translator, {5: [4]})


def test_a_folder_that_does_not_fit_is_said(tmp_path: Path) -> None:
    model = tiny.model("bert", dtype=torch.float32)
    prune_heads(model, HEADS)
    model.config.pruned_heads = {0: [1]}
    model.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"do not fit its config\.json"):
        load_pruned(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"no file named model\.safetensors"):
        load_pruned(tmp_path)


@pytest.mark.parametrize("keep_shape", [False, True])
def test_layers_that_have_the_same_weights_are_scaled_alone(keep_shape: bool) -> None:
    model = tiny.model("bert")
    first, second, _ = (layer.attention.output.dense for layer in model.encoder.layer)
    second.weight = first.weight
    ids, mask = tiny.batch()
    scale = without({0: [1]}) * torch.tensor([0.5, 1, 0.25], dtype=torch.float64)[:, None]
    with head_scale(model, scale):
        masked = tiny.vectors(model, ids, mask)
    prune_heads(model, {0: [1]}, scale, keep_shape=keep_shape)
    torch.testing.assert_close(tiny.vectors(model, ids, mask), masked, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("act", "name"),
    [(lambda model: prune_heads(model, HEADS), name) for name in ("bert", "gpt2", "t5")]
    + [(lambda model: mtl.collaborate(model, 4, steps=1), "bert")][: len(CHANGES) - 1],
)
def test_nothing_is_drawn_trained_or_unfrozen(act: Callable[[Any], Any], name: str) -> None:
    model = (tiny.translator if name == "t5" else tiny.model)(name).requires_grad_(False)
    before = torch.get_rng_state()
    act(model)
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(module.training for module in model.modules())
    assert not any(parameter.requires_grad for parameter in model.parameters())

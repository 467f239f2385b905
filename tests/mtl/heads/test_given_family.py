"""A model that the table lacks: its row is given as an argument, or the message names it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModel,
    PretrainedConfig,
    PreTrainedModel,
    SwinConfig,
    SwinModel,
    ViTConfig,
    WavLMConfig,
    WavLMModel,
)
from transformers.modeling_outputs import BaseModelOutput

from mtl import (
    Family,
    Stack,
    ablate_heads,
    head_importance,
    head_scale,
    load_pruned,
    prune_heads,
)
from mtl.errors import InputError
from mtl.heads.family_table import FAMILIES, UNFIT
from mtl.models.pretrained import load_encoder
from tests.mtl import sensory, tiny

ROW = Family(
    (Stack("self", "body.{}.mix", "out", layers="depth", heads="parts", width="dim"),),
    query="qkv",
    fused="blocks",
    head_counts=("parts",),
)


class OwnConfig(PretrainedConfig):  # type: ignore[misc]
    """Depth, heads and width under names of its own."""

    model_type = "own-mixer"

    def __init__(self, depth: int = 3, parts: int = 4, dim: int = 32, **named: Any) -> None:
        self.depth, self.parts, self.dim = depth, parts, dim
        super().__init__(**named)


class Mix(nn.Module):
    """Attention as others write it: one projection for queries, keys and values."""

    def __init__(self, config: OwnConfig, called: bool) -> None:
        super().__init__()
        self.parts, self.called = config.parts, called
        self.qkv, self.out = nn.Linear(config.dim, 3 * config.dim), nn.Linear(config.dim, config.dim)

    def forward(self, hidden: Tensor) -> tuple[Tensor]:
        query, key, value = self.qkv(hidden).unflatten(-1, (3, self.parts, -1)).permute(2, 0, 3, 1, 4)
        context = nn.functional.scaled_dot_product_attention(query, key, value)
        together = context.transpose(1, 2).flatten(2)
        if self.called:
            return (self.out(together),)
        return (nn.functional.linear(together, self.out.weight, self.out.bias),)


class Layer(nn.Module):
    """Attention and its residual connection."""

    def __init__(self, config: OwnConfig, called: bool) -> None:
        super().__init__()
        self.mix = Mix(config, called)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.mix(hidden)[0].tanh()


class OwnMixer(PreTrainedModel):
    """A model that exists nowhere else."""

    config_class = OwnConfig

    def __init__(self, config: OwnConfig, called: bool = True) -> None:
        super().__init__(config)
        self.body = nn.ModuleList([Layer(config, called) for _ in range(config.depth)])
        self.post_init()

    def forward(self, spots: Tensor) -> BaseModelOutput:
        """`spots` are vectors, one per place."""
        for layer in self.body:
            spots = layer(spots)
        return BaseModelOutput(last_hidden_state=spots)


SPOTS = {"spots": torch.randn(3, 5, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)}


def own(called: bool = True) -> OwnMixer:
    torch.manual_seed(0)
    model = OwnMixer(OwnConfig(), called).double().eval()
    tiny.shake(model)
    return model


def score(model: Any, batch: dict[str, Tensor]) -> Tensor:
    found: Tensor = model(**batch).last_hidden_state.sin().mean((1, 2))
    return found


@pytest.fixture
def registered() -> Iterator[None]:
    AutoConfig.register("own-mixer", OwnConfig)
    AutoModel.register(OwnConfig, OwnMixer)
    yield
    from transformers import MODEL_MAPPING

    CONFIG_MAPPING._extra_content.pop("own-mixer")
    MODEL_MAPPING._extra_content.pop(OwnConfig)


@torch.no_grad()
def test_every_function_takes_a_row(registered: None, tmp_path: Path) -> None:
    model = own()
    plain = score(model, SPOTS)
    scale = torch.ones(3, 4)
    scale[0], scale[2, 1] = 0, 0
    zeroed = copy.deepcopy(model)
    for layer, factors in zip(zeroed.body, scale, strict=True):
        layer.mix.out.weight *= factors.repeat_interleave(8)
    with head_scale(model, scale, family=ROW):
        masked = score(model, SPOTS)
    torch.testing.assert_close(masked, score(zeroed, SPOTS), rtol=0, atol=1e-12)

    lost = ablate_heads(model, [SPOTS], score, draws=5, family=ROW).filter(layer=2, head=1)["loss"].item()
    one = torch.ones(3, 4)
    one[2, 1] = 0
    with head_scale(model, one, family=ROW):
        assert lost == pytest.approx((plain - score(model, SPOTS)).mean().item(), abs=1e-9)
    table = head_importance(model, [SPOTS], score, family=ROW).filter(measure="taylor", layer=2, head=1)
    steps = []
    for step in (-1e-4, 1e-4):
        one[2, 1] = 1 + step
        with head_scale(model, one.double(), family=ROW):
            steps.append(score(model, SPOTS).mean().item())
    assert -table["value"].item() == pytest.approx((steps[1] - steps[0]) / 2e-4, rel=1e-3)

    prune_heads(model, {0: [0, 1, 2, 3], 2: [1]}, torch.ones(3, 4), family=ROW)
    torch.testing.assert_close(score(model, SPOTS), masked)
    model.save_pretrained(tmp_path)
    loaded = load_pruned(tmp_path, family=ROW)
    assert isinstance(loaded, OwnMixer)
    assert torch.equal(score(loaded, SPOTS), score(model, SPOTS))
    with pytest.raises(InputError, match="no row 'own-mixer'"):
        load_pruned(tmp_path)


def test_a_row_of_the_table_is_given_by_its_name() -> None:
    model, given = sensory.model("vit"), sensory.batch("vit")
    closed = torch.zeros(2, 4)
    with torch.no_grad():
        with head_scale(model, closed):
            expected = model(**given).last_hidden_state
        model.config.model_type = "vit-of-ours"
        with pytest.raises(InputError, match="no row 'vit-of-ours' in the table of families"):
            prune_heads(model, {0: [1]})
        with head_scale(model, closed, family="vit"):
            assert torch.equal(model(**given).last_hidden_state, expected)


OTHERS = {
    "gpt_oss": ("llama", "sinks"), "bitnet": ("llama", "attn_sub_norm.weight"),
    "olmoe": ("llama", "q_norm.weight"), "longformer": ("bert", "query_global.weight"),
    "nystromformer": ("bert", "conv.weight"), "luke": ("bert", "w2e_query.weight"),
    "doge": ("llama", "A"), "openai-gpt": ("gpt2", "n_head=6"),
}  # fmt: skip
"""Families with more parameters per head, a row that they seem to fit, and what it does not name."""


@pytest.mark.parametrize("name", OTHERS)
def test_a_row_that_does_not_name_all_that_heads_have_cuts_nothing(name: str) -> None:
    row, missed = OTHERS[name]
    config = CONFIG_MAPPING[name](
        vocab_size=99, hidden_size=48, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
        intermediate_size=40, max_position_embeddings=80, pad_token_id=0, bos_token_id=2, eos_token_id=3,
        head_dim=8, attention_window=4, entity_vocab_size=9, entity_emb_size=8, num_local_experts=2,
        num_experts=2, num_experts_per_tok=1,
    )  # fmt: skip
    model = AutoModel.from_config(config).eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(InputError, match=f"L0 can be .*does not name {missed}"):
        prune_heads(model, {1: [2]}, family=row)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    given = {"input_ids": torch.arange(5, 13)[None], "attention_mask": torch.ones(1, 8, dtype=torch.long)}
    one = torch.ones(2, 6)
    one[1, 2] = 0
    with torch.no_grad():
        with head_scale(model, one, family=row):
            closed = model(**given)[0]
        prune_heads(model, {1: [2]}, keep_shape=True, family=row)
        assert torch.allclose(model(**given)[0], closed, atol=1e-6)


@pytest.mark.parametrize("function", [ablate_heads, head_importance])
def test_a_projection_that_is_not_called_is_an_error_and_no_scale_without_effect(function: Any) -> None:
    with pytest.raises(InputError, match="Mix of L0 does not call the output projection"):
        function(own(called=False), [SPOTS], score, family=ROW)


def test_families_that_no_row_describes_are_refused_with_the_reason() -> None:
    swin = SwinModel(SwinConfig(image_size=16, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[2, 4]))
    wavlm = WavLMModel(WavLMConfig(**{**sensory.WAVES, "num_buckets": 8}))
    for model, kind in ((swin, "swin"), (wavlm, "wavlm")):
        with pytest.raises(InputError, match="has no row in the table of families") as raised:
            head_importance(model, [], score)
        assert UNFIT[kind] in str(raised.value)
    assert not set(UNFIT) & set(FAMILIES)
    row = FAMILIES["wav2vec2"]
    with (
        pytest.raises(InputError, match="WavLMAttention of L0 does not call"),
        head_scale(wavlm, torch.ones(2, 4), family=row),
    ):
        wavlm(torch.randn(1, 200))


def test_a_model_of_images_is_no_encoder_of_a_run(tmp_path: Path) -> None:
    ViTConfig(**sensory.IMAGES).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="models of type 'vit' do not give vectors of words"):
        load_encoder(str(tmp_path), "sdpa", torch.float32)

"""Query heads that share keys and values are cut one by one and by groups."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from mtl.errors import InputError
from mtl.heads.attentions import key_groups, recorded_keys
from mtl.heads.families import family_of, heads_per_group
from mtl.heads.load import load_pruned
from mtl.heads.prune import prune_heads
from mtl.heads.replay import LayerReplay
from mtl.heads.tap import HeadTap, head_scale
from tests.mtl import tiny


def eight(name: str = "llama") -> PreTrainedModel:
    """Eight heads in four groups of two."""
    return tiny.model(name, num_attention_heads=8, num_key_value_heads=4, head_dim=4)


def key_heads(model: PreTrainedModel, layer: int) -> int:
    return int(model.layers[layer].self_attn.k_proj.out_features) // 4


@pytest.mark.parametrize(
    ("cut", "keys"),
    [
        ([0, 1], 3),  # a whole group
        ([0, 1, 6, 7], 2),
        ([0, 2, 5, 7], 4),  # one of each group
        ([0, 1, 2, 4], 3),  # groups of one, one and two stay
        ([3], 4),
        (range(8), 0),
    ],
)
def test_keys_go_with_their_group(cut: Sequence[int], keys: int) -> None:
    model = eight()
    assert key_groups(model) == 12
    scale = torch.ones(3, 8)
    scale[1, list(cut)] = 0
    with head_scale(model, scale):
        masked = tiny.vectors(model)
    prune_heads(model, {1: cut})
    torch.testing.assert_close(tiny.vectors(model), masked, rtol=0, atol=1e-5)
    if keys:
        assert key_heads(model, 1) == keys
    assert (key_heads(model, 0), key_heads(model, 2)) == (4, 4)
    assert key_groups(model) == 8 + keys


@pytest.mark.parametrize("name", ["llama", "phi3", "olmo2"])
def test_steps_of_any_sort_save_and_load(name: str, tmp_path: Path) -> None:
    model = eight(name).float()
    for step, heads in enumerate([{0: [0], 1: [0, 1]}, {0: [1], 1: [2], 2: [0, 2, 4, 6]}, {1: [3, 4, 5]}]):
        scale = torch.ones(3, 8)
        for layer, cut in heads.items():
            scale[layer, cut] = 0
        with head_scale(model, scale):
            masked = tiny.vectors(model)
        prune_heads(model, heads)
        torch.testing.assert_close(tiny.vectors(model), masked, rtol=0, atol=1e-5)
        model.save_pretrained(tmp_path / str(step))
        loaded = load_pruned(tmp_path / str(step))
        assert recorded_keys(loaded.config) == recorded_keys(model.config)
        torch.testing.assert_close(tiny.vectors(loaded), tiny.vectors(model), rtol=0, atol=1e-6)


def rows_of_cache(model: PreTrainedModel) -> int:
    """How many keys the cache holds for each position, over all layers."""
    ids, mask = tiny.batch()
    cache = model(input_ids=ids, attention_mask=mask, use_cache=True).past_key_values
    return sum(layer.keys.shape[1] for layer in cache.layers)


@pytest.mark.parametrize("name", ["llama", "phi3", "olmo2", "qwen3"])
def test_no_cut_and_no_copy_makes_more_than_it_must(name: str) -> None:
    """Drawn sets of heads of a layer of two groups of four: model and cache shrink or stay."""
    draw = np.random.default_rng(0)
    groups = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 4}
    whole = tiny.model(name, **groups)
    per_head = 2 * 4 * 32  # rows of queries and columns of the output
    for _ in range(12):
        cut = sorted(draw.choice(8, size=draw.integers(1, 8), replace=False).tolist())
        model = copy.deepcopy(whole)
        prune_heads(model, {1: cut})
        left = {head // 4 for head in range(8) if head not in cut}
        saved = whole.num_parameters() - model.num_parameters()
        if name != "olmo2":  # whose norm over all heads keeps rows of queries and keys
            assert saved == len(cut) * per_head + (2 - len(left)) * 2 * 4 * 32
        assert rows_of_cache(model) == 4 + len(left)
        assert rows_of_cache(model) <= rows_of_cache(whole)
        assert model.num_parameters() < whole.num_parameters()


def test_groups_that_do_not_divide_the_heads_are_refused() -> None:
    model = tiny.model("llama")
    model.config.num_key_value_heads = 3
    with pytest.raises(InputError, match="3 groups of keys and values do not divide 4 heads") as raised:
        HeadTap(model, family_of(model))
    assert "\n" not in str(raised.value)
    with pytest.raises(InputError, match="do not divide"):
        heads_per_group(model)


@pytest.mark.parametrize(
    ("name", "heads", "cache"),
    tiny.with_options(tiny.CAUSAL, [{0: [0, 1, 2, 3], 1: [2]}, {0: [1], 2: [2, 3]}], ["dynamic", "static"]),
)
def test_a_cut_model_generates_with_its_cache_what_the_masked_one_does(
    name: str, heads: dict[int, list[int]], cache: str
) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny.config(name)).double().eval()
    tiny.shake(model)
    scale = torch.ones(tiny.LAYERS, tiny.HEADS)
    for layer, cut in heads.items():
        scale[layer, cut] = 0
    ids = torch.randint(5, 60, (2, 6), generator=torch.Generator().manual_seed(3))
    settings = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "attention_mask": ids > 0}
    with head_scale(model, scale):
        masked = model.generate(ids, **settings, use_cache=False)
    prune_heads(model, heads)
    assert torch.equal(model.generate(ids, **settings, cache_implementation=cache), masked)


@pytest.mark.parametrize("name", ["llama", "olmo2"])
def test_the_rest_of_a_layer_is_cut_after_some_of_it(name: str) -> None:
    """Groups are of unequal sizes in between."""
    model, scale = tiny.model(name), torch.ones(tiny.LAYERS, tiny.HEADS)
    ids, mask = tiny.batch()
    scale[0], scale[2, 3] = 0, 0
    with head_scale(model, scale):
        masked = tiny.vectors(model, ids, mask)
    prune_heads(model, {0: [1], 2: [3]})
    replay = LayerReplay(model, family_of(model))
    with torch.no_grad(), replay.record():
        model(input_ids=ids, use_cache=False)
    assert replay.repeatable
    prune_heads(model, {0: [0, 2, 3]})
    torch.testing.assert_close(tiny.vectors(model, ids, mask), masked, rtol=0, atol=1e-6)

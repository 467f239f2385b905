"""Query heads that share keys and values: cut one by one, and by groups."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from mtl.errors import InputError
from mtl.heads.families import attentions, family_of, heads_per_group, heads_sharing_keys, key_groups
from mtl.heads.prune import load_pruned, prune_heads
from mtl.heads.select import common_share
from mtl.heads.tap import HeadTap, head_scale
from tests.mtl import tiny


def eight(name: str = "llama") -> PreTrainedModel:
    """Eight heads in four groups of two."""
    return tiny.model(name, num_attention_heads=8, num_key_value_heads=4, head_dim=4)


def key_heads(model: PreTrainedModel, layer: int) -> int:
    return int(model.layers[layer].self_attn.k_proj.out_features) // 4


@pytest.mark.parametrize(
    ("cut", "keys", "copies"),
    [
        ([0, 1], 3, 0),  # a whole group
        ([0, 1, 6, 7], 2, 0),
        ([0, 2, 5, 7], 4, 0),  # one of each group
        ([0, 1, 2, 4], 4, 1),  # groups of one, one and two stay: the last one's two heads have a copy each
        ([3], 7, 3),
        (range(8), 0, 0),
    ],
)
def test_keys_go_with_their_group(cut: Sequence[int], keys: int, copies: int) -> None:
    model = eight()
    assert key_groups(model) == (12, 0)
    scale = torch.ones(3, 8)
    scale[1, list(cut)] = 0
    with head_scale(model, scale):
        masked = tiny.vectors(model)
    prune_heads(model, {1: cut})
    torch.testing.assert_close(tiny.vectors(model), masked, rtol=0, atol=1e-5)
    if keys:
        assert key_heads(model, 1) == keys
    assert (key_heads(model, 0), key_heads(model, 2)) == (4, 4)
    assert key_groups(model) == (8 + keys, copies)


def test_as_many_as_the_greatest_common_divisor_share() -> None:
    model = tiny.model("llama", num_attention_heads=8, num_key_value_heads=2, head_dim=4)
    [attention, *_] = attentions(model, family_of(model))
    assert common_share(attention, [0, 1, 2, 3]) == 4
    assert common_share(attention, [0, 1, 4, 5, 6, 7]) == 2
    assert common_share(attention, [0, 1, 2, 4, 5]) == 1
    assert common_share(attention, [2, 3, 6, 7]) == 2


@pytest.mark.parametrize("name", ["llama", "phi3", "olmo2"])
def test_steps_of_any_sort_save_and_load(name: str, tmp_path: Path) -> None:
    """A second cut may leave a group whole that the first had copied: the folder says what there is."""
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
        assert heads_sharing_keys(loaded) == heads_sharing_keys(model)
        torch.testing.assert_close(tiny.vectors(loaded), tiny.vectors(model), rtol=0, atol=1e-6)


def test_cutting_by_groups_saves_keys_and_values() -> None:
    by_group, by_head = eight(), eight()
    before = by_group.num_parameters()
    prune_heads(by_group, {0: [0, 1]})
    prune_heads(by_head, {0: [0, 2]})
    # Two heads of 4 rows and 4 columns of 32 in both; by group also a key and a value of 4 x 32.
    assert before - by_group.num_parameters() == 2 * 2 * 4 * 32 + 2 * 4 * 32
    # Groups of one, one, two and two: two keys and values more.
    assert before - by_head.num_parameters() == 2 * 2 * 4 * 32 - 2 * 2 * 4 * 32


def test_groups_that_do_not_divide_the_heads_are_refused() -> None:
    model = tiny.model("llama")
    model.config.num_key_value_heads = 3
    with pytest.raises(InputError, match="3 groups of keys and values do not divide 4 heads") as raised:
        HeadTap(model, family_of(model))
    assert "\n" not in str(raised.value)
    with pytest.raises(InputError, match="do not divide"):
        heads_per_group(model)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name in tiny.SAME_ROW else name for name in tiny.CAUSAL],
)
@pytest.mark.parametrize("heads", [{0: [0, 1, 2, 3], 1: [2]}, {0: [1], 2: [2, 3]}])
def test_a_cut_model_generates_with_its_cache_what_the_masked_one_does(
    name: str, heads: dict[int, list[int]]
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
    assert torch.equal(model.generate(ids, **settings, use_cache=True), masked)

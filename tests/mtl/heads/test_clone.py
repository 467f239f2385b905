from __future__ import annotations

import copy
import io
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mtl import clone_heads, head_scale, load_pruned, prune_heads, transplant_heads
from mtl.errors import InputError
from mtl.heads.attentions import attentions
from mtl.heads.families import family_of
from mtl.heads.projections import in_features
from mtl.heads.records import recorded_copies, recorded_cuts
from mtl.heads.tap import HeadTap
from mtl.models.encoder import Encoder
from tests.mtl import tiny

# In OLMo 2 a norm runs over all heads, see below.
NORMED_OVER_HEADS = ("olmo2", "olmo3", "olmoe")
"""Families whose heads cannot be copied."""
COPYABLE = [name for name in tiny.CUTTABLE_NAMES if name not in NORMED_OVER_HEADS]
families = pytest.mark.parametrize("name", tiny.with_variants(COPYABLE, ()))
GROUPED = [name for name, settings in tiny.OWN.items() if "num_key_value_heads" in settings]
ALL = {layer: [0, 1, 2, 3] for layer in range(tiny.LAYERS)}
HEADS = {0: [1, 3], 2: [2]}


def difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).detach().abs().max())


@pytest.mark.parametrize(
    ("name", "heads", "copies"), tiny.with_variants(COPYABLE, (HEADS, 2), (HEADS, 3), (ALL, 2))
)
def test_a_model_with_divided_copies_computes_what_it_did(
    name: str, heads: dict[int, list[int]], copies: int
) -> None:
    model = tiny.model(name)
    ids, mask = tiny.batch()
    before = tiny.vectors(model, ids, mask)
    made = clone_heads(model, heads, copies)
    assert difference(tiny.vectors(model, ids, mask), before) < 1e-6
    assert {layer: list(of_heads) for layer, of_heads in made.items()} == heads
    for layer, attention in enumerate(attentions(model, family_of(model))):
        new = (copies - 1) * len(heads.get(layer, ()))
        assert attention.remaining == tuple(range(tiny.HEADS + new))
        assert in_features(attention.output) == (tiny.HEADS + new) * tiny.HEAD_DIM


@families
def test_undivided_copies_with_all_but_one_closed_compute_what_the_model_did(name: str) -> None:
    model = tiny.model(name)
    ids, mask = tiny.batch()
    before = tiny.vectors(model, ids, mask)
    made = clone_heads(model, HEADS, 3, divide=False)
    assert difference(tiny.vectors(model, ids, mask), before) > 1e-3
    tap = HeadTap(model, family_of(model))
    assert made == {0: {1: (4, 5), 3: (6, 7)}, 2: {2: (4, 5)}}
    assert tap.heads == 8
    # One row of the batch sees the first of the three, another the second, and so on.
    scale = torch.ones(len(ids), tiny.LAYERS, tap.heads, dtype=torch.float64)
    for layer, of_heads in made.items():
        for head, numbers in of_heads.items():
            alike = [head, *numbers]
            for row in range(len(ids)):
                scale[row, layer, [number for number in alike if number != alike[row % 3]]] = 0
    with head_scale(model, scale):
        assert difference(tiny.vectors(model, ids, mask), before) < 1e-6


@families
def test_cutting_the_copies_gives_the_old_model_again(name: str) -> None:
    model = tiny.model(name)
    old = copy.deepcopy(model.state_dict())
    made = clone_heads(model, HEADS, 2)
    prune_heads(model, {layer: [new for (new,) in of_heads.values()] for layer, of_heads in made.items()})
    assert recorded_copies(model.config) == recorded_cuts(model.config) == {}
    with torch.no_grad():  # what is left of a divided head is half of it
        for layer, heads in HEADS.items():
            output = attentions(model, family_of(model))[layer].output.weight
            for head in heads:
                output.narrow(0 if name == "gpt2" else 1, head * tiny.HEAD_DIM, tiny.HEAD_DIM).mul_(2)
    if name in GROUPED:  # heads no longer share keys and values
        ids, mask = tiny.batch()
        assert difference(tiny.vectors(model, ids, mask), tiny.vectors(tiny.model(name), ids, mask)) < 1e-6
        return
    assert all(torch.equal(value, old[key]) for key, value in model.state_dict().items())


@families
def test_heads_are_cut_and_copied_in_any_order(name: str) -> None:
    model = tiny.model(name)
    ids, mask = tiny.batch()
    scale = torch.ones(tiny.LAYERS, tiny.HEADS, dtype=torch.float64)
    scale[0, 0], scale[1], scale[2, 3] = 0, 0, 0
    with head_scale(model, scale):
        expected = tiny.vectors(model, ids, mask)
    prune_heads(model, {0: [0], 1: [0, 1, 2, 3]})
    clone_heads(model, HEADS)
    clone_heads(model, {0: [4]})  # a copy of a copy
    prune_heads(model, {2: [3]})
    assert recorded_copies(model.config) == {0: {4: 1, 5: 3, 6: 1}, 2: {4: 2}}
    assert recorded_cuts(model.config) == {0: [0], 1: [0, 1, 2, 3], 2: [3]}
    assert HeadTap(model, family_of(model)).remaining == [(1, 2, 3, 4, 5, 6), (), (0, 1, 2, 4)]
    assert difference(tiny.vectors(model, ids, mask), expected) < 1e-6


@families
def test_a_model_with_copies_saves_loads_and_trains_on(name: str, tmp_path: Path) -> None:
    model = tiny.model(name, dtype=torch.float32)
    ids, mask = tiny.batch()
    prune_heads(model, {1: [0]})
    clone_heads(model, {**HEADS, 1: [3]}, 2, noise=0.1)
    transplant_heads(model, {2: {0: 1}})
    expected = tiny.vectors(model, ids, mask)
    model.save_pretrained(tmp_path)
    loaded = load_pruned(tmp_path)
    assert type(loaded) is type(model)
    assert (
        recorded_copies(loaded.config)
        == recorded_copies(model.config)
        == {0: {4: 1, 5: 3}, 1: {4: 3}, 2: {0: 1, 4: 2}}
    )
    assert recorded_cuts(loaded.config) == {1: [0]}
    assert difference(tiny.vectors(loaded, ids, mask), expected) < 1e-6
    optimiser = torch.optim.AdamW(loaded.parameters(), lr=1e-3)
    losses = []
    for _ in range(6):
        loss = (tiny.vectors(loaded, ids, mask) - 1).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(loaded.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    buffer = io.BytesIO()
    torch.save(loaded, buffer)
    buffer.seek(0)
    assert torch.equal(
        tiny.vectors(torch.load(buffer, weights_only=False), ids, mask), tiny.vectors(loaded, ids, mask)
    )


@families
def test_copies_are_observed_under_numbers_of_their_own(name: str) -> None:
    encoder = tiny.encoder(name, dtype=torch.float32)
    subwords = encoder.tokenizer.collate(encoder.tokenizer.encode_all([["the", "dog"], ["cat"]]))
    before = encoder.observe(subwords)
    clone_heads(encoder.transformer, {0: [1, 3], 2: [2]}, 2)
    assert encoder.heads == 6
    after = encoder.observe(subwords)
    real = subwords.attention_mask.bool()
    sources = {0: [0, 1, 2, 3, 1, 3], 1: [0, 1, 2, 3], 2: [0, 1, 2, 3, 2]}
    for layer, of_heads in sources.items():
        there, absent = len(of_heads), slice(len(of_heads), None)
        close = {"rtol": 0, "atol": 1e-4}
        outputs = before.outputs[layer][:, :, of_heads]
        torch.testing.assert_close(after.outputs[layer][real][:, :there], outputs[real], **close)
        probabilities = before.attentions[layer][:, of_heads].transpose(1, 2)
        seen = after.attentions[layer][:, :there].transpose(1, 2)
        torch.testing.assert_close(seen[real], probabilities[real], **close)
        assert not after.outputs[layer][:, :, absent].any()
        assert not after.attentions[layer][:, absent].any()


@families
def test_a_transplant_is_the_model_with_the_other_head_closed(name: str) -> None:
    model = tiny.model(name)
    ids, mask = tiny.batch()
    scale = torch.ones(tiny.LAYERS, tiny.HEADS, dtype=torch.float64)
    scale[0, 2], scale[2, [0, 1]] = 0, 0
    with head_scale(model, scale):
        expected = tiny.vectors(model, ids, mask)
    size = sum(parameter.numel() for parameter in model.parameters())
    transplant_heads(model, {0: {2: 1}, 2: {0: 3, 1: 3}})
    assert difference(tiny.vectors(model, ids, mask), expected) < 1e-6
    if name not in GROUPED:
        assert sum(parameter.numel() for parameter in model.parameters()) == size
    # The copy is scaled by the gate of its own place, and not by that of the head it copies.
    shared = torch.ones(tiny.LAYERS, tiny.HEADS, dtype=torch.float64)
    shared[0, 1] = 0
    with head_scale(model, shared):
        halved = tiny.vectors(model, ids, mask)
    scale[0, 1] = 0.5
    fresh = tiny.model(name)
    with head_scale(fresh, scale):
        assert difference(tiny.vectors(fresh, ids, mask), halved) < 1e-6


def test_noise_is_on_copies_alone_and_drawn_from_the_seed() -> None:
    plain, noisy, same, other = (tiny.model("bert") for _ in range(4))
    clone_heads(plain, {1: [2]})
    for model, seed in ((noisy, 1), (same, 1), (other, 2)):
        clone_heads(model, {1: [2]}, noise=0.01, seed=seed)
    attention = "encoder.layer.1.attention.self.query.weight"
    old, new = plain.state_dict()[attention], noisy.state_dict()[attention]
    assert torch.equal(old[:32], new[:32])
    moved = (new - old)[32:]
    assert 0.008 < float(moved.square().mean().sqrt() / old[32:].square().mean().sqrt()) < 0.012
    assert torch.equal(new, same.state_dict()[attention])
    assert not torch.equal(new, other.state_dict()[attention])


def test_a_copied_encoder_saves_and_loads(tmp_path: Path) -> None:
    encoder = tiny.encoder("mpnet", dtype=torch.float32)
    clone_heads(encoder.transformer, HEADS, 2, noise=0.1)
    encoder.save(tmp_path)
    loaded = Encoder.load(tmp_path).eval()
    subwords = encoder.tokenizer.collate(encoder.tokenizer.encode_all([["the", "dog"], ["cat"]]))
    torch.testing.assert_close(loaded(subwords), encoder(subwords), rtol=0, atol=1e-6)
    assert (
        loaded.tap.remaining == encoder.tap.remaining == [(0, 1, 2, 3, 4, 5), (0, 1, 2, 3), (0, 1, 2, 3, 4)]
    )


def test_frozen_weights_stay_frozen() -> None:
    model = tiny.model("bert").requires_grad_(False)
    clone_heads(model, HEADS)
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_what_cannot_be_copied_is_one_line() -> None:
    with pytest.raises(
        InputError, match=r"no heads can be copied in AlbertModel: one attention module serves"
    ):
        clone_heads(tiny.model("albert"), HEADS)
    model = tiny.model("bert")
    with pytest.raises(InputError, match="L3 cannot be copied: the model has L0 to L2"):
        clone_heads(model, {3: [0]})
    with pytest.raises(InputError, match="L1H4 cannot be copied: the heads of L1 are 0, 1, 2, 3"):
        clone_heads(model, {1: [4]})
    with pytest.raises(InputError, match="copies=0"):
        clone_heads(model, {1: [1]}, 0)
    with pytest.raises(InputError, match="L0H1 cannot be copied and overwritten at once"):
        transplant_heads(model, {0: {1: 2, 3: 1}})
    prune_heads(model, {1: [0, 1, 2, 3]})
    with pytest.raises(InputError, match="L1H0 cannot be copied: the heads of L1 are all gone"):
        clone_heads(model, {1: [0]})
    assert recorded_copies(model.config) == {}


@pytest.mark.parametrize("name", NORMED_OVER_HEADS)
def test_heads_under_a_norm_over_all_heads_cannot_be_copied(name) -> None:
    with pytest.raises(InputError, match=r"no heads can be copied in Olmo\w+Model: a norm runs over"):
        clone_heads(tiny.model(name), {0: [1]})


def test_keys_that_copying_gave_to_each_head_are_there_again_after_loading(tmp_path: Path) -> None:
    model = tiny.model("llama", dtype=torch.float32)
    made = clone_heads(model, {1: [0]})
    prune_heads(model, {1: made[1][0]})
    assert recorded_copies(model.config) == recorded_cuts(model.config) == {}
    model.save_pretrained(tmp_path)
    loaded = load_pruned(tmp_path)
    ids, mask = tiny.batch()
    assert torch.equal(tiny.vectors(loaded, ids, mask), tiny.vectors(model, ids, mask))

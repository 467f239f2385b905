from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mtl.heads.attentions import attentions
from mtl.heads.families import family_of
from mtl.heads.replay import LayerReplay
from mtl.heads.tap import HeadTap
from tests.mtl import tiny


def padded(states: Tensor, mask: Tensor) -> Tensor:
    return states * mask[..., None]


@pytest.mark.parametrize(("name", "site"), tiny.with_variants(tiny.NAMES, (1,), (0,), (2,)))
def test_copies_from_a_layer_on_equal_whole_passes_and_layers_below_are_not_computed(
    name: str, site: int
) -> None:
    model = tiny.model(name)
    family = family_of(model)
    tap, replay = HeadTap(model, family), LayerReplay(model, family)
    ids, mask = tiny.batch()
    computed: list[torch.nn.Module] = []
    queries = {attention.module.get_submodule(family.query) for attention in attentions(model, family)}
    for query in queries:
        query.register_forward_pre_hook(lambda module, inputs: computed.append(module))
    scales = torch.ones(tiny.HEADS, tiny.LAYERS, tiny.HEADS, dtype=torch.float64)
    for head in range(tiny.HEADS):
        scales[head, site, head] = 0
    with torch.no_grad(), tiny.in_double():
        whole = []
        for scale in scales:
            with tap.scale(scale):
                whole.append(padded(model(input_ids=ids, attention_mask=mask).last_hidden_state, mask))
        with replay.record():
            plain = model(input_ids=ids, attention_mask=mask).last_hidden_state
        copies = len(scales)
        computed.clear()
        with replay.start_at(site, copies), tap.scale(scales.repeat_interleave(len(ids), 0)):
            states = model(input_ids=ids.repeat(copies, 1), attention_mask=mask.repeat(copies, 1))
        shared = padded(states.last_hidden_state, mask.repeat(copies, 1))
        # ALBERT's attention adds and norms after the projection, so that its first layer is computed whole.
        assert len(computed) == tiny.LAYERS - site - (0 if name == "albert" else 1)
        again = model(input_ids=ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(shared, torch.cat(whole), rtol=0, atol=1e-12)
    assert torch.equal(plain, again)


def test_hidden_states_are_those_that_were_recorded() -> None:
    model = tiny.model("bert")
    replay = LayerReplay(model, family_of(model))
    ids, mask = tiny.batch()
    with torch.no_grad():
        with replay.record():
            plain = model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
        with replay.start_at(2):
            states = model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
    assert len(states) == len(plain)
    for one, other in zip(states, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)

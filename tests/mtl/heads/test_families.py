from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import pytest
from transformers import BertForTokenClassification, SwitchTransformersConfig, SwitchTransformersEncoderModel

from mtl.errors import InputError
from mtl.heads.attentions import attentions
from mtl.heads.families import family_of, heads_per_group, in_features, out_features
from mtl.heads.family_table import FAMILIES, Family, Stack
from mtl.heads.prune import require_prunable
from tests.mtl import tiny


@pytest.mark.parametrize("name", tiny.EVERY)
def test_every_row_fits_its_model_whose_parameters_all_learn(name: str) -> None:
    model = tiny.model(name)
    family = family_of(model)
    found = attentions(model, family)
    assert len(found) == tiny.LAYERS
    for attention in found:
        assert attention.remaining == tuple(range(tiny.HEADS))
        assert in_features(attention.output) == tiny.HEADS * tiny.HEAD_DIM
        outputs = 32
        if family.fused:
            outputs += 2 * 32 // heads_per_group(model)
        assert out_features(attention.module.get_submodule(family.query)) == outputs
        if not family.fused:
            key, value = (attention.module.get_submodule(part) for part in (family.key, family.value))
            assert key.out_features == value.out_features
    # Parameters without a gradient would stop DDP; `Encoder` freezes LayoutLM's pooler, ESM's contact head.
    ids, mask = tiny.batch()
    model(input_ids=ids, attention_mask=mask).last_hidden_state.square().sum().backward()
    trained = [(path, each) for path, each in model.named_parameters() if each.requires_grad]
    lacking = [path for path, parameter in trained if parameter.grad is None]
    assert [path for path in lacking if not path.startswith(("pooler.", "contact_head."))] == []


def test_every_rule_of_the_table_is_among_the_families_that_stand_for_others() -> None:
    """Other than where parts lie; the two that are left out have tests of encoders of their own."""
    places = {"stacks", "query", "key", "value", "two_sided_if", "output_size"}
    rules = [field for field in dataclasses.fields(Family) if field.name not in places]

    def values(names: Iterable[str], rule: str) -> set[bool | str]:
        found = {getattr(FAMILIES[name], rule) for name in names}
        return found if rule in ("fused", "position_bias") else {bool(value) for value in found}

    for rule in rules:
        assert values(tiny.STRUCTURES, rule.name) == values(FAMILIES, rule.name), rule.name
    assert {len(FAMILIES[name].stacks) for name in tiny.STRUCTURES} == {1, 2, 3}


def test_layers_of_albert_share_a_module_by_groups() -> None:
    model = tiny.model("albert", num_hidden_layers=4, num_hidden_groups=2, inner_group_num=2)
    outputs = [attention.output for attention in attentions(model, FAMILIES["albert"])]
    groups = model.encoder.albert_layer_groups
    first, second = ([layer.attention.dense for layer in group.albert_layers] for group in groups)
    assert outputs == first * 2 + second * 2


@pytest.mark.parametrize(
    ("name", "key", "reason"),
    [("stablelm", "qk_layernorm", "norms of its own"), ("deberta", "talking_head", "talking heads mix")],
)
def test_some_models_of_a_family_are_refused_by_their_configuration(name: str, key: str, reason: str) -> None:
    model, family = tiny.model(name), FAMILIES[name]
    require_prunable(model, family)
    setattr(model.config, key, True)
    with pytest.raises(InputError, match=reason):
        require_prunable(model, family)


def test_a_model_with_a_head_is_found_by_its_base() -> None:
    model = BertForTokenClassification(tiny.config("bert"))
    assert attentions(model, family_of(model))[2].output is model.bert.encoder.layer[2].attention.output.dense


def test_an_unknown_layout_names_the_missing_row_and_likely_projections() -> None:
    config = SwitchTransformersConfig(
        d_model=32, d_kv=8, num_heads=4, num_layers=2, d_ff=16, vocab_size=50, num_experts=2
    )
    with pytest.raises(InputError) as raised:
        family_of(SwitchTransformersEncoderModel(config))
    message = str(raised.value)
    assert "'switch_transformers'" in message
    assert "mtl/heads/family_table.py" in message
    assert "encoder.block.{}.layer.{}.SelfAttention.o" in message
    assert "SelfAttention.q" not in message
    assert "\n" not in message


def test_a_row_that_does_not_fit_is_an_input_error() -> None:
    model = tiny.model("bert")
    with pytest.raises(InputError, match="does not fit its row of the table of families \\('bert'"):
        attentions(model, Family((Stack("self", "encoder.layer.{}.attention.other", "^.output.dense"),)))
    with pytest.raises(InputError, match="no linear layer"):
        attentions(model, Family((Stack("self", "encoder.layer.{}.attention.self", "^.output.LayerNorm"),)))

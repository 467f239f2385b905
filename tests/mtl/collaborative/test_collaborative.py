from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import BertForMaskedLM, BertModel

from mtl.collaborative.attention import CollaborativeAttention, query_bias, query_key
from mtl.collaborative.sharing import collaborate
from mtl.errors import InputError
from mtl.heads.attentions import attentions
from mtl.heads.families import family_of
from mtl.heads.family_table import FAMILIES
from mtl.heads.load import load_pruned
from mtl.heads.prune import prune_heads
from mtl.heads.tap import HeadTap, eager_attention, head_scale
from tests.mtl import tiny
from tests.mtl.collaborative.modules import collaborative_modules

FULL = tiny.HEADS * tiny.HEAD_DIM
ABLE = tuple(name for name in tiny.NAMES if not FAMILIES[name].not_shareable_because)
UNABLE = tuple(name for name in FAMILIES if FAMILIES[name].not_shareable_because)
SAME_ROW = (
    "bert-generation", "camembert", "data2vec-text", "ernie", "layoutlm", "megatron-bert",
    "roberta-prelayernorm", "roc_bert", "splinter", "xlm-roberta", "xlm-roberta-xl",
)  # fmt: skip
FLOAT32_SOFTMAX = ("layoutlm", "splinter")
"""Families whose own attention, in eager form, takes the softmax in 32 bits."""
structures = pytest.mark.parametrize("name", tiny.of_structure(ABLE))
families = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SAME_ROW else name for name in ABLE]
)


def exact(name: str) -> float:
    return 1e-6 if name in FLOAT32_SOFTMAX else 1e-9


@families
def test_all_components_give_the_same_model(name: str) -> None:
    model = tiny.model(name)
    expected = tiny.vectors(model)
    made = collaborate(model, FULL)
    assert all(shared.decomposition.error < 1e-6 for shared in made)
    assert sum(len(shared.sites) for shared in made) == tiny.LAYERS == len(collaborative_modules(model))
    for kind in ("eager", "sdpa") if model._supports_sdpa else ("eager",):
        model.set_attn_implementation(kind)
        torch.testing.assert_close(tiny.vectors(model), expected, rtol=0, atol=exact(name))


def test_a_model_with_shared_components_is_pickled() -> None:
    model = tiny.model("bert")
    collaborate(model, 12, starts=1, steps=1)
    assert torch.equal(tiny.vectors(pickle.loads(pickle.dumps(model))), tiny.vectors(model))


@structures
def test_probabilities_are_those_of_the_same_model(name: str) -> None:
    model = tiny.model(name)
    ids, mask = tiny.batch()
    with eager_attention(model):
        expected = model(input_ids=ids, attention_mask=mask, output_attentions=True).attentions
        collaborate(model, FULL)
        given = model(input_ids=ids, attention_mask=mask, output_attentions=True).attentions
    assert len(given) == len(expected) == tiny.LAYERS
    for ours, theirs in zip(given, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=exact(name))


def from_the_equations(module: CollaborativeAttention, hidden: Tensor, mask: Tensor) -> Tensor:
    """Cordonnier et al. 2020, head by head and position by position."""
    w_q, w_k = (module.get_submodule(name).weight.T for name in ("query", "key"))  # type: ignore[union-attr]
    values = module.get_submodule("value")(hidden)
    outputs = torch.zeros_like(values)
    size = tiny.HEAD_DIM
    for row, length in enumerate(mask.sum(1).tolist()):
        for head in range(tiny.HEADS):
            x = hidden[row]
            scores = (x @ w_q @ torch.diag(module.mixing[head])) @ (x @ w_k).T
            scores = scores + torch.ones(len(x), 1, dtype=x.dtype) @ (x @ module.content[head])[None]
            probabilities = (scores / size**0.5)[:, :length].softmax(-1)
            columns = slice(head * size, (head + 1) * size)
            outputs[row, :, columns] = probabilities @ values[row, :length, columns]
    return outputs


@pytest.mark.parametrize("kind", ["eager", "sdpa"])
def test_heads_compute_what_the_equations_say(kind: str) -> None:
    model = tiny.model("bert", num_hidden_layers=1)
    model.set_attn_implementation(kind)
    collaborate(model, 10, steps=5)
    tiny.shake(model)
    ids, mask = tiny.batch()
    [module] = collaborative_modules(model)
    inputs: list[Tensor] = []
    handle = module.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    with HeadTap(model, family_of(model)).observe() as outputs:
        model(input_ids=ids, attention_mask=mask)
    handle.remove()
    expected = from_the_equations(module, inputs[0], mask).unflatten(-1, (tiny.HEADS, tiny.HEAD_DIM))
    torch.testing.assert_close(outputs[0], expected, rtol=0, atol=1e-12)


def test_gradients_are_finite_differences() -> None:
    model = tiny.model("bert", num_hidden_layers=1, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    collaborate(model, 6, steps=5)
    [module] = collaborative_modules(model)
    hidden = torch.randn(2, 3, FULL, dtype=torch.float64, requires_grad=True)
    names = ["mixing", "content", "query.weight", "key.weight"]
    values = [module.get_parameter(name).detach().requires_grad_() for name in names]

    def output(hidden: Tensor, *parameters: Tensor) -> Tensor:
        given = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(module, given, (hidden,))[0]  # type: ignore[no-any-return]

    assert torch.autograd.gradcheck(output, (hidden, *values), fast_mode=True)


def test_fewer_components_give_nearly_the_same_model_the_more_the_nearer() -> None:
    expected = tiny.vectors(tiny.model("bert"))
    distances, errors = [], []
    for dim in (8, 16, 31):
        model = tiny.model("bert")
        errors.append(max(shared.decomposition.error for shared in collaborate(model, dim, steps=30)))
        distances.append((tiny.vectors(model) - expected).norm().item())
    assert errors == sorted(errors, reverse=True)
    assert 1e-6 < distances[-1] < min(distances[:2])


def test_parameters_are_those_of_the_formula() -> None:
    model = tiny.model("bert")
    before = model.num_parameters()
    collaborate(model, 12, steps=0)
    separate = 2 * FULL * FULL + 2 * FULL
    shared = 2 * FULL * 12 + tiny.HEADS * 12 + tiny.HEADS * FULL
    assert before - model.num_parameters() == tiny.LAYERS * (separate - shared)


def test_query_biases_become_content_biases() -> None:
    model = tiny.model("bert")
    family = family_of(model)
    before = [
        (query_key(family, attention).keys, query_bias(family, attention))
        for attention in attentions(model, family)
    ]
    collaborate(model, FULL)
    for module, (keys, biases) in zip(collaborative_modules(model), before, strict=True):
        for head in range(tiny.HEADS):
            torch.testing.assert_close(module.content[head], keys[head] @ biases[head])


@structures
def test_what_was_saved_is_loaded(name: str, tmp_path: Path) -> None:
    model = tiny.model(name, dtype=torch.float32)
    collaborate(model, 10, steps=5)
    tiny.shake(model)
    model.save_pretrained(tmp_path)
    loaded = load_pruned(tmp_path)
    torch.testing.assert_close(tiny.vectors(loaded), tiny.vectors(model), rtol=0, atol=0)
    assert [module.mixing.shape for module in collaborative_modules(loaded)] == [
        (tiny.HEADS, 10)
    ] * tiny.LAYERS


def test_a_model_with_a_head_on_top_is_loaded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = BertForMaskedLM(tiny.config("bert")).eval()
    collaborate(model, 10, steps=5)
    model.save_pretrained(tmp_path)
    ids, mask = tiny.batch()
    loaded = load_pruned(tmp_path)
    torch.testing.assert_close(
        loaded(ids, attention_mask=mask).logits, model(ids, attention_mask=mask).logits, rtol=0, atol=0
    )


@pytest.mark.parametrize("name", ["bert", "distilbert", "mpnet", "rembert"])
@pytest.mark.parametrize("cut_first", [True, False])
def test_heads_are_cut_before_and_after(name: str, cut_first: bool, tmp_path: Path) -> None:
    cut = {0: [1, 2], 1: [0, 1, 2, 3], 2: [3]}
    scale = torch.ones(tiny.LAYERS, tiny.HEADS, dtype=torch.float64)
    for layer, heads in cut.items():
        scale[layer, heads] = 0
    model = tiny.model(name)
    with head_scale(model, scale):
        expected = tiny.vectors(model)
    for step in (prune_heads, collaborate) if cut_first else (collaborate, prune_heads):
        if step is prune_heads:
            prune_heads(model, cut)
        else:
            collaborate(model, 3 * tiny.HEAD_DIM if cut_first else FULL)
    torch.testing.assert_close(tiny.vectors(model), expected, rtol=0, atol=1e-9)
    expected_components = {0: 16, 2: 24} if cut_first else {0: FULL, 1: FULL, 2: FULL}
    assert model.config.collaborative_components == expected_components
    model = model.float()
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(tiny.vectors(load_pruned(tmp_path)), tiny.vectors(model), rtol=0, atol=0)


def test_heads_are_gated(tmp_path: Path) -> None:
    model = tiny.model("bert")
    scale = torch.rand(tiny.LAYERS, tiny.HEADS, dtype=torch.float64)
    with head_scale(model, scale):
        expected = tiny.vectors(model)
    collaborate(model, FULL)
    with head_scale(model, scale):
        torch.testing.assert_close(tiny.vectors(model), expected, rtol=0, atol=1e-9)
    model = model.float()
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(tiny.vectors(load_pruned(tmp_path)), tiny.vectors(model), rtol=0, atol=0)


def test_a_copy_computes_with_its_own_parameters() -> None:
    model = tiny.model("bert")
    collaborate(model, 10, steps=5)
    twin = copy.deepcopy(model)
    torch.testing.assert_close(tiny.vectors(twin), tiny.vectors(model), rtol=0, atol=0)
    with torch.no_grad():
        collaborative_modules(twin)[0].mixing.zero_()
    assert not torch.equal(tiny.vectors(twin), tiny.vectors(model))
    with eager_attention(twin):
        ids, mask = tiny.batch()
        given = twin(input_ids=ids, attention_mask=mask, output_attentions=True).attentions
    assert len(given) == tiny.LAYERS


def test_shared_and_mixing_parameters_are_trained() -> None:
    model = tiny.model("bert").train()
    collaborate(model, 10, steps=5)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tiny.vectors(model).square().sum().backward()
    optimizer.step()
    moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    for layer in range(tiny.LAYERS):
        path = f"encoder.layer.{layer}.attention.self"
        assert {f"{path}.{name}" for name in ("query.weight", "key.weight", "mixing", "content")} <= moved


@pytest.mark.parametrize("name", tiny.of_structure(name for name in UNABLE if name in tiny.NAMES))
def test_families_that_cannot_are_refused_with_the_reason(name: str) -> None:
    model = tiny.model(name, dtype=torch.float32)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(InputError, match="cannot share query and key components: ") as refused:
        collaborate(model, 8)
    assert FAMILIES[name].not_shareable_because in str(refused.value)
    assert "\n" not in str(refused.value)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", ["t5", "mt5"])
def test_translators_with_a_bias_that_layers_hand_on_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="the first layer hands on a bias per head"):
        collaborate(tiny.translator(name), 8)


@pytest.mark.parametrize("dim", [0, -1, FULL + 1])
def test_too_few_and_too_many_components(dim: int) -> None:
    with pytest.raises(InputError, match=f"dim={dim}: use 1 to {FULL} components"):
        collaborate(tiny.model("bert"), dim)


def test_other_bad_arguments() -> None:
    model = tiny.model("bert")
    with pytest.raises(InputError, match="starts=0: use a whole number of at least 1"):
        collaborate(model, 8, starts=0)
    with pytest.raises(InputError, match="steps=-1"):
        collaborate(model, 8, steps=-1)
    collaborate(model, 8, steps=0)
    with pytest.raises(InputError, match="share query and key components already"):
        collaborate(model, 4)
    decoder = BertModel(tiny.config("bert", is_decoder=True))
    with pytest.raises(InputError, match="set up as a decoder"):
        collaborate(decoder, 8)


def test_weights_of_another_number_of_components_are_refused(tmp_path: Path) -> None:
    model = tiny.model("bert", dtype=torch.float32)
    collaborate(model, 10, steps=0)
    model.config.collaborative_components = {0: 10, 1: 9, 2: 10}
    model.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"do not fit its config\.json"):
        load_pruned(tmp_path)


@pytest.mark.usefixtures("as_installed")
def test_numbers_of_other_types_are_taken() -> None:
    collaborate(tiny.model("bert"), torch.tensor(8), starts=np.int64(1), steps=np.int64(1))

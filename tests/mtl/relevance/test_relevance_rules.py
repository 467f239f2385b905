"""The rules against relevance by its definition, by hand and on every family."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from mtl.errors import InputError
from mtl.heads.tap import eager_attention
from mtl.models.passes import frozen
from mtl.relevance.rules import (
    RelevanceRules,
    Rules,
    relevance_by_rule,
    single_activations,
)
from tests.mtl import tiny

# Rotary positions, root mean square norms, or the softmax of eager attention.
FLOAT32_INSIDE = (
    "modernbert", "eurobert", "gte", "jina_embeddings_v3", "layoutlm", "nomic_bert", "splinter",
    *(name for name in tiny.CAUSAL if name != "gpt2"),
)  # fmt: skip
BOTH: tuple[Rules, Rules] = ("paper", "attnlrp")
SIGMOID, TOP = "torch.Tensor.sigmoid", "torch.Tensor.topk"
OTHERS = {
    "apertus": "torch.min", "dots1": SIGMOID, "glm4_moe": SIGMOID, "gpt_oss": "torch.Tensor.max",
    "granitemoe": TOP, "granitemoeshared": TOP,
}  # fmt: skip
REFUSED: dict[Rules, dict[str, str]] = {
    "paper": OTHERS | {"qwen2_moe": SIGMOID},
    "attnlrp": dict.fromkeys(tiny.MIXTURES, "torch.topk") | OTHERS,
}
"""Operations without a rule, by family: an activation that is not 0 at 0, gates of experts, their choice."""
EXAMINED = [
    *tiny.with_variants(tiny.NAMES, ("attnlrp",)),
    # Where `attnlrp` ends at the choice of experts, `paper` goes on.
    *tiny.with_variants(
        dict.fromkeys((*tiny.of_structure(tiny.NAMES), *tiny.MIXTURES, *REFUSED["paper"])), ("paper",)
    ),
]
"""Under `attnlrp` relevance also passes queries and keys."""


def relevance(output: Tensor, *inputs: Tensor) -> list[Tensor]:
    gradients = torch.autograd.grad(output, inputs, retain_graph=True)
    return [tensor.detach() * gradient for tensor, gradient in zip(inputs, gradients, strict=True)]


def carrier(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def test_a_relu_net_without_biases_gives_gradient_times_input() -> None:
    net = nn.Sequential(nn.Linear(5, 7, bias=False), nn.ReLU(), nn.Linear(7, 1, bias=False)).double()
    inputs = carrier(4, 5)
    with frozen(net), RelevanceRules("paper", "net", account=True) as rules:
        output = net(inputs).sum()
    (plain,) = relevance(net(inputs).sum(), inputs)
    (ours,) = relevance(output, inputs)
    torch.testing.assert_close(ours, plain)
    assert ours.sum().item() == pytest.approx(output.item())
    assert rules.sources == []


def test_two_layers_by_hand() -> None:
    """Hidden units 2*1 - 1*1 + 1 = 2 and 1*2 - 3*1 + 0 = -1, which ReLU closes; output 3*2 + 5*0 - 2 = 4.

    Of the output's 4, its bias has -2 and the first unit 6; of these 6, of 2 = 2 - 1 + 1, the first input
    has 6, the second -3 and the bias 3.
    """
    first = (torch.tensor([[2.0, -1.0], [2.0, -3.0]]), torch.tensor([1.0, 0.0]))
    second = (torch.tensor([[3.0, 5.0]]), torch.tensor([-2.0]))
    inputs = torch.tensor([1.0, 1.0], requires_grad=True)
    with RelevanceRules("paper", "net", account=True) as rules:
        output = functional.linear(functional.relu(functional.linear(inputs, *first)), *second).sum()
    assert output.item() == 4
    assert relevance(output, inputs)[0].tolist() == [6.0, -3.0]
    gradients = torch.autograd.grad(output, [source.leaf for source in rules.sources])
    ended = [source.relevance(gradient) for source, gradient in zip(rules.sources, gradients, strict=True)]
    assert ended == [3.0, -2.0]


def test_the_definition_layer_by_layer() -> None:
    """R_i = sum_j R_j z_ij / (sum_i z_ij + b_j): through linear, GELU and layer norm, explicitly."""
    lower, upper, norm = nn.Linear(4, 6).double(), nn.Linear(6, 3).double(), nn.LayerNorm(3).double()
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    inputs = carrier(4)
    with frozen(norm), frozen(lower), frozen(upper), RelevanceRules("paper", "net"):
        hidden = functional.gelu(lower(inputs))
        output = norm(upper(hidden) + 1.5)
    (found,) = relevance(output[1], inputs)

    with torch.no_grad():
        before = upper(functional.gelu(lower(inputs))) + 1.5
        spread = (before.var(correction=0) + norm.eps).sqrt()
        # z of unit i for the normalised unit 1: the weight times what is left of unit i after the mean.
        parts = before * ((torch.arange(3) == 1).double() - 1 / 3) * norm.weight[1] / spread
        at_norm = parts  # its sum and the bias are the output, whose relevance is the output itself
        torch.testing.assert_close(parts.sum() + norm.bias[1], output[1])
        z = upper.weight * hidden
        at_hidden = (z / before[:, None] * at_norm[:, None]).sum(0)
        z = lower.weight * inputs  # GELU hands relevance on as it is
        expected = (z / lower(inputs)[:, None] * at_hidden[:, None]).sum(0)
    torch.testing.assert_close(found, expected)


def test_products_share_and_divisors_and_roots_are_constants() -> None:
    a, b, c = carrier(3, 4), carrier(4, 2), carrier(1, 3, 1)
    with RelevanceRules("paper", "net"):
        product, gated = (a @ b).sum(), torch.einsum("ab,ab,ab->", a, a * 2, a + 0)
        added = torch.baddbmm(c, a[None], b[None]).sum()
        scaled = (a / a.square().mean(-1, keepdim=True).add(1e-6).sqrt()).sum()
        normed = functional.rms_norm(a, (4,), eps=1e-6).sum()
    for tensor, found in zip((a, b), relevance(product, a, b), strict=True):
        (plain,) = relevance((a @ b).sum(), tensor)
        torch.testing.assert_close(found, plain / 2)
        torch.testing.assert_close(relevance(added, tensor)[0], found)
    torch.testing.assert_close(relevance(added, c)[0], 2 * c.detach())
    torch.testing.assert_close(relevance(gated, a)[0], 2 * a.detach() ** 3)
    expected = a.detach() / (a.detach().square().mean(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(relevance(scaled, a)[0], expected)
    torch.testing.assert_close(relevance(normed, a)[0], expected)


def test_softmax_is_a_constant_or_after_achtibat() -> None:
    scores, values = carrier(2, 5), carrier(5, 3)
    with RelevanceRules("paper", "net"):
        weights = scores.softmax(-1)
        assert not weights.requires_grad
        output = (weights @ values).sum()
    torch.testing.assert_close(relevance(output, values)[0], (weights.sum(0)[:, None] * values).detach())

    with RelevanceRules("attnlrp", "net"):
        weights = functional.softmax(scores, dim=-1)
        output = (weights @ values).sum()
    at_scores, at_weights, at_values = relevance(output, scores, weights, values)
    half = (weights.sum(0)[:, None] * values).detach() / 2
    torch.testing.assert_close(at_values, half)
    torch.testing.assert_close(at_weights.sum(), half.sum())
    expected = scores * (at_weights - weights * at_weights.sum(-1, keepdim=True))
    torch.testing.assert_close(at_scores, expected.detach())


def test_masked_attention_keeps_its_relevance() -> None:
    """Masked by minus infinity or by the smallest number; a constant keeps what the Jacobian loses."""
    values = carrier(3, 2)
    for lowest in (-torch.inf, torch.finfo(torch.float64).min):
        scores = carrier(2, 3)
        with RelevanceRules("attnlrp", "net", account=True) as rules:
            masked = scores + torch.tensor([[0.0, lowest, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
            output = (torch.softmax(masked, dim=-1) @ values).sum()
        ended = relevance_by_rule(rules.sources, output)
        carried = sum(part.sum() for part in relevance(output, scores, values))
        assert (sum(ended.values()) + carried).item() == pytest.approx(output.item())


def test_sums_in_place_and_constants_anywhere_are_sinks() -> None:
    inputs = carrier(3)
    with RelevanceRules("paper", "net", account=True) as rules:
        doubled = inputs * 2
        doubled += torch.ones(3, dtype=torch.float64)
        doubled[1] = 7.0 - inputs[0]
        filled = torch.cat([doubled, torch.full((2,), 3.0, dtype=torch.float64)]).masked_fill(
            torch.tensor([True, False, False, False, False]), 5.0
        )
        filled /= 2
        output = torch.where(filled > 100, 1.0, filled - 1).sum()
    ended = relevance_by_rule(rules.sources, output)
    # What is written to in place is no sink: here the 1 under the 7.
    assert ended["BIAS"] == pytest.approx((1 + 7 + 2 * 3 + 5) / 2 - 5)
    assert relevance(output, inputs)[0].sum().item() + ended["BIAS"] == pytest.approx(output.item())


def test_what_no_rule_knows_is_an_input_error() -> None:
    inputs = carrier(3)
    with RelevanceRules("paper", "strange"):
        assert inputs.argmax().item() == inputs.detach().argmax().item()
        assert inputs.shape == (3,)
        with pytest.raises(InputError) as raised:
            torch.exp(inputs)
        assert str(raised.value).startswith("relevance: no rule for torch.exp in model type 'strange'")
        with pytest.raises(InputError, match="relu"):
            functional.relu(inputs * 1, inplace=True)
        copy = inputs * 1
        with pytest.raises(InputError, match="mul"):
            copy *= inputs
        with pytest.raises(InputError, match="pow"):
            inputs**-1.0


@pytest.mark.parametrize("activation", ["gelu_new", "gelu_fast", "quick_gelu", "relu2", "gelu_pytorch_tanh"])
def test_activations_of_several_operations_fall_under_one_rule(activation: str) -> None:
    model = tiny.model("bert", hidden_act=activation)
    for layer in model.encoder.layer:
        function = layer.intermediate.intermediate_act_fn
        inputs = carrier(5)
        with single_activations(model), RelevanceRules("paper", "bert"):
            output = function(inputs)
        torch.testing.assert_close(output, function(inputs))
        torch.testing.assert_close(relevance(output.sum(), inputs)[0], output.detach())
    assert not any(module._forward_hooks for module in model.modules())


def test_an_activation_without_a_rule_names_operation_and_family() -> None:
    model = tiny.model("bert", hidden_act="sigmoid")
    ids, mask = tiny.batch()
    with (
        frozen(model),
        single_activations(model),
        eager_attention(model),
        RelevanceRules("paper", "bert"),
        pytest.raises(InputError, match=r"no rule for torch\.sigmoid in model type 'bert'"),
    ):
        model(input_ids=ids, attention_mask=mask)
    assert all(parameter.requires_grad for parameter in model.parameters())


def forward(model: PreTrainedModel, rules: RelevanceRules) -> tuple[Tensor, Tensor]:
    """A made-up score that reads every word, and the last layer's vectors."""
    ids, mask = tiny.batch()
    with frozen(model), single_activations(model), eager_attention(model), rules:
        vectors = model(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = torch.linspace(-1.0, 2.0, vectors.shape[-1], dtype=vectors.dtype)
        return (vectors[mask.bool()] @ weights).sum(), vectors


@pytest.mark.parametrize(("name", "rules"), EXAMINED)
def test_every_family_conserves_relevance(name: str, rules: Rules) -> None:
    double = name not in FLOAT32_INSIDE
    model = tiny.model(name, dtype=torch.float64 if double else torch.float32)
    under = RelevanceRules(rules, name, account=True)
    refused = REFUSED[rules].get(name)
    if refused:
        with pytest.raises(InputError, match=re.escape(f"no rule for {refused} in model type '{name}'")):
            forward(model, under)
        return
    score, vectors = forward(model, under)
    ended = relevance_by_rule(under.sources, score)
    assert sum(ended.values()) == pytest.approx(score.item(), rel=1e-9 if double else 1e-4)
    assert ended["EMBEDDING"] != 0
    assert (ended["ATTENTION"] != 0) == (rules == "attnlrp")
    ids, mask = tiny.batch()
    with torch.no_grad(), eager_attention(model):
        plain = model(input_ids=ids, attention_mask=mask).last_hidden_state
    close = {"rtol": 1e-5, "atol": 3e-5} if name == "nemotron" else {}  # squares, in 32 bits
    torch.testing.assert_close(vectors[mask.bool()], plain[mask.bool()], **close)


@pytest.mark.parametrize("name", ["bert", "deberta-v2", "distilbert", "roberta-prelayernorm"])
@pytest.mark.parametrize("rules", BOTH)
def test_every_layer_conserves_relevance(name: str, rules: Rules) -> None:
    """The residual stream below a layer and all constants from there on have the whole output."""
    model = tiny.model(name)
    layers = model.transformer.layer if name == "distilbert" else model.encoder.layer
    under = RelevanceRules(rules, name, account=True)
    seen: list[tuple[Tensor, int]] = []
    for layer in layers:
        layer.register_forward_pre_hook(lambda module, inputs: seen.append((inputs[0], len(under.sources))))
    score, _ = forward(model, under)
    assert len(seen) == tiny.LAYERS
    for stream, before in seen:
        ended = relevance_by_rule(under.sources[before:], score)
        assert relevance(score, stream)[0].sum().item() + sum(ended.values()) == pytest.approx(score.item())


def test_minilm_conserves_relevance() -> None:
    from mtl.models.encoder import Encoder

    model = Encoder.from_pretrained("minilm").eval().transformer
    assert isinstance(model, PreTrainedModel)
    for rules in BOTH:
        under = RelevanceRules(rules, "bert", account=True)
        score, _ = forward(model, under)
        ended = relevance_by_rule(under.sources, score)
        assert sum(ended.values()) == pytest.approx(score.item(), rel=1e-4)

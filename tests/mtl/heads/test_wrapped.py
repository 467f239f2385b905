"""Models that are compiled, wrapped, quantised, adapted or parts of others: correct, or refused by name."""

from __future__ import annotations

import copy
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    BartForCausalLM,
    BertForMaskedLM,
    DynamicCache,
    EncoderDecoderModel,
    PreTrainedModel,
    T5EncoderModel,
)

import mtl
from mtl import (
    ablate_heads,
    head_importance,
    head_scale,
    prune_heads,
)
from mtl.errors import InputError
from mtl.heads.families import family_of
from mtl.heads.tap import HeadTap
from tests.kit.absent import may_be_absent
from tests.mtl import tiny
from tests.mtl.analysis.ablation.test_any_score import scaled

SHAPE = (tiny.LAYERS, tiny.HEADS)
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{old}")
    for old in (
        "torch.ao.quantization is deprecated",
        "torch.quantize_per_tensor",
        "TypedStorage is deprecated",
    )
]


def zeros(*places: tuple[int, int], sites: int = tiny.LAYERS) -> Tensor:
    scale = torch.ones(sites, tiny.HEADS, dtype=torch.float64)
    for place in places:
        scale[place] = 0
    return scale


def without(model: nn.Module, *places: tuple[int, int], module: str = "attention.output.dense") -> nn.Module:
    """A copy with zeroed weights; `module` ends the names of the output projections."""
    made = copy.deepcopy(model)
    found = [part for name, part in made.named_modules() if name.endswith(module)]
    for site, head in places:
        found[site].weight.data[:, head * tiny.HEAD_DIM : (head + 1) * tiny.HEAD_DIM] = 0
    return made


@pytest.mark.slow
@pytest.mark.parametrize("how", ["model", "method", "around"])
def test_compiled_models_are_scaled(how: str) -> None:
    model = tiny.model("bert")
    ids, mask = tiny.batch()
    if how == "method":
        model.compile(backend="eager")
    compiled = torch.compile(model, backend="eager") if how == "model" else model

    def call() -> Tensor:
        output = compiled(input_ids=ids, attention_mask=mask)
        found: Tensor = output.last_hidden_state
        return found

    run = torch.compile(call, backend="eager") if how == "around" else call
    plain_model = tiny.model("bert")
    closed = [((0, 1),), ((2, 3), (0, 0))]
    with torch.no_grad():
        expected = [without(plain_model, *places)(ids, mask).last_hidden_state for places in closed]
        plain = run()
        for _ in range(2):
            for places, right in zip(closed, expected, strict=True):
                with head_scale(compiled, zeros(*places)):
                    torch.testing.assert_close(run(), right, rtol=0, atol=1e-12)
            assert torch.equal(run(), plain)
    if how != "around":
        table = head_importance(
            compiled, [ids], lambda model, b: model(b).last_hidden_state.tanh().sum((1, 2))
        )
        assert min(table.filter(measure="importance")["value"]) > 0
    torch.compiler.reset()


def test_a_scale_inside_a_compiled_function_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def set_stance(stance: str) -> None:
        raise RuntimeError("attempted to set_stance in a torch.compile region")

    model = tiny.model("bert")
    monkeypatch.setitem(sys.modules, "torch._dynamo", sys.modules.get("torch._dynamo", torch))
    monkeypatch.setattr(torch.compiler, "set_stance", set_stance)
    with pytest.raises(InputError, match="compile the transformer alone"), head_scale(model, zeros((0, 1))):
        pass
    monkeypatch.undo()
    ids, mask = tiny.batch()
    with head_scale(model, zeros((0, 1))):
        found = model(ids, mask).last_hidden_state
    torch.testing.assert_close(found, without(model, (0, 1))(ids, mask).last_hidden_state)


class Lora(nn.Module):
    """A low-rank adapter around a linear layer, with PEFT's method `get_base_layer`."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base
        self.down = nn.Linear(base.in_features, 2, bias=False, dtype=base.weight.dtype)
        self.up = nn.Linear(2, base.out_features, bias=False, dtype=base.weight.dtype)

    def get_base_layer(self) -> nn.Linear:
        return self.base_layer

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.base_layer(inputs) + self.up(self.down(inputs))
        return result


class Around(nn.Module):
    """Somebody's own module around a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner = model

    def forward(self, **inputs: Any) -> Any:
        return self.inner(**inputs)


class Saved(nn.Module):
    """As PEFT's `modules_to_save`: the original, and a trained copy that stands in for it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.original_module, self.trained = module, copy.deepcopy(module)

    def __getattr__(self, name: str) -> Any:
        found = self._modules.get(name)
        return getattr(self._modules["trained"], name) if found is None else found

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.trained(*inputs, **named)


class Hiding(nn.Module):
    """As PEFT's adaption prompts: around an attention, without its attributes."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.inner = module


def around_attention(wrapper: type[nn.Module]) -> nn.Module:
    model = tiny.model("llama")
    for layer in model.layers:
        layer.self_attn = wrapper(layer.self_attn)
    return model


class Prefixed(Around):
    """As PEFT's prefix tuning: keys and values of every head for some positions before the first."""

    peft_config: ClassVar[dict[str, Any]] = {"default": SimpleNamespace(peft_type="PREFIX_TUNING")}

    def get_base_model(self) -> nn.Module:
        return self.inner


def adapted(*names: str) -> nn.Module:
    model = tiny.model("bert")
    torch.manual_seed(3)
    for layer in model.encoder.layer:
        for name in names:
            parent = layer.attention.get_submodule(name.rpartition(".")[0])
            last = name.rpartition(".")[2]
            setattr(parent, last, Lora(parent.get_submodule(last)))
    return model


def whole_t5_encoder() -> nn.Module:
    torch.manual_seed(0)
    made = T5EncoderModel(tiny.translator("t5").config).double().eval()
    tiny.shake(made)
    return made


def offloaded() -> nn.Module:
    """As with accelerate: every module has its weights only during its pass."""
    model = tiny.model("bert")
    for module in model.modules():
        kept = {name: part for name, part in module._parameters.items() if part is not None}
        if kept:
            empty = {name: nn.Parameter(part.to("meta")) for name, part in kept.items()}
            module._parameters.update(empty)
            module._hf_hook = SimpleNamespace()
            module.forward = partial(_loaded, module, module.forward, kept, empty)
    return model


def _loaded(module: nn.Module, compute: Any, kept: Any, empty: Any, *inputs: Any, **named: Any) -> Any:
    module._parameters.update(kept)
    try:
        return compute(*inputs, **named)
    finally:
        module._parameters.update(empty)


def encoder_decoder() -> nn.Module:
    torch.manual_seed(0)
    decoder = tiny.config("bert", is_decoder=True, add_cross_attention=True)
    return EncoderDecoderModel(
        encoder=tiny.model("bert", dtype=torch.float32), decoder=AutoModelForCausalLM.from_config(decoder)
    )


def quantised() -> nn.Module:
    model = tiny.model("bert", dtype=torch.float32)
    return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


BEFORE_DOT = "attention.output.dense"
WORKING = {
    "around": (lambda: Around(tiny.model("bert")), BEFORE_DOT),
    "adapted queries": (lambda: adapted("self.query", "self.value"), BEFORE_DOT),
    "masked language model": (lambda: BertForMaskedLM(tiny.config("bert")).double().eval(), BEFORE_DOT),
    "T5EncoderModel": (whole_t5_encoder, "SelfAttention.o"),
    "T5 encoder": (lambda: tiny.translator("t5").get_encoder(), "SelfAttention.o"),
    "BART encoder": (lambda: tiny.translator("bart").get_encoder(), "self_attn.out_proj"),
    "BartForCausalLM": (
        lambda: BartForCausalLM(tiny.translator("bart").config).double().eval(), "self_attn.out_proj"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WORKING)
def test_what_holds_or_is_a_part_of_a_model_is_scaled_measured_and_ablated(name: str) -> None:
    make, projection = WORKING[name]
    model = make()
    ids, mask = tiny.batch()

    def value(model: Any, b: Any) -> Tensor:
        output = model(input_ids=b[0], attention_mask=b[1])
        return output[0].tanh().sum((1, 2))

    place = (1, 2)
    with torch.no_grad():
        right = value(without(model, place, module=projection), (ids, mask))
        plain = value(model, (ids, mask))
        sites = {"BartForCausalLM": 4, "T5EncoderModel": 2, "T5 encoder": 2, "BART encoder": 2}.get(
            name, tiny.LAYERS
        )
        with head_scale(model, zeros(place, sites=sites)):
            torch.testing.assert_close(value(model, (ids, mask)), right, rtol=0, atol=1e-12)
    lost = ablate_heads(model, [(ids, mask)], value, draws=1)
    assert lost.height == sites * tiny.HEADS
    assert lost["loss"][1 * tiny.HEADS + 2] == pytest.approx(float((plain - right).mean()), abs=1e-9)
    worth = head_importance(model, [(ids, mask)], value).filter(measure="importance")
    assert worth.height == sites * tiny.HEADS
    assert worth["value"][1 * tiny.HEADS + 2] > 0


def test_a_quantised_model_is_scaled_and_ablated() -> None:
    model = quantised()
    ids, mask = tiny.batch()
    with torch.no_grad():
        plain = model(ids, mask).last_hidden_state
        with head_scale(model, zeros((0, 1)).float()):
            assert not torch.equal(model(ids, mask).last_hidden_state, plain)
    table = ablate_heads(
        model, [ids], lambda model, b: model(b).last_hidden_state.tanh().sum((1, 2)), draws=1
    )
    assert table["loss"].abs().min() > 0


def test_a_model_whose_numbers_are_loaded_for_each_pass_is_scaled_and_measured() -> None:
    ids, mask = tiny.batch()
    found = []
    for model in (offloaded(), tiny.model("bert")):
        with torch.no_grad(), head_scale(model, zeros((1, 2))):
            hidden = model(ids, mask).last_hidden_state
        found.append(
            (hidden, ablate_heads(model, [ids], value, draws=1), head_importance(model, [ids], value))
        )
    (hidden, lost, worth), (right, right_lost, right_worth) = found
    assert torch.equal(hidden, right)
    assert lost.equals(right_lost)
    assert worth.equals(right_worth)


def without_memory() -> nn.Module:
    with torch.device("meta"):
        return AutoModel.from_config(tiny.config("bert"))


def under_inference_mode() -> nn.Module:
    with torch.inference_mode():
        return tiny.model("bert")


def sharing(part: str) -> nn.Module:
    """A model two of whose layers were made to share."""
    model = tiny.model("bert")
    layers = model.encoder.layer
    if part == "layer":
        layers[1] = layers[0]
    else:
        layers[1].attention = layers[0].attention
    return model


BOTH = ("measure", "cut")
REFUSED: dict[str, tuple[Any, str, tuple[str, ...]]] = {
    "DataParallel": (lambda: nn.DataParallel(tiny.model("bert")), r"DataParallel.*\.module", BOTH),
    "replicas inside": (lambda: Around(nn.DataParallel(tiny.model("bert"))), r"DataParallel", BOTH),
    "EncoderDecoderModel": (encoder_decoder, r"EncoderDecoderModel.*\.encoder \(BertModel\)", BOTH),
    "two models": (
        lambda: nn.ModuleList([tiny.model("bert"), tiny.model("bert")]),
        r"ModuleList holds 2 .*\[0\] \(BertModel\)", BOTH,
    ),
    "no model": (lambda: nn.Linear(3, 3), r"got a Linear", BOTH),
    "inner module": (lambda: tiny.model("bert").encoder, r"got a BertEncoder", BOTH),
    "no module": (lambda: "bert-base-uncased", r"got a str: load it first", BOTH),
    "another family": (
        lambda: AutoModelForCausalLM.from_config(tiny.config("bloom", n_head=4)), "'bloom'", BOTH,
    ),
    "quantised": (quantised, r"quantised|DynamicQuantizedLinear", ("importance", "cut")),
    "shared layer": (lambda: sharing("layer"), r"layers share one attention module", ("select",)),
    "shared attention, cut": (
        lambda: sharing("attention"), r"layers share one attention module", ("select",),
    ),
    "shared attention": (lambda: sharing("attention"), r"L1 .* of another layer", ("measure",)),
    "offloaded": (offloaded, r"is offloaded by accelerate", ("cut",)),
    "no memory": (without_memory, r"on the device meta", ("numbers",)),
    "inference tensors": (under_inference_mode, r"made under torch.inference_mode", ("importance", "cut")),
    "adapters": (lambda: adapted("self.query", "self.value"), r"query of L0 is a Lora.*merge", ("cut",)),
    "adapted output": (lambda: adapted("output.dense"), r"output projection of L0.*Lora.*merge",
    ("cut",)),
    "prefixes": (
        lambda: Prefixed(tiny.model("bert")), r"a Prefixed with prefixes.*tune prefixes afterwards", ("cut",),
    ),
    "saved modules": (
        lambda: around_attention(Saved), r"the attention of L0 is a Saved.*its own: unwrap", ("select",),
    ),
    "hidden attention": (
        lambda: around_attention(Hiding), r"layers\.0\.self_attn .* is a Hiding .* hides its o_proj: unwrap",
        ("measure", "select"),
    ),
    "a module around": (lambda: Around(tiny.model("bert")), r"got a Around.*\.inner \(BertModel\)", ("cut",)),
    "T5 encoder": (lambda: tiny.translator("t5").get_encoder(), r"T5Stack is a part", ("cut",)),
    "BartForCausalLM": (
        lambda: BartForCausalLM(tiny.translator("bart").config), r"BartForCausalLM is a part", ("cut",),
    ),
}  # fmt: skip


def value(model: Any, b: Any) -> Tensor:
    return model(b)[0].tanh().sum((1, 2))


def _scale(model: Any) -> None:
    with head_scale(model, torch.ones(SHAPE)):
        pass


CALLS = {
    "measure": [
        _scale,
        lambda model: ablate_heads(model, [tiny.batch()[0]], value, draws=1),
        lambda model: head_importance(model, [tiny.batch()[0]], value),
    ],
    "select": [
        lambda model: prune_heads(model, {0: [1]}, torch.full(SHAPE, 0.5)),
    ],
    "numbers": [
        lambda model: ablate_heads(model, [tiny.batch()[0]], value, draws=1),
        lambda model: head_importance(model, [tiny.batch()[0]], value),
    ],
    "importance": [lambda model: head_importance(model, [tiny.batch()[0]], value)],
    "cut": [
        lambda model: prune_heads(model, {0: [1]}, torch.full(SHAPE, 0.5)),
    ],
}  # fmt: skip


if not may_be_absent(["collaborate"]):
    for kind in ("numbers", "cut"):
        CALLS[kind].append(lambda model: mtl.collaborate(model, 8, steps=1))


def state(model: Any) -> tuple[str, dict[str, Any]]:
    if not isinstance(model, nn.Module):
        return "", {}
    configs = [str(part.config) for part in model.modules() if hasattr(part, "config")]
    return str(configs), {
        key: value.clone() if isinstance(value, Tensor) else None for key, value in model.state_dict().items()
    }


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_named_and_unchanged(name: str) -> None:
    make, message, kinds = REFUSED[name]
    model = make()
    config, before = state(model)
    for kind in kinds:
        for call in CALLS[kind]:
            with pytest.raises(InputError, match=message) as caught:
                call(model)
            assert "\n" not in str(caught.value)
            assert "family_table" not in str(caught.value) or name == "another family"
    config_after, after = state(model)
    assert config_after == config
    assert before.keys() == after.keys()
    for key, value in before.items():
        if isinstance(value, Tensor) and not value.is_quantized and not value.is_meta:
            assert torch.equal(after[key], value), key


def test_nothing_is_changed_or_differentiated_under_inference_mode() -> None:
    model = tiny.model("bert")
    config, before = state(model)
    for call in (*CALLS["cut"], *CALLS["importance"]):
        with torch.inference_mode(), pytest.raises(InputError, match="called under torch"):
            call(model)
    assert state(model)[0] == config
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    with torch.inference_mode():
        ablate_heads(model, [tiny.batch()[0]], value, draws=1)
    head_importance(model, [tiny.batch()[0]], value)


def test_a_tap_on_heads_that_were_cut_since_is_refused() -> None:
    model = tiny.model("bert")
    tap = HeadTap(model, family_of(model))
    prune_heads(model, {0: [1, 2]})
    ids, _ = tiny.batch()
    with (
        pytest.raises(InputError, match="had 4 heads when the model was tapped"),
        tap.scale(torch.ones(SHAPE)),
    ):
        model(ids)


def test_the_oracle_closes_one_head() -> None:
    model = tiny.model("bert")
    ids, _ = tiny.batch()
    one = scaled(model, lambda model, b: model(ids).last_hidden_state, 1, 2, 0.0)
    with torch.no_grad():
        assert torch.equal(one, without(model, (1, 2))(ids).last_hidden_state)


def with_prefix(model: PreTrainedModel) -> Tensor:
    """Scores behind 3 positions of random keys and values, made from the configuration as PEFT does."""
    config, ids = model.config, tiny.batch(6, 2)[0]
    pairs = getattr(config, "num_key_value_heads", config.num_attention_heads)
    generator, cache = torch.Generator().manual_seed(5), DynamicCache()
    for layer in range(config.num_hidden_layers):
        keys = torch.randn(2, 2, pairs, 3, tiny.HEAD_DIM, generator=generator, dtype=torch.float64)
        cache.update(keys[0], keys[1], layer)
    return model(input_ids=ids.clamp(min=5), past_key_values=cache).last_hidden_state


@pytest.mark.parametrize(
    ("name", "heads", "fits"),
    [("llama", [0], True), ("llama", [0, 3], True), ("llama", [0, 1], False), ("gpt2", [0], False)],
)
def test_prefixes_fit_after_the_changes_that_their_message_names(
    name: str, heads: list[int], fits: bool
) -> None:
    model = tiny.model(name)
    with head_scale(model, zeros(*((0, head) for head in heads))):
        masked = with_prefix(model)
    closed = copy.deepcopy(model)
    prune_heads(closed, {0: heads}, keep_shape=True)
    torch.testing.assert_close(with_prefix(closed), masked, rtol=0, atol=1e-6)
    prune_heads(model, {0: heads})
    if fits:
        torch.testing.assert_close(with_prefix(model), masked, rtol=0, atol=1e-6)
    else:
        with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
            with_prefix(model)

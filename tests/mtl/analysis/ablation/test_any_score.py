"""`ablate_heads` and `head_importance` under every way of using a model: against zeroed and scaled weights.

The oracle knows nothing of taps and replays: it multiplies the columns of an output projection that read a
head.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import copy_context
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook
from transformers import AutoModelForCausalLM, BertForMultipleChoice, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from mtl import ablate_heads, head_importance, lowest, prune_heads
from mtl.errors import InputError
from mtl.probes.sites import KEYS
from tests.mtl import tiny

Score = Callable[[Any, Any], Tensor]
PROJECTIONS = {
    "bert": [r"attention\.output\.dense$"],
    "llama": [r"self_attn\.o_proj$"],
    "gpt2": [r"attn\.c_proj$"],
    "bart": [
        r"encoder\.layers\.\d\.self_attn\.out_proj$", r"decoder\.layers\.\d\.self_attn\.out_proj$",
        r"encoder_attn\.out_proj$",
    ],
    "t5": [
        r"encoder\.block.*SelfAttention\.o$", r"decoder\.block.*SelfAttention\.o$", r"EncDecAttention\.o$",
    ],
}  # fmt: skip
"""By family, the output projections of each kind of attention."""


@functools.cache
def model_of(name: str) -> PreTrainedModel:
    if name in ("bart", "t5"):
        model = tiny.translator(name)
    elif name == "bert":
        return tiny.model(name)
    else:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(tiny.config(name)).double().eval()
        tiny.shake(model)
    model.generation_config.pad_token_id = 0
    return model


class Case(NamedTuple):
    score: Score
    models: tuple[str, ...]
    differentiable: bool = True
    copies: bool = True
    """Whether the score of rows is also defined on copies of them."""


def batch(rows: int = 3) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    ids, other = torch.randint(5, 60, (2, rows, 7), generator=generator)
    return {
        "ids": ids, "other": other, "mask": torch.ones_like(ids),
        "length": torch.tensor([4, 7, 5])[:rows],
        "target": torch.randint(5, 60, (rows, 4), generator=generator),
    }  # fmt: skip


def value(model: Any, ids: Tensor, **more: Any) -> Tensor:
    """One number per row from one pass."""
    options = {} if model.config.model_type == "bert" else {"use_cache": False}
    if model.config.is_encoder_decoder:
        more["decoder_input_ids"] = ids.flip(1)
    output = model(input_ids=ids, **options, **more)
    if "logits" in output:
        return output.logits.log_softmax(-1)[..., 5:9].sum((1, 2))
    return output.last_hidden_state[..., ::3].tanh().sum((1, 2))


def one_pass(model, b):
    return value(model, b["ids"])


def two_passes(model, b):
    return value(model, b["ids"]) - value(model, b["other"])


def twice_the_same(model, b):
    return value(model, b["ids"]) * value(model, b["ids"])


def side_by_side(model, b):
    both = value(model, torch.cat([b["ids"], b["other"]]))
    return both[: len(b["ids"])] - both[len(b["ids"]) :]


def sorted_rows(model, b):
    order = b["length"].argsort(stable=True)
    return value(model, b["ids"][order])[order.argsort()]


def windows(model, b):
    return sum(value(model, b["ids"][:, start : start + 4]) for start in (0, 3))


def row_by_row(model, b):
    return torch.cat(
        [value(model, row[None, : int(n)]) for row, n in zip(b["ids"], b["length"], strict=True)]
    )


def choices(model, b):
    pairs = torch.stack([b["ids"], b["other"]], 1)
    return value(model, pairs.flatten(0, 1)).unflatten(0, (-1, 2)).log_softmax(-1)[:, 0]


def negatives(model, b):
    values = value(model, b["ids"])
    return values - values.logsumexp(0)


def two_rows_in_one(model, b):
    """Texts of different examples share a row of the pass."""
    output = model(input_ids=b["ids"].flatten()[None], output_hidden_states=True)
    return output.hidden_states[-1].unflatten(1, b["ids"].shape).tanh().sum((0, 2, 3))


def middle_state(model, b):
    output = model(input_ids=b["ids"], output_hidden_states=True)
    return output.hidden_states[2].tanh().sum((1, 2))


def state_written_over(model, b):
    output = model(input_ids=b["ids"], output_hidden_states=True)
    state = output.hidden_states[1].numpy()  # which shares its memory with the tensor
    state /= np.linalg.norm(state, axis=-1, keepdims=True)
    return output.last_hidden_state.tanh().sum((1, 2)) + torch.from_numpy(state).sum((1, 2))


def a_layer_by_hand(model, b):
    hidden = model(input_ids=b["ids"], output_hidden_states=True).hidden_states[0]
    layer = model.encoder.layer[1](hidden)
    return (layer if isinstance(layer, Tensor) else layer[0]).tanh().sum((1, 2)) + value(model, b["ids"])


def attention_weights(model, b):
    model.set_attn_implementation("eager")  # others return no weights
    output = model(input_ids=b["ids"], output_attentions=True)
    return torch.stack([part[:, :, 0].square().sum((1, 2)) for part in output.attentions]).sum(0)


def a_copy_of_the_model(model, b):
    return value(copy.deepcopy(model), b["ids"])


def threads_of_its_context(model, b):
    with ThreadPoolExecutor(2) as pool:
        parts = [pool.submit(copy_context().run, value, model, part) for part in b["ids"].split(2)]
        return torch.cat([part.result() for part in parts])


def takes_out_labels(model, b):
    target = b.pop("target")
    return value(model, b["ids"]) * target[:, 0]


def greedy(model, b, beams=1):
    found = model.generate(
        input_ids=b["ids"], attention_mask=b["mask"], do_sample=False, num_beams=beams,
        max_new_tokens=4, min_new_tokens=4,
    )[:, -4:]  # fmt: skip
    return (found * torch.arange(1, 5)).sum(1).double() / 100


def beams(model, b):
    return greedy(model, b, 2)


def with_cache(model, b):
    past = model(input_ids=b["ids"], use_cache=True).past_key_values
    output = model(input_ids=b["other"], past_key_values=past, use_cache=True)
    return output.logits.log_softmax(-1)[..., 5:9].sum((1, 2))


def encoder_apart(model, b):
    memory = model.get_encoder()(input_ids=b["ids"])
    output = model(encoder_outputs=memory, decoder_input_ids=b["target"], use_cache=False)
    return output.logits.log_softmax(-1)[..., 5:9].sum((1, 2))


def given_encoding(model, b):
    memory = torch.sin(torch.arange(len(b["ids"]) * 7 * 32, dtype=torch.float64)).view(-1, 7, 32)[
        : len(b["ids"])
    ]
    output = model(
        encoder_outputs=BaseModelOutput(last_hidden_state=memory),
        decoder_input_ids=b["target"],
        use_cache=False,
    )
    return output.logits.log_softmax(-1)[..., 5:9].sum((1, 2))


EVERY = ("bert", "llama", "gpt2", "bart", "t5")
"""Families differ in one pass; how a score uses passes is tried on BERT and one other family."""
LANGUAGE, TRANSLATORS, ENCODER = ("llama", "gpt2"), ("bart", "t5"), ("bert",)
CASES = {
    "one pass": Case(one_pass, EVERY),
    "two passes": Case(two_passes, ("bert", "llama")),
    "twice the same": Case(twice_the_same, ENCODER),
    "side by side": Case(side_by_side, ("bert", "bart")),
    "sorted rows": Case(sorted_rows, ("bert", "gpt2")),
    "windows": Case(windows, ("bert", "t5")),
    "row by row": Case(row_by_row, ("bert", "bart")),
    "choices": Case(choices, ENCODER),
    "negatives": Case(negatives, ENCODER),
    "two rows in one": Case(two_rows_in_one, ENCODER),
    "middle state": Case(middle_state, ENCODER),
    "state written over": Case(state_written_over, ENCODER, differentiable=False),
    "a layer by hand": Case(a_layer_by_hand, ENCODER),
    "attention": Case(attention_weights, ENCODER),
    "a copy of the model": Case(a_copy_of_the_model, ENCODER),
    "threads of its context": Case(threads_of_its_context, ENCODER),
    "labels taken out": Case(takes_out_labels, ENCODER),
    "greedy": Case(greedy, ("llama", "bart"), differentiable=False),
    "beams": Case(beams, ("gpt2", "t5"), differentiable=False),
    "cache": Case(with_cache, LANGUAGE),
    "encoder apart": Case(encoder_apart, TRANSLATORS),
    "encoding given": Case(given_encoding, TRANSLATORS),
}
FAST = {("two passes", "llama"), ("greedy", "llama"), ("cache", "llama")}
"""What is not slow beside all cases of BERT: a cache, and a search."""
ALL = [
    pytest.param(
        case,
        name,
        id=f"{case}-{name}",
        marks=() if name == "bert" or (case, name) in FAST else pytest.mark.slow,
    )
    for case, (_, models, *_) in CASES.items()
    for name in models
]


@torch.no_grad()
def scaled(model: PreTrainedModel, score: Score, site: int, head: int, factor: float) -> Tensor:
    """The score after the weights that read one head were multiplied."""
    kind = model.config.model_type
    found = [
        module
        for pattern in PROJECTIONS[kind]
        for name, module in model.named_modules()
        if re.search(pattern, name)
    ]
    weight = found[site].weight
    part = weight.data[head * tiny.HEAD_DIM : (head + 1) * tiny.HEAD_DIM] if kind == "gpt2" else (
        weight.data[:, head * tiny.HEAD_DIM : (head + 1) * tiny.HEAD_DIM]
    )  # fmt: skip
    before = part.clone()
    part.mul_(factor)
    try:
        return score(model, batch())
    finally:
        part.copy_(before)


def places(name: str) -> list[tuple[int, int]]:
    sites = tiny.LAYERS if name in ("bert", "llama", "gpt2") else 6
    return [(site, head) for site in range(sites) for head in range(tiny.HEADS)]


@pytest.mark.parametrize(("case", "name"), ALL)
def test_ablations_are_zeroed_weights(case: str, name: str) -> None:
    score, model = CASES[case].score, model_of(name)
    with torch.no_grad():
        plain = score(model, batch()).mean()
    expected = torch.stack([plain - scaled(model, score, *place, 0.0).mean() for place in places(name)])
    if case not in ("greedy", "beams"):
        assert expected.abs().max() > 1e-3
    for copies in (1, 3):
        found = torch.tensor(ablate_heads(model, [batch()], score, copies=copies, draws=1)["loss"].to_list())
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("case", "name"), [param for param in ALL if CASES[param.values[0]].differentiable])
def test_importance_is_a_finite_difference(case: str, name: str) -> None:
    score, model, step = CASES[case].score, model_of(name), 1e-4
    slopes = [
        (scaled(model, score, *place, 1 + step) - scaled(model, score, *place, 1 - step)) / (2 * step)
        for place in places(name)
    ]
    expected = torch.stack(slopes).abs().mean(1)
    table = head_importance(model, [batch()], score).filter(measure="importance")
    found = torch.tensor(table["value"].to_list(), dtype=torch.float64)
    loose = 1e-2 if name in ("llama", "t5") else 1e-4  # norms of the former are in float32
    torch.testing.assert_close(found, expected, rtol=loose, atol=loose * float(expected.max()))
    assert set(table["count"]) == {3}


@pytest.mark.parametrize("name", ["llama", "bart"])
def test_what_is_generated_has_no_importance(name: str) -> None:
    with pytest.raises(InputError, match="not differentiable"):
        head_importance(model_of(name), [batch()], greedy)


def test_a_loss_on_embeddings_is_no_heads_matter() -> None:
    def loss(model, b):
        return model(input_ids=b["ids"], output_hidden_states=True).hidden_states[0].sum((1, 2))

    table = head_importance(model_of("bert"), [batch()], loss)
    assert set(table["value"]) == {0.0}
    assert table.height == 3 * len(places("bert"))


def a_copy_from_before(_, b):
    return value(tiny.model("bert"), b["ids"])


def other_threads(model, b):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(value, model, b["ids"]).result()


@pytest.mark.filterwarnings("ignore:a block that scales or observes heads saw passes of other threads alone")
@pytest.mark.parametrize("score", [a_copy_from_before, other_threads, lambda model, b: b["length"] * 1.0])
def test_what_runs_no_heads_here_is_refused(score: Score) -> None:
    for measure in (ablate_heads, head_importance):
        with pytest.raises(InputError, match=r"ran none of the heads of the model in this thread"):
            measure(model_of("bert"), [batch()], score)


@pytest.mark.parametrize("part", [one_pass, two_passes, windows])
@pytest.mark.parametrize("rest", [0, 1])
def test_a_score_that_keeps_what_it_computed_is_refused(part: Score, rest: int) -> None:
    """Such a score is the same under every ablation, so that no head is worth anything."""
    kept: list[Tensor] = []

    def score(model, b):
        if not kept:
            kept.append(part(model, b).detach())
        return kept[0] + value(model, b["ids"]) if rest else kept[0]

    with pytest.raises(InputError, match=r"two calls of the score .* keep nothing"):
        ablate_heads(model_of("bert"), [batch()], score, draws=1)


@pytest.mark.parametrize("way", ["hook", "hook of all", "forward"])
def test_what_functions_of_the_caller_saw_is_of_each_ablation(way: str) -> None:
    """Inside of a layer they are called only where it is computed."""
    model, seen = copy.deepcopy(model_of("bert")), {}
    layer = model.encoder.layer[0]

    def watch(module, inputs, output):
        if module is layer.intermediate:
            seen["state"] = output

    def forward(*inputs, **named):
        seen["state"] = type(layer).forward(layer, *inputs, **named)
        return seen["state"]

    def score(model, b):
        model(b["ids"])
        return (seen["state"] if isinstance(seen["state"], Tensor) else seen["state"][0]).sin().sum((1, 2))

    with ExitStack() as undone:
        if way == "forward":
            layer.forward = forward
        elif way == "hook":
            layer.intermediate.register_forward_hook(watch)
        else:
            undone.callback(register_module_forward_hook(watch).remove)
        losses = ablate_heads(model, [batch()], score, draws=1)["loss"].to_list()
        with torch.no_grad():
            plain = score(model, batch()).mean()
            expected = [float(plain - scaled(model, score, 0, head, 0.0).mean()) for head in range(4)]
    assert losses == pytest.approx([*expected, *[0.0] * 8], rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("copies", [2, 4])
def test_copies_of_heads_that_do_nothing_prove_nothing(copies: int) -> None:
    model = copy.deepcopy(model_of("bert"))
    prune_heads(model, {0: [0, 1, 2, 3]}, keep_shape=True)

    def centred(model, b):
        values = value(model, b["ids"])
        return (values - values.mean()).square()

    alone = ablate_heads(model, [batch()], centred, draws=1)["loss"]
    together = ablate_heads(model, [batch()], centred, draws=1, copies=copies)["loss"]
    assert together.to_list() == pytest.approx(alone.to_list(), rel=1e-6, abs=1e-9)


def test_a_score_that_cuts_heads_is_refused() -> None:
    def score(model, b):
        made = copy.deepcopy(model)
        prune_heads(made, {0: [1]})
        return value(made, b["ids"])

    with pytest.raises(InputError, match="change heads before that block"):
        ablate_heads(model_of("bert"), [batch()], score)


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("power", [0.5, -0.5])
def test_derivatives_that_are_not_finite_are_refused(power: float, steps: int) -> None:
    def loss(model, b):
        values = value(model, b["ids"])
        return 1 / (1 + (values - values.detach()).abs() ** power)

    with pytest.raises(InputError, match="loss of row 0 of a batch has a derivative"):
        head_importance(model_of("bert"), [batch()], loss, steps=steps)


def test_every_step_of_integrated_gradients_has_the_whole_batch() -> None:
    given = batch()
    table = head_importance(model_of("bert"), [given], takes_out_labels, steps=2)
    assert given.keys() == batch().keys()
    assert table.equals(
        head_importance(
            model_of("bert"), [batch()], lambda model, b: one_pass(model, b) * b["target"][:, 0], steps=2
        )
    )


def test_importance_is_of_the_heads_that_are_there() -> None:
    """Otherwise heads that were cut before would be the least important, and nothing else would be cut."""
    model = copy.deepcopy(model_of("bert"))
    for turn in range(4):
        there = ablate_heads(model, [batch()], one_pass, draws=1).select(*KEYS)
        table = head_importance(model, [batch()], one_pass).filter(measure="importance")
        assert table.select(*KEYS).equals(there.cast(dict(table.select(*KEYS).schema)))
        assert table.height == 12 - 3 * turn
        prune_heads(model, lowest(table, 3))


def test_callers_that_have_gradients_off_get_importance() -> None:
    with torch.no_grad():
        table = head_importance(model_of("bert"), [batch()], one_pass)
    assert table.equals(head_importance(model_of("bert"), [batch()], one_pass))


def test_batches_without_rows_are_left_out() -> None:
    empty = {key: tensor[:0] for key, tensor in batch().items()}
    for measure in (functools.partial(ablate_heads, draws=1), head_importance):
        table = measure(model_of("bert"), [empty, batch(), empty], one_pass)
        assert table.equals(measure(model_of("bert"), [batch()], one_pass))
        with pytest.raises(InputError, match="at least one batch with rows"):
            measure(model_of("bert"), [empty], one_pass)


def test_rows_times_choices_of_transformers() -> None:
    torch.manual_seed(0)
    model = BertForMultipleChoice(tiny.config("bert")).double().eval()
    tiny.shake(model)

    def loss(model, b):
        logits = model(input_ids=torch.stack([b["ids"], b["other"]], 1)).logits
        return -logits.log_softmax(-1)[:, 0]

    expected = [
        float((scaled(model, loss, *place, 1.0001) - scaled(model, loss, *place, 0.9999)).abs().mean() / 2e-4)
        for place in places("bert")
    ]
    table = head_importance(model, [batch()], loss, per="example").filter(measure="importance")
    assert table["value"].to_list() == pytest.approx(expected, rel=1e-4, abs=1e-9)

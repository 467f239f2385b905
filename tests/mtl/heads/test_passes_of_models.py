"""A pass is the same alone, beside others in threads, around others, repeated, and after one that failed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

import mtl
from mtl import head_scale, prune_heads
from mtl.errors import InputError
from mtl.heads.attentions import attentions
from mtl.heads.families import family_of
from mtl.heads.family_table import FAMILIES
from mtl.heads.tap import HeadTap, eager_attention
from tests.kit.absent import may_be_absent
from tests.mtl import tiny

pytestmark = pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")

Pass = Callable[[], list[Tensor]]
PASS: ContextVar[str] = ContextVar("pass", default="")
"""Which pass is running; empty: one that is not watched."""


def changes(name: str) -> list[str]:
    family = FAMILIES[name]
    made = ["uncut"]
    made += [] if family.not_prunable_because else ["cut"]
    shares = not family.not_shareable_because and not may_be_absent(["collaborate"])
    return [*made, "shared"] if shares else made


CASES = [(name, change) for name in tiny.of_structure(tiny.OF_WORDS) for change in changes(name)]


def changed(name: str, change: str) -> PreTrainedModel:
    model = (tiny.translator if name in tiny.TRANSLATORS else tiny.model)(name)
    if change == "cut":
        prune_heads(model, {0: [1], 1: [0, 1, 2, 3], 2: [3]})
    elif change == "shared":
        mtl.collaborate(model, 12, starts=1, steps=1)
    return model


def scale_of(model: PreTrainedModel, seed: int) -> Tensor:
    shape = (len(attentions(model, family_of(model))), tiny.HEADS)
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def a_pass(model: PreTrainedModel, called: str, length: int) -> Pass:
    ids, mask = tiny.batch(length, 3)

    def run() -> list[Tensor]:
        token = PASS.set(called)
        try:
            with torch.no_grad():
                if model.config.is_encoder_decoder:
                    output = model(
                        input_ids=ids, attention_mask=mask, decoder_input_ids=ids[:, :4], use_cache=False
                    )
                    return [output.logits, output.encoder_last_hidden_state]
                return [model(input_ids=ids, attention_mask=mask).last_hidden_state]
        finally:
            PASS.reset(token)

    return run


def same(found: list[Tensor], expected: list[Tensor]) -> bool:
    return len(found) == len(expected) and all(map(torch.equal, found, expected))


@contextmanager
def at_sites(outputs: list[nn.Module], act: Callable[[], None]) -> Iterator[None]:
    """Act where the heads of a site are about to be projected, in the middle of a layer."""
    with ExitStack() as stack:
        for output in dict.fromkeys(outputs):
            stack.callback(output.register_forward_pre_hook(lambda *_: act()).remove)
        yield


class Interrupted(Exception):
    """Ends a pass in its middle."""


def inside(outputs: list[nn.Module], first: Pass, second: Pass) -> list[list[Tensor]]:
    """The second pass inside the first, at every site, in the same thread."""
    found = []

    def act() -> None:
        if PASS.get() == "first":
            found.append(second())

    with at_sites(outputs, act):
        return [first(), *found]


def beside(outputs: list[nn.Module], first: Pass, second: Pass) -> list[list[Tensor]]:
    """The second pass in another thread, at every site of the first."""
    found = []
    with ThreadPoolExecutor(1) as pool:

        def act() -> None:
            if PASS.get() == "first":
                found.append(pool.submit(copy_context().run, second).result())

        with at_sites(outputs, act):
            return [first(), *found]


def crossed(outputs: list[nn.Module], first: Pass, second: Pass) -> list[list[Tensor]]:
    """The second pass begins inside the first, and ends after it."""
    halfway, first_is_done, seconds = threading.Event(), threading.Event(), []

    def act() -> None:
        if PASS.get() == "first" and not seconds:
            seconds.append(pool.submit(copy_context().run, second))
            assert halfway.wait(60)
        elif PASS.get() == "second" and not halfway.is_set():
            halfway.set()
            assert first_is_done.wait(60)

    with ThreadPoolExecutor(1) as pool, at_sites(outputs, act):
        found = first()
        first_is_done.set()
        return [found, *(second.result() for second in seconds)]


def after_one_that_failed(outputs: list[nn.Module], first: Pass, second: Pass) -> list[list[Tensor]]:
    """Each pass after one that failed at every site in turn."""
    sites, found = len(outputs), []
    for turn in range(sites):
        calls = iter(range(sites))

        def act(calls: Iterator[int] = calls, turn: int = turn) -> None:
            if next(calls) == turn:
                raise Interrupted

        with at_sites(outputs, act), pytest.raises(Interrupted):
            second()
        found.append(first())
    return [found[0], second(), *(second() for other in found if same(other, found[0]))]


WAYS = (inside, beside, crossed, after_one_that_failed)


@pytest.mark.parametrize(("name", "change"), CASES)
def test_a_pass_is_what_it_is_alone(name: str, change: str) -> None:
    model = changed(name, change)
    first, second = a_pass(model, "first", 9), a_pass(model, "second", 6)
    tap = HeadTap(model, family_of(model))
    outputs = [attention.output for attention in attentions(model, family_of(model))]
    for scaled in (False, True):
        with ExitStack() as stack:
            if scaled:
                stack.enter_context(tap.scale(scale_of(model, 1)))
            alone = [first(), second()]
            assert same(first(), alone[0])
            for way in WAYS:
                found, *others = way(outputs, first, second)
                assert same(found, alone[0]), (way.__name__, scaled)
                assert others, way.__name__
                assert all(same(other, alone[1]) for other in others), (way.__name__, scaled)


@pytest.mark.parametrize("name", ["albert", "bert"])
def test_a_part_of_the_model_may_be_called_alone_and_again(name: str) -> None:
    """The layers that ALBERT shares are counted by their caller, from the first one in every call."""
    model = tiny.model(name)
    width = model.get_input_embeddings().embedding_dim
    hidden = torch.randn(2, 5, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad(), head_scale(model, scale_of(model, 1)):
        first, second, third = (model.encoder(hidden)[0] for _ in range(3))
        plain, again = (model(inputs_embeds=hidden)[0] for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(first, third)
    assert torch.equal(plain, again)


CHECKPOINTED = [
    *(("bert of one layer", reentrant) for reentrant in (True, False)),
    *tiny.with_variants(tiny.OF_WORDS, (True,), (False,)),
]


class Trained:
    """A model in training, with gradient checkpoints; the scale learns, too."""

    def __init__(self, name: str, reentrant: bool) -> None:
        self.model = changed(name.partition(" ")[0], "uncut").train()
        found = attentions(self.model, family_of(self.model))
        if name.endswith("of one layer"):
            self.model.encoder.layer = nn.ModuleList([found[0].layer] * len(found))
        if self.model.supports_gradient_checkpointing:
            self.model.gradient_checkpointing_enable(
                gradient_checkpointing_kwargs={"use_reentrant": reentrant}
            )
        else:
            for layer in {attention.layer for attention in found}:
                layer.forward = _checkpointed(layer.forward, reentrant)
        self.scale = scale_of(self.model, 1)

    def loss(self) -> Tensor:
        torch.manual_seed(0)
        ids, mask = tiny.batch(5, 2)
        more = {"decoder_input_ids": ids} if self.model.config.is_encoder_decoder else {}
        output = self.model(input_ids=ids, attention_mask=mask.clamp(min=1), use_cache=False, **more)
        return next(iter(output.values())).tanh().square().sum()

    def gradients(self, loss: Tensor | None = None) -> list[Tensor]:
        self.model.zero_grad()
        (self.loss() if loss is None else loss).backward()
        return [part.grad.clone() for part in self.model.parameters() if part.grad is not None]

    def scaled(self) -> Any:
        return head_scale(self.model, self.scale)


def _checkpointed(forward: Callable[..., Any], reentrant: bool) -> Callable[..., Any]:
    return lambda *given, **named: checkpoint(partial(forward, **named), *given, use_reentrant=reentrant)


@contextmanager
def in_another_thread(block: Callable[[], Any]) -> Iterator[None]:
    """Another thread is in the block meanwhile."""
    begun, ends = threading.Event(), threading.Event()

    def hold() -> None:
        with block():
            begun.set()
            assert ends.wait(60)

    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(hold)
        assert begun.wait(60)
        try:
            yield
        finally:
            ends.set()
        held.result()


@pytest.mark.parametrize(("name", "reentrant"), CHECKPOINTED)
@pytest.mark.filterwarnings("ignore:a block that scales")
def test_a_checkpoint_computes_a_pass_again_in_the_blocks_of_that_pass(name: str, reentrant: bool) -> None:
    trained = Trained(name, reentrant)
    plain = trained.gradients()
    with trained.scaled():
        scaled = trained.gradients()
    assert not same(scaled, plain)

    with in_another_thread(trained.scaled):
        assert same(trained.gradients(), plain)
    loss = trained.loss()
    with trained.scaled():
        assert same(trained.gradients(loss), plain)
        loss = trained.loss()
    assert same(trained.gradients(loss), scaled)
    with trained.scaled():
        loss = trained.loss()
    with head_scale(trained.model, torch.zeros_like(trained.scale)):
        assert same(trained.gradients(loss), scaled)
        with trained.scaled():
            pass
    with trained.scaled(), ThreadPoolExecutor(1) as pool:
        # As torch does for accelerators: in a thread that nothing was told.
        assert same(pool.submit(trained.gradients, trained.loss()).result(), scaled)
    assert same(trained.gradients(), plain)
    assert not any(type(part).__mro__[1].__name__ == "_Held" for part in trained.model.modules())


@pytest.mark.parametrize("reentrant", [True, False])
def test_threads_with_checkpoints_scale_one_model_at_once(reentrant: bool) -> None:
    trained = Trained("albert", reentrant)
    scales = [scale_of(trained.model, seed) for seed in range(3)]
    parameters = list(trained.model.parameters())

    def gradients(scale: Tensor) -> list[Tensor]:
        learned = scale.clone().requires_grad_()
        with head_scale(trained.model, learned):
            loss = trained.model(*tiny.batch(5, 2)).last_hidden_state.tanh().sum()
            loss.backward()
        assert learned.grad is not None
        return [learned.grad]

    trained.model.train()
    for module in trained.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    for parameter in parameters[1:]:
        parameter.requires_grad_(False)
    alone = [gradients(scale) for scale in scales]
    with ThreadPoolExecutor(len(scales)) as pool:
        for _ in range(3):
            found = list(pool.map(gradients, scales))
            assert all(map(same, found, alone))


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("name", ["albert", "bert", "bert of one layer"])
def test_heads_are_observed_once_though_a_checkpoint_computes_them_again(name: str, reentrant: bool) -> None:
    trained = Trained(name, reentrant)
    tap = HeadTap(trained.model, family_of(trained.model))
    with tap.observe() as outputs, tap.observe_inputs() as inputs:
        loss = trained.loss()
        before = [output.detach().clone() for output in outputs]
        loss.backward()
        assert same([output.detach() for output in outputs], before)
    assert len(inputs) == tiny.LAYERS


@pytest.mark.parametrize("reentrant", [True, False])
def test_eager_attention_is_eager_where_a_checkpoint_computes_it_again(reentrant: bool) -> None:
    trained = Trained("bert", reentrant)
    trained.model.eval()
    used = []
    handle = trained.model.encoder.layer[0].register_forward_pre_hook(
        lambda *_: used.append(trained.model.config._attn_implementation)
    )
    embedded = torch.randn(2, 5, 32, dtype=torch.float64, requires_grad=True)

    def run(given: Tensor) -> Tensor:
        return trained.model(inputs_embeds=given).last_hidden_state

    with eager_attention(trained.model):
        loss = checkpoint(run, embedded, use_reentrant=reentrant).sum()
    plain = checkpoint(run, embedded, use_reentrant=reentrant).sum()
    with eager_attention(trained.model):
        plain.backward()
    loss.backward()
    handle.remove()
    assert used == ["eager", "sdpa", "sdpa", "eager"]
    assert type(trained.model.config).__name__ == "BertConfig"


class _Repeats(torch.autograd.Function):
    """A checkpoint that is not one of torch's."""

    @staticmethod
    def forward(ctx: Any, run: Callable[[Tensor], Tensor], given: Tensor) -> Tensor:
        ctx.run = run
        ctx.save_for_backward(given)
        return run(given)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        (given,) = ctx.saved_tensors
        given = given.detach().requires_grad_()
        with torch.enable_grad():
            return None, torch.autograd.grad(ctx.run(given), given, *gradients)[0]


def test_a_pass_that_others_repeat_in_a_thread_of_their_own_is_refused() -> None:
    model = tiny.model("bert")
    given = torch.randn(2, 5, 32, dtype=torch.float64, requires_grad=True)

    def run(given: Tensor) -> Tensor:
        return model(inputs_embeds=given).last_hidden_state

    with head_scale(model, scale_of(model, 1)), ThreadPoolExecutor(1) as pool:
        expected = torch.autograd.grad(run(given).sum(), given)[0]
        _Repeats.apply(run, given).sum().backward()
        assert given.grad is not None
        assert torch.equal(given.grad, expected)
        loss = _Repeats.apply(run, given).sum()
        with pytest.raises(InputError, match="checkpoints of torch"):
            pool.submit(loss.backward).result()

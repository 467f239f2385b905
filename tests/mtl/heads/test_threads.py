"""Each of several threads on one model gets what it would get alone."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import BertForMaskedLM

from mtl import ablate_heads, head_importance, head_scale
from mtl.analysis.ablation import Ablator, ablations
from mtl.analysis.probe import ObservedCorpus
from mtl.errors import InputError
from mtl.heads.families import family_of
from mtl.heads.replay import LayerReplay
from mtl.heads.tap import HeadTap, eager_attention
from mtl.models.passes import frozen, in_evaluation_mode
from mtl.tasks.sentence import Sentence
from tests.mtl import tiny
from tests.mtl.analysis import worth

SHAPE = (tiny.LAYERS, tiny.HEADS)
Work = Callable[[], Any]


def at_once(works: Sequence[Work], times: int = 4) -> list[list[Any]]:
    """What each job returns in every run beside the others."""
    barrier = threading.Barrier(len(works))

    def several(work: Work) -> list[Any]:
        found = []
        for _ in range(times):
            barrier.wait()
            found.append(work())
        return found

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(several, works))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, list):
        return all(map(same, one, other))
    return one == other if isinstance(one, Sentence) else one.equals(other)


def scale(seed: int) -> Tensor:
    return torch.rand(SHAPE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def states(model, attentions: bool = False) -> list[Tensor]:
    ids, mask = tiny.batch()
    with torch.no_grad():
        output = model(input_ids=ids, attention_mask=mask, output_attentions=attentions)
    return [output.last_hidden_state, *(output.attentions or ())]


def value(model, batch):
    return model(input_ids=batch["input_ids"]).last_hidden_state.tanh().sum((1, 2))


@pytest.mark.parametrize("name", ["bert", "albert", "llama"])
def test_each_thread_gets_what_it_gets_alone(name: str) -> None:
    model = tiny.model(name, attn_implementation="sdpa")
    tap = HeadTap(model, family_of(model))
    ids, _ = tiny.batch()

    def plain():
        return states(model)

    def scaled(seed: int):
        with head_scale(model, scale(seed)):
            return states(model)

    def observed():
        with tap.scale(scale(3)), tap.observe() as outputs:
            states(model)
        return list(outputs)

    def observed_eager():
        with eager_attention(model), tap.observe() as outputs, tap.observe_inputs() as inputs:
            found = states(model, attentions=True)
        return [*found, *outputs, *inputs]

    def ablated():
        return ablate_heads(model, [{"input_ids": ids}], value, draws=1, copies=2)

    def important():
        return head_importance(model, [{"input_ids": ids}], value)

    works = [plain, lambda: scaled(1), lambda: scaled(2), observed, observed_eager, ablated, important]
    alone = [work() for work in works]
    kinds = [type(module) for module in model.modules()]
    for found, expected in zip(at_once(works), alone, strict=True):
        assert all(same(one, expected) for one in found)
    assert [type(module) for module in model.modules()] == kinds
    assert model.config._attn_implementation == "sdpa"
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("masks", [pytest.param((), marks=pytest.mark.slow), ("pos", "dep")])
def test_a_joint_model_annotates_is_probed_and_ablated_at_once(masks: tuple[str, ...], toy: Path) -> None:
    model = worth.joint_model(toy, ("pos", "dep"), masks=masks).train()
    corpus = worth.corpus(model, toy, 4)
    [batch] = worth.loader(model, corpus, 10_000)
    sentences = [list(example.sentence.words) for example in corpus]
    chosen = ablations("layer", model.encoder.tap.remaining)

    def annotated(part: slice) -> list[Sentence]:
        return model.annotate(sentences[part])

    def observed() -> list[Tensor]:
        found = ObservedCorpus(model.encoder, [example.sentence for example in corpus])[0]
        return [found.word, found.peak, found.outputs]

    def ablated() -> list[Tensor]:
        counts = Ablator(model, chosen)(batch)
        return [torch.as_tensor(part) for task in counts.values() for part in (task.unchanged, task.ablated)]

    works: list[Work] = [lambda: annotated(slice(0, 2)), lambda: annotated(slice(1, 4)), observed, ablated]
    alone = [work() for work in works]
    for found, expected in zip(at_once(works, times=2), alone, strict=True):
        assert all(same(one, expected) for one in found)
    assert all(module.training for module in model.modules())


def in_a_thread(work: Work) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def test_copies_made_inside_a_block_belong_to_it() -> None:
    model = tiny.model("bert")
    plain = states(model)
    with head_scale(model, scale(1)):
        made, expected = copy.deepcopy(model), states(model)
        assert same(states(made), expected)
    with head_scale(made, scale(2)), head_scale(model, scale(3)):
        assert not same(states(made), plain)
    assert same(states(made), plain)
    assert same(states(pickle.loads(pickle.dumps(made))), plain)


@pytest.mark.parametrize("block", ["scaled", "eager", "replayed"])
def test_copies_and_files_that_another_thread_makes_are_the_plain_model(block: str) -> None:
    model = tiny.model("bert", attn_implementation="sdpa")
    plain, config = states(model), type(model.config)
    replay = LayerReplay(model, family_of(model))
    with replay.record():
        states(model)
    blocks = {
        "scaled": lambda: head_scale(model, scale(1)),
        "eager": lambda: eager_attention(model),
        "replayed": lambda: replay.start_at(replay.last),
    }
    with blocks[block]():
        states(model)
        made = in_a_thread(lambda: [copy.deepcopy(model), pickle.loads(pickle.dumps(model))])
        assert all(same(states(other), plain) for other in made)
    for other in made:
        assert same(states(other), plain)
        assert type(other.config) is config
        with head_scale(other, scale(1)):
            assert not same(states(other), plain)


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "a part"])
def test_copies_that_another_thread_makes_of_a_model_that_is_measured_are_as_it_was(way: str) -> None:
    model = BertForMaskedLM(tiny.config("bert")).train()
    model.bert.encoder.layer[0].eval()
    model.bert.encoder.layer[1].output.dense.weight.requires_grad_(False)
    ways: dict[str, Callable[[], Any]] = {
        "deepcopy": lambda: copy.deepcopy(model),
        "pickle": lambda: pickle.loads(pickle.dumps(model)),
        "a part": lambda: copy.deepcopy(model.bert.encoder),
    }
    made = []

    def loss(given: Any, batch: Any) -> Tensor:
        made.append(in_a_thread(ways[way]))
        own = copy.deepcopy(model)
        assert not any(module.training for module in own.modules())
        assert not any(parameter.requires_grad for parameter in own.parameters())
        return given(batch).logits.tanh().sum((1, 2))

    before = _switches(model.bert.encoder if way == "a part" else model)
    head_importance(model, [tiny.batch()[0]], loss)
    for other in made:
        assert _switches(other) == before
    assert _switches(copy.deepcopy(model)) == _switches(model)
    if way != "a part":
        assert made[0].cls.predictions.decoder.weight is made[0].bert.embeddings.word_embeddings.weight
        assert made[0].state_dict().keys() == model.state_dict().keys()


class _Slow:
    """A hook whose copying waits until something else has happened."""

    def __init__(self) -> None:
        self.copied, self.done = threading.Event(), threading.Event()

    def __call__(self, *_: object) -> None:
        pass

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., Any]:
        self.copied.set()
        assert self.done.wait(60)
        return print

    def __reduce__(self) -> tuple[Any, ...]:
        return copy.copy, (self.__deepcopy__({}),)


BLOCKS: dict[str, Callable[[Any], Any]] = {
    "scaled": lambda model: head_scale(model, scale(1)),
    "eager": eager_attention,
    "evaluated": in_evaluation_mode,
    "frozen": frozen,
    "recorded": lambda model: LayerReplay(model, family_of(model)).record(),
}


@pytest.mark.parametrize("way", [copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("change", ["begins", "ends", "begins and ends"])
def test_a_block_may_begin_and_end_while_another_thread_copies_the_model(way: Any, change: str) -> None:
    model = tiny.model("bert", attn_implementation="sdpa").train()
    before, plain = _switches(model), states(copy.deepcopy(model).eval())
    slow = _Slow()
    # Copied inside the dictionaries of the hooks, of the projection and of all that it is in.
    handles = [
        model.encoder.layer[0].attention.output.dense.register_forward_pre_hook(slow),
        model.encoder.layer[0].register_forward_hook(slow),
    ]
    blocks = [block(model) for block in BLOCKS.values()]
    if change == "ends":
        for block in blocks:
            block.__enter__()
    with ThreadPoolExecutor(1) as pool:
        copying = pool.submit(way, model)
        assert slow.copied.wait(60)
        if change != "ends":
            for block in blocks:
                block.__enter__()
        if change != "begins":
            for block in reversed(blocks):
                block.__exit__(None, None, None)
        slow.done.set()
        made = copying.result()
    if change == "begins":
        for block in reversed(blocks):
            block.__exit__(None, None, None)
    made = made if way is copy.deepcopy else pickle.loads(made)
    for handle in handles:
        handle.remove()
    for part in made.modules():
        part._forward_pre_hooks.clear()
        part._forward_hooks.clear()
    assert _switches(made) == _switches(model) == before
    assert same(states(made.eval()), plain)
    assert [type(part) for part in made.modules()] == [type(part) for part in model.modules()]


def test_another_thread_trains_a_model_that_is_measured() -> None:
    model = tiny.model("bert").train()
    with in_evaluation_mode(model), frozen(model):

        def trained() -> list[bool]:
            model(tiny.batch()[0]).last_hidden_state.tanh().sum().backward()
            return [module.training for module in model.modules()]

        assert all(in_a_thread(trained))
        assert not any(module.training for module in model.modules())
        assert not states(model)[0].requires_grad
    assert all(part.grad is not None for name, part in model.named_parameters() if "pooler" not in name)


def _switches(model: Any) -> tuple[list[bool], list[tuple[bool, str]]]:
    parameters = [(part.requires_grad, str(sorted(vars(part)))) for part in model.parameters()]
    return [module.training for module in model.modules()], parameters


def test_a_block_that_sees_passes_of_other_threads_alone_says_so() -> None:
    model = tiny.model("bert")
    with pytest.warns(UserWarning, match="copy_context"), head_scale(model, scale(1)):
        in_a_thread(lambda: states(model))


def test_coroutines_of_one_thread_have_scales_of_their_own() -> None:
    model = tiny.model("bert")

    async def scaled(seed: int) -> list[Tensor]:
        with head_scale(model, scale(seed)):
            await asyncio.sleep(0)
            found = await asyncio.to_thread(states, model)
            await asyncio.sleep(0)
            return [*found, *states(model)]

    async def both() -> list[list[Tensor]]:
        return await asyncio.gather(scaled(1), scaled(2))

    for seed, found in enumerate(asyncio.run(both()), 1):
        with head_scale(model, scale(seed)):
            expected = states(model)[0]
        assert all(torch.equal(one, expected) for one in found)


def test_modes_end_with_the_last_of_overlapping_blocks() -> None:
    model = tiny.model("bert").train()
    model.encoder.layer[0].eval()
    modes = [module.training for module in model.modules()]
    for first_ends_first in (True, False):
        first, second = (block(model) for block in (in_evaluation_mode, in_evaluation_mode))
        third, fourth = frozen(model), frozen(model)
        for block in (first, third, second, fourth):
            block.__enter__()
        ends = [(first, third), (second, fourth)]
        for number, pair in enumerate(ends if first_ends_first else reversed(ends)):
            assert not any(module.training for module in model.modules())
            assert not any(parameter.requires_grad for parameter in model.parameters())
            for block in pair:
                block.__exit__(None, None, None)
            assert number in (0, 1)
        assert [module.training for module in model.modules()] == modes
        assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_that_is_computed_again_is_scaled(reentrant: bool) -> None:
    """Also where torch computes it in a thread of its own, as it does for accelerators."""
    model = tiny.model("bert")
    factor = scale(1).requires_grad_()
    ids, mask = tiny.batch()

    def gradient(kept: bool) -> Tensor:
        embedded = model.embeddings(ids).detach().requires_grad_()

        def run(given: Tensor) -> Tensor:
            return model(inputs_embeds=given, attention_mask=mask).last_hidden_state.tanh()

        with head_scale(model, factor), ThreadPoolExecutor(1) as pool:
            output = run(embedded) if kept else checkpoint(run, embedded, use_reentrant=reentrant)
            pool.submit(output.sum().backward).result()
        assert embedded.grad is not None
        return embedded.grad

    torch.testing.assert_close(gradient(kept=False), gradient(kept=True))


def test_replicas_of_data_parallel_are_refused() -> None:
    """As `nn.DataParallel` makes them for several devices, which it runs in threads."""
    model = tiny.model("bert").train()
    with head_scale(model, scale(1)):
        with pytest.raises(InputError, match="DataParallel"):
            _replicated(model)
        plain = in_a_thread(lambda: _replicated(model))
    with in_evaluation_mode(model):
        evaluated = _replicated(model)
    assert not any(module.training for module in evaluated.modules())
    assert same(states(plain.eval()), states(model.eval()))
    assert same(states(evaluated), states(model))


def _replicated(module):
    replica = module._replicate_for_data_parallel()
    for name, parameter in module._parameters.items():
        setattr(replica, name, parameter)
    for name, child in module._modules.items():
        replica._modules[name] = None if child is None else _replicated(child)
    return replica

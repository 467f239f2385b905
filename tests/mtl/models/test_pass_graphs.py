"""An encoder's passes by graphs are its padded passes; a stand-in takes the place of a GPU's graphs."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mtl.models import encoder as encoders
from mtl.models.encoder import Encoder
from mtl.models.pass_graphs import PassGraphs
from mtl.models.passes import frozen, in_evaluation_mode, rounded_weights
from mtl.models.subwords import Subwords
from tests.launches import pass_graphs
from tests.mtl import tiny

SENTENCES = [
    [["the", "dog", "saw", "a", "cat", "."], ["dog"], ["xyz", "the", "don't"]],
    [["a", "cat"], ["saw", "abc", "a", "cat", "cat"]],  # of the same rounded shape
    [["saw", "abc", "a", "cat"] * 6] * 5,
]


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mask is one of numbers."""
    monkeypatch.setattr(encoders, "_on_cpu", lambda tensor: False)


def made(name: str = "bert", **settings: object) -> tuple[Encoder, list[Subwords]]:
    encoder = tiny.encoder(name, dtype=torch.float32, **settings).train()
    tokenizer = encoder.tokenizer
    return encoder, [tokenizer.collate(tokenizer.encode_all(batch)) for batch in SENTENCES]


def still(encoder: Encoder) -> Encoder:
    """The encoder without anything that is drawn."""
    for module in encoder.modules():
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return encoder


def scales(kind: str | None, batches: list[Subwords]) -> list[Tensor | None]:
    draw = torch.Generator().manual_seed(3)
    shape = (tiny.LAYERS, tiny.HEADS)
    return [
        None
        if kind is None
        else torch.rand(
            *((batch.sentences,) if kind == "rows" else ()), *shape, generator=draw
        ).requires_grad_()
        for batch in batches
    ]


def trained(
    encoder: Encoder, batches: list[Subwords], graphs: PassGraphs, kind: str | None = None
) -> list[Tensor]:
    """Vectors and gradients of two epochs of training, the weights after it, and the next random number."""
    torch.manual_seed(5)
    found: list[Tensor] = []
    weights = [weight for weight in encoder.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW([{"params": weights}, {"params": [torch.zeros(1)]}], 0.01)
    kept = copy.deepcopy(encoder.state_dict())
    for epoch in range(3):
        if epoch == 2:
            encoder.load_state_dict(kept)
        for subwords, scale in zip(batches, scales(kind, batches), strict=True):
            with graphs.in_use():
                words = encoder(subwords, scale)
            found.append(words.detach().clone())
            if words.requires_grad:
                (words * torch.linspace(-1, 1, words.shape[-1])).square().sum().backward()
            found += [
                one.grad.clone() for one in (*weights, scale) if one is not None and one.grad is not None
            ]
            optimizer.step()
            optimizer.zero_grad()
    return [*found, *encoder.state_dict().values(), torch.rand(1)]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


@pytest.mark.parametrize("kind", [None, "all", "rows"])
@pytest.mark.parametrize("freeze", ["nothing", "layers", "all"])
@pytest.mark.parametrize("settings", [{}, {"layers": "mix"}, {"layers": "mix_per_task"}, {"name": "albert"}])
def test_a_pass_by_graphs_is_the_padded_pass(kind: str | None, freeze: str, settings: dict) -> None:
    """With dropout of all kinds, after updates in place, and after weights were loaded."""
    encoder, batches = made(**settings)
    if freeze != "nothing":
        part = encoder.transformer if freeze == "all" else encoder.layer_modules()[0]
        part.requires_grad_(False).eval()
    graphs = PassGraphs(pass_graphs, seldom=1)
    found = trained(copy.deepcopy(encoder), batches, PassGraphs(seldom=99), kind)
    assert same(trained(encoder, batches, graphs, kind), found)
    assert (graphs.captured, graphs.passes) == (2, 9 - 2)


@pytest.mark.parametrize("kind", [None, "all", "rows"])
def test_padding_changes_vectors_and_gradients_by_rounding_alone(kind: str | None) -> None:
    found = []
    for graphs in (None, PassGraphs(pass_graphs, seldom=0)):
        encoder, batches = made()
        still(encoder).word_dropout = 0.0
        for subwords, scale in zip(batches, scales(kind, batches), strict=True):
            if graphs is None:
                words = encoder(subwords, scale)
            else:
                with graphs.in_use():
                    words = encoder(subwords, scale)
            words.square().sum().backward()
            found.append([words, scale if scale is None else scale.grad])
        found.append([weight.grad for weight in encoder.parameters()])
    half = len(found) // 2
    torch.testing.assert_close(found[:half], found[half:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", tiny.NAMES)
def test_every_family_has_the_vectors_of_its_padded_pass(name: str) -> None:
    """Those that wait for the device (they look at their mask, or choose experts) say so once."""
    said: list[str] = []
    encoder, batches = made(name)
    graphs = PassGraphs(pass_graphs, seldom=0, say=said.append)
    found = trained(copy.deepcopy(encoder), batches[:2], PassGraphs(seldom=99), "rows")
    assert same(trained(encoder, batches[:2], graphs, "rows"), found)
    assert len(said) == (not graphs.captured)
    assert graphs.captured or not encoder._takes_bias, said


def test_under_autocast() -> None:
    encoder, batches = made("albert")
    graphs = PassGraphs(pass_graphs, seldom=1)
    with torch.autocast("cpu", torch.bfloat16):
        found = trained(copy.deepcopy(encoder), batches, PassGraphs(seldom=99), "rows")
        assert same(trained(encoder, batches, graphs, "rows"), found)
    assert graphs.captured


def eagerly(case: str, encoder: Encoder, run: Callable[[], Tensor]) -> Tensor:
    if case == "evaluation":
        with in_evaluation_mode(encoder):
            return run()
    if case == "without gradients":
        with torch.no_grad():
            return run()
    if case == "thread":
        there: list[Tensor] = []
        thread = threading.Thread(target=lambda: there.append(run()))
        thread.start()
        thread.join()
        return there[0]
    blocks = {
        "observed": encoder.tap.observe,
        "frozen": lambda: frozen(encoder),
        "bf16-master": lambda: rounded_weights([encoder.transformer]),
    }
    with blocks[case]():
        return run()


@pytest.mark.parametrize(
    "case", ["evaluation", "without gradients", "thread", "observed", "frozen", "bf16-master"]
)
def test_other_passes_are_computed_as_they_are(case: str) -> None:
    encoder, (subwords, *_) = made()
    said: list[str] = []
    graphs = PassGraphs(pass_graphs, seldom=0, say=said.append)
    torch.manual_seed(1)
    expected = eagerly(case, encoder, lambda: encoder(subwords))
    with graphs.in_use():
        encoder(subwords)
        torch.manual_seed(1)
        assert torch.equal(eagerly(case, encoder, lambda: encoder(subwords)), expected)
        eagerly(case, encoder, lambda: encoder(subwords))
    assert graphs.passes == 1
    assert len(said) == (case in ("observed", "frozen", "bf16-master"))


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
def test_checkpoints_of_gradients_are_not_captured() -> None:
    encoder, batches = made()
    encoder.transformer.gradient_checkpointing_enable()
    said: list[str] = []
    graphs = PassGraphs(pass_graphs, seldom=0, say=said.append)
    found = trained(copy.deepcopy(encoder), batches, PassGraphs(seldom=99))
    assert same(trained(encoder, batches, graphs), found)
    assert said == [
        "trainer.cuda_graphs captures no passes of the encoder (gradient checkpoints compute it twice)"
    ]


def test_gradients_accumulate_and_can_be_asked_for_again() -> None:
    """As balancers ask that compare the tasks' gradients."""
    found = []
    for seldom in (99, 0):
        encoder, (subwords, other, _) = made()
        graphs = PassGraphs(pass_graphs, seldom)
        torch.manual_seed(1)
        weights = list(encoder.parameters())
        with graphs.in_use():
            words = encoder(subwords)
            of_tasks = [
                torch.autograd.grad(words[:, task].sum(), weights, retain_graph=True) for task in range(3)
            ]
            words.sum().backward()
            encoder(other).sum().backward()
        found.append([*(one for task in of_tasks for one in task), *(weight.grad for weight in weights)])
    assert same(*found)


def test_a_backward_pass_after_the_next_pass_is_refused() -> None:
    encoder, (subwords, other, _) = made()
    with PassGraphs(pass_graphs, seldom=0).in_use():
        words = encoder(subwords)
        encoder(other)
    with pytest.raises(RuntimeError, match="overwritten"):
        words.sum().backward()


def test_weights_that_moved_are_captured_again_and_the_oldest_goes() -> None:
    encoder, (subwords, _, long) = made()
    graphs = PassGraphs(pass_graphs, seldom=0, most=2)
    with graphs.in_use():
        for batch in (subwords, long, subwords):
            encoder(batch).sum().backward()
        assert graphs.captured == 2
        for weight in encoder.parameters():
            weight.data = weight.data + 1
        torch.manual_seed(1)
        words = encoder(subwords)
        assert graphs.captured == 3
        torch.manual_seed(1)
        with PassGraphs(seldom=9).in_use():
            assert torch.equal(words, encoder(subwords))
        encoder(long)
    assert (graphs.captured, *(len(known.graphs) for known in graphs._modules.values())) == (4, 2)

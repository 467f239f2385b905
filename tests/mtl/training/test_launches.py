"""A joint step starts few operations on a device that is not the CPU, and few for each further word."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, get_args

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import DataLoader

from mtl.corpora.formats.jsonl import read_jsonl
from mtl.heads.gates import HeadGates
from mtl.heads.target import HeadTarget
from mtl.models import encoder
from mtl.models.batches import Batch, collate, examples
from mtl.models.joint import JointModel
from mtl.models.pass_graphs import PassGraphs
from mtl.tasks.catalogue import STRUCTURED
from mtl.tasks.decoders import con, crf
from mtl.tasks.decoders.crf import BioCrf
from mtl.tasks.recursions import RecursionGraphs, Tensors
from mtl.training import step
from mtl.training.assembly import quiet_lightning
from mtl.training.balancers import Uniform
from mtl.training.gate_loss import GateLoss
from tests.launches import Launches, pass_graphs
from tests.mtl import tiny

Precision = Literal["32-true", "bf16-mixed", "bf16-master"]
DECODERS, WIDTH, WORD = 415, 3, 3
"""Most operations of five decoders, their losses and gradients beyond those of the encoder, but for the
operations of each further word: for constituents of its number of words, and for its roles."""


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU computes structures as other devices do."""
    monkeypatch.setattr(con, "_fastest", lambda scores: con._INSIDE_OUTSIDE)
    monkeypatch.setattr(crf, "_on_cpu", lambda tensor: False)
    monkeypatch.setattr(encoder, "_on_cpu", lambda tensor: False)
    monkeypatch.setattr(step, "draw_by_counter", lambda model: None)
    monkeypatch.setattr(step.JointTraining, "_sparse_embedding", lambda self: None)
    monkeypatch.setattr(nn.functional, "dropout", _dropout)


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return torch.native_dropout(input, p, True)[0] if training and p else input


def launches(job: Callable[[], object]) -> Launches:
    with Launches() as counted:
        job()
    return counted


def joint(toy: Path, rounded: bool = False) -> tuple[JointModel, Batch]:
    sentences = read_jsonl(toy / "train.jsonl")[:6]
    made = tiny.encoder("bert", dtype=torch.float32)
    for module in made.modules():
        if type(module).__name__.endswith("SelfAttention"):
            module.dropout.p = 0.0  # attention with dropout is one operation on a GPU, and several here
    tasks = {task.name: task() for task in STRUCTURED}
    labels = {name: task.labels(sentences) for name, task in tasks.items()}
    model = JointModel(made, tasks, labels).train()
    share = examples(sentences, made.tokenizer, tasks, labels)
    return model, collate(share, made.tokenizer, tasks, rounded=rounded)


def test_of_five_tasks(toy: Path, as_on_a_gpu):
    model, batch = joint(toy)

    def bare() -> None:
        model.encoder(batch.subwords).sum().backward()

    def whole() -> None:
        torch.stack([*model.losses(batch, model(batch)).values()]).sum().backward()

    of_encoder, of_step = launches(bare), launches(whole)
    words = batch.mask.shape[1]
    assert of_step.total() - of_encoder.total() - (WIDTH + WORD) * words <= DECODERS, of_step.by_name


def test_of_a_further_word(as_on_a_gpu):
    def roles(words: int) -> int:
        model, scores = BioCrf(4), torch.randn(5, words, 9, requires_grad=True)
        lengths = torch.full((5,), words)
        return launches(lambda: model.log_partition(scores, lengths).sum().backward()).total()

    def constituents(words: int) -> int:
        scores, lengths = torch.randn(5, words + 1, words + 1), torch.full((5,), words)
        return launches(lambda: con.inside_outside_by_tensors(scores, lengths)).total()

    assert roles(20) - roles(10) == 10 * WORD
    assert constituents(20) - constituents(10) == 10 * WIDTH


def whole_step(
    model: JointModel,
    batch: Batch,
    precision: Precision = "32-true",
    graphs: Sequence[RecursionGraphs | PassGraphs] = (),
) -> Launches:
    """The operations of the second training step under Lightning: all of it, from the batch to AdamW."""
    gates = model.gates
    loss = None if gates is None else GateLoss(gates, 10, target=HeadTarget(gates, 4))
    rounded = precision == "bf16-master"
    module = step.JointTraining(
        model, Uniform(), updates=10, gate_loss=loss, gate_lr=0.1, rounded=rounded, graphs=graphs
    )
    counted = Launches()

    class Clear(pl.Callback):
        def on_train_batch_start(self, *_: object) -> None:
            counted.by_name.clear()

    with quiet_lightning(), counted:
        pl.Trainer(
            accelerator="cpu", devices=1, max_epochs=1, callbacks=[Clear()],
            precision="32-true" if precision == "bf16-master" else precision, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        ).fit(module, DataLoader([batch] * 2, batch_size=None))  # fmt: skip
    return counted


STEP = {None: 653, "shared": 728, "per_task": 761}
"""Most operations of a whole step but for changes of type, by kind of mask, those of the encoder among them.

In float32 they are six fewer. They were 817, 916 and 965 when transformers made the attention mask, each
layer expanded its own gates, and each field of the roles' potentials was made into one of tags; then 758, 849
and 880, with six operations for each word in constituents' chart. All operations of a step with MiniLM and 16
sentences of up to 21 words were 989, 1,113 and 1,147, then 924, 1,028 and 1,044; now they are 800, 888 and
906.
"""
STEP_BY_GRAPHS = 511
"""The same without a mask, if the decoders' recursions are graphs."""
STEP_BY_GRAPHS_OF_THE_ENCODER = {None: 383, "shared": 444, "per_task": 479}
"""The same if the encoder's pass is two graphs, too: as much for any number of layers."""
STEP_BY_ALL_GRAPHS = {None: 84, "shared": 145, "per_task": 188}
"""The same if each decoder with its loss is two graphs, too. The 12 replays are not counted."""
CASTS_BY_GRAPHS = {"32-true": 5, "bf16-mixed": 114}
CASTS_BY_ALL_GRAPHS = {"32-true": 3, "bf16-mixed": 7}
CASTS = {"32-true": 10, "bf16-mixed": 224, "bf16-master": 50}
"""Most changes of type, which were 17, 230 and 51."""
COPIES = 12
"""Most copies, which were 19."""


@pytest.mark.parametrize("masks", [None, "shared", "per_task"])
@pytest.mark.parametrize("precision", get_args(Precision))
def test_of_a_whole_step(masks: str | None, precision: Precision, toy: Path, as_on_a_gpu: None) -> None:
    model, batch = joint(toy)
    assert batch.mask.shape == (6, 18)
    if masks:
        names = tuple(model.tasks) if masks == "per_task" else ("shared",)
        model.gates = HeadGates(model.encoder.layers, model.encoder.heads, masks=names)
    counted = whole_step(model, batch, precision)
    casts = counted.by_name["_to_copy"]
    assert casts <= CASTS[precision], counted.by_name
    of_weights = counted.by_name["_foreach_copy_"]  # to bfloat16, and their gradients back
    assert of_weights == (2 if precision == "bf16-master" else 0)
    assert counted.total() - casts - of_weights <= STEP[masks], counted.by_name
    assert counted.by_name["copy_"] + counted.by_name["clone"] <= COPIES
    assert counted.waits() == 0, counted.by_name


def graph(function: Callable[..., Tensors], inputs: Tensors) -> tuple[Callable[[], None], Tensors]:
    """A stand-in for a CUDA graph, whose operations are not started one by one, and not counted."""
    outputs = function(*inputs)

    def replay() -> None:
        with _disable_current_modes():
            for output, made in zip(outputs, function(*inputs), strict=True):
                output.copy_(made)

    return replay, outputs


def test_of_a_whole_step_with_graphs_of_recursions(toy: Path, as_on_a_gpu: None) -> None:
    model, batch = joint(toy)
    counted = whole_step(model, batch, graphs=[RecursionGraphs(graph, seldom=0)])
    assert counted.total() - counted.by_name["_to_copy"] <= STEP_BY_GRAPHS, counted.by_name
    assert counted.waits() == 0, counted.by_name


@pytest.mark.parametrize("masks", [None, "shared", "per_task"])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("rounded", [False, True])
def test_of_a_whole_step_with_graphs_of_passes(
    masks: str | None, precision: Precision, rounded: bool, toy: Path, as_on_a_gpu: None
) -> None:
    """Two steps by graphs leave exactly the weights that padded ones leave which start each operation."""
    model, batch = joint(toy, rounded)
    if masks:
        names = tuple(model.tasks) if masks == "per_task" else ("shared",)
        model.gates = HeadGates(model.encoder.layers, model.encoder.heads, masks=names)
    padded = copy.deepcopy(model)
    draw = torch.get_rng_state()
    graphs = PassGraphs(pass_graphs, seldom=0)
    counted = whole_step(model, batch, precision, [RecursionGraphs(graph, seldom=0), graphs])
    torch.set_rng_state(draw)
    whole_step(padded, batch, precision, [RecursionGraphs(graph, seldom=0), PassGraphs(seldom=9)])
    modules = 6 if rounded else 1
    assert (graphs.captured, graphs.passes) == (modules, 2 * modules)
    for (name, one), other in zip(model.named_parameters(), padded.parameters(), strict=True):
        assert torch.equal(one, other), name
    casts = counted.by_name["_to_copy"]
    assert casts <= (CASTS_BY_ALL_GRAPHS if rounded else CASTS_BY_GRAPHS)[precision], counted.by_name
    most = STEP_BY_ALL_GRAPHS if rounded else STEP_BY_GRAPHS_OF_THE_ENCODER
    assert counted.total() - casts <= most[masks], counted.by_name
    assert counted.waits() == 0, counted.by_name

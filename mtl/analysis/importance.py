"""Worth by gradients: the derivative of the loss with respect to a head's gate.

With a gate of 1 on the output of every head, the derivative of a sentence's loss L with respect to the gate
of head h is g_h = sum over positions of A_h . dL/dA_h, where A_h is the head's output before the output
projection. Four measures follow from g over the sentences of a corpus; the first three share a backward pass:

- importance: mean of |g| (Michel et al. 2019, equation 2); or per token, as in their code for BERT, the
  absolute value is taken at every position before the sum.
- taylor: mean of -g, the first-order estimate of how much the loss rises if the head is closed.
- fisher: mean of g squared, the diagonal of the empirical Fisher information of the gates; half of it is a
  second-order estimate of the same rise.
- integrated: minus the mean over sentences of the integral of g while all gates go from 0 to 1 together
  (integrated gradients, Sundararajan et al. 2017), by the midpoint rule with one pass per step.
  Summed over heads, it approximates the loss with all heads closed minus the loss with all open.

Losses are in nats per sentence, so nothing depends on how sentences are batched.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import polars as pl
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from mtl.heads.gates import Mask, TaskScale
from mtl.heads.given_models import model_device
from mtl.heads.tap import HeadOutputs, HeadTap
from mtl.models.batches import Batch
from mtl.models.joint import JointModel
from mtl.models.passes import frozen, in_evaluation_mode
from mtl.probes.sites import Site
from mtl.probes.tables import heads_table

Per = Literal["example", "token"]
"""Where absolute values are taken: of a sentence's derivative (the paper), or at each of its positions."""
PER: tuple[Per, ...] = get_args(Per)
MEASURES = ("importance", "taylor", "fisher", "integrated")


@dataclass
class GateGradients:
    """Sums over sentences of the measures that follow from derivatives of losses with respect to gates."""

    sites: tuple[Site, ...]
    heads: int
    per: Per = "example"
    examples: int = 0
    """Sentences added."""
    sums: dict[str, Float[Tensor, "site head"]] = field(default_factory=dict)
    """By measure, in float64 on the model's device."""

    def add(
        self,
        positions: Float[Tensor, "row subword site head"],
        example: Int[Tensor, " row"],
        count: int,
    ) -> None:
        """Add derivatives at gates of 1, by position; `example` is the number of each row's sentence.

        There are `count` sentences; rows with the number `count` belong to none, and have no gradient.
        """
        positions = positions.double()
        rows = positions.sum(1)
        gradient = rows.new_zeros(count + 1, *rows.shape[1:]).index_add(0, example, rows)[:-1]
        self.add_examples(gradient, positions.abs().sum(1))

    def add_examples(
        self, gradient: Float[Tensor, "example site head"], absolute: Float[Tensor, "part site head"]
    ) -> None:
        """Add derivatives at gates of 1, by example; `absolute` sums the absolute values at positions."""
        self._add("importance", gradient.abs() if self.per == "example" else absolute)
        self._add("taylor", -gradient)
        self._add("fisher", gradient.square())
        self.examples += len(gradient)

    def add_integrated(self, rows: Float[Tensor, "row site head"], weight: float) -> None:
        """Add derivatives at gates below 1, with the weight of their step."""
        self._add("integrated", -weight * rows.double())

    def value(self, measure: str, normalise: bool = False) -> Float[np.ndarray, "site head"]:
        """A measure's mean over sentences, in nats (`fisher`: nats squared).

        `normalise` divides a layer's values by their Euclidean norm.
        """
        value = (self.sums[measure].cpu() / max(self.examples, 1)).numpy()
        norm = np.linalg.norm(value, axis=1, keepdims=True)
        return value / np.where(norm > 0, norm, 1.0) if normalise else value

    def table(self, task: str = "", normalise: bool = False) -> pl.DataFrame:
        """Rows of heads.parquet; `normalise` divides a layer's importances by their Euclidean norm."""
        parts = []
        for measure in MEASURES:
            if measure not in self.sums:
                continue
            of_importance = measure == "importance"
            value = self.value(measure, normalise and of_importance)
            choice = f"per {self.per}" + ", normalised per layer" * normalise if of_importance else ""
            count = np.array([self.examples])
            parts.append(heads_table.rows(measure, task, [""], value[None], count, choice))
        return heads_table.at_sites(pl.concat(parts), self.sites)

    def _add(self, measure: str, rows: Float[Tensor, "row site head"]) -> None:
        total = rows.sum(0)
        self.sums[measure] = self.sums[measure] + total if measure in self.sums else total


def task_importance(
    model: JointModel,
    batches: Iterable[Batch],
    *,
    per: Per = "example",
    steps: int = 0,
    masks: bool | Sequence[Mask] = True,
    advance: Callable[[int], None] = lambda sentences: None,
) -> dict[str, GateGradients]:
    """By task, the gradients of its loss over all batches.

    On a CPU, tasks under the same mask share one forward pass of a batch, followed by a backward pass for
    each task. On other devices all tasks share both passes, with a row for each task of a sentence. The gates
    multiply the masks, so a head that a mask closes is worth nothing.

    Args:
        model: Encoder and decoders.
        batches: Annotated sentences with targets (`models.evaluate.batches`); tasks without any are left out.
        per: Where absolute values are taken.
        steps: Steps of the integral, each of which costs a pass; 0: no integrated gradients.
        masks: Whether the model's masks are applied; or the masks to apply instead.
        advance: Receives the number of sentences of each finished batch.
    """
    tap, device = model.encoder.tap, next(model.parameters()).device
    names = tuple(model.tasks)
    if isinstance(masks, bool):
        masks = model.scales.masks(names, gated=masks)
    opened = torch.ones(len(tap.sites), tap.heads, device=device)
    chosen = [
        (mask.tasks, (opened if mask.head_scale is None else mask.head_scale).to(device)) for mask in masks
    ]
    derivatives = _by_task
    if not _on_cpu(device) and len(names) > 1:
        of_task = {name: scale for tasks, scale in chosen for name in tasks}
        every = torch.stack([of_task.get(name, opened) for name in names])
        chosen, derivatives = [(tuple(of_task), every)], _at_once
    measured: dict[str, GateGradients] = {}
    with in_evaluation_mode(model), frozen(model):
        for on_cpu in batches:
            batch = on_cpu.to(device)
            for of_mask, scale in chosen:
                tasks = [name for name in of_mask if name in batch.rows]
                if not tasks:
                    continue
                part = of_tasks(batch, tasks)
                rows = on_cpu.subwords.sentence
                for name in tasks:
                    measured.setdefault(name, GateGradients(tap.sites, tap.heads, per))
                for name, positions, example in derivatives(model, part, rows, scale):
                    measured[name].add(positions, example, len(part.rows[name]))
                for gate, weight in midpoints(steps):
                    for name, positions, _ in derivatives(model, part, rows, scale, gate):
                        measured[name].add_integrated(positions.sum(1), weight)
            advance(len(on_cpu.sentences))
    return measured


def _on_cpu(device: torch.device) -> bool:
    return device.type == "cpu"


Derivatives = Iterator[tuple[str, Float[Tensor, "row subword site head"], Int[Tensor, " row"]]]
"""By task, those of its losses by the gates, and the number of each row's sentence (`GateGradients.add`)."""


def _by_task(
    model: JointModel, batch: Batch, rows: Int[Tensor, " row"], scale: Tensor, gate: float = 1.0
) -> Derivatives:
    """One forward pass, and a backward pass for each task: least arithmetic."""
    for name, positions in gate_gradients(model.encoder.tap, lambda: _losses(model, batch, scale), gate):
        # Sentences that are not annotated in this task are not in its loss.
        count = len(batch.rows[name])
        number = torch.full((batch.subwords.sentences,), count, device=positions.device)
        number[batch.rows[name]] = torch.arange(count, device=positions.device)
        yield name, positions, number[batch.subwords.sentence]


def _at_once(
    model: JointModel,
    batch: Batch,
    rows: Int[Tensor, " row"],
    scale: Float[Tensor, "task site head"],
    gate: float = 1.0,
) -> Derivatives:
    """One forward and one backward pass, with a row for each task of a sentence: fewest operations.

    `rows` is each row's sentence, on the CPU.
    """
    of_sentence = np.bincount(rows.cpu().numpy(), minlength=len(batch.sentences))
    sizes = [int(of_sentence[list(batch.places[name])].sum()) for name in batch.rows]
    sentence = batch.subwords.take(torch.cat([*batch.rows.values()])).sentence.split(sizes)
    ((_, positions),) = gate_gradients(
        model.encoder.tap, lambda: {"": torch.cat([*_losses(model, batch, scale).values()])}, gate
    )
    first = 0
    for name, of_task, number in zip(batch.rows, positions.split(sizes), sentence, strict=True):
        yield name, of_task, number - first
        first += len(batch.rows[name])


def _losses(model: JointModel, batch: Batch, scale: TaskScale) -> dict[str, Float[Tensor, " example"]]:
    return {
        name: model.decoder(name).loss(output.scores, batch.targets[name], output.mask)
        for name, output in model(batch, scale).items()
    }


def gate_gradients(
    tap: HeadTap, losses: Callable[[], Mapping[str, Float[Tensor, " example"]]], gate: float = 1.0
) -> Iterator[tuple[str, Float[Tensor, "row subword site head"]]]:
    """For each loss, its derivative with respect to the gates at each position, with all gates at `gate`.

    Calls `losses` once, which runs the model once; then runs a backward pass for each loss.
    """
    with gated(tap, gate) as outputs:
        computed = dict(losses())
    sites = list(outputs)
    for turn, (name, loss) in enumerate(computed.items()):
        last = turn == len(computed) - 1
        gradients = torch.autograd.grad(loss.sum(), sites, retain_graph=not last, allow_unused=True)
        products = [
            torch.zeros_like(output[..., 0]) if gradient is None else (output.detach() * gradient).sum(-1)
            for output, gradient in zip(sites, gradients, strict=True)
        ]
        # The source and the target of a translation differ in length.
        longest = max(product.shape[1] for product in products)
        padded = [
            functional.pad(product, (0, 0, 0, more)) if (more := longest - product.shape[1]) else product
            for product in products
        ]
        yield name, torch.stack(padded, 2) / gate


@contextmanager
def gated(tap: HeadTap, gate: float) -> Iterator[HeadOutputs]:
    """Collect the heads' outputs in the block, under differentiable gates of this value."""
    device = model_device(tap.model)
    gates = torch.full((len(tap.sites), tap.heads), gate, device=device, requires_grad=True)
    with torch.enable_grad(), tap.scale(gates), tap.observe() as outputs:
        yield outputs


def midpoints(steps: int) -> Iterator[tuple[float, float]]:
    """The points and weights of the midpoint rule on [0, 1]."""
    return (((step + 0.5) / steps, 1 / steps) for step in range(steps))


def of_tasks(batch: Batch, names: Sequence[str]) -> Batch:
    """The batch with these of its tasks only."""
    rows = {name: batch.rows[name] for name in names}
    targets: dict[str, Any] = {name: batch.targets[name] for name in names if name in batch.targets}
    return dataclasses.replace(batch, rows=rows, targets=targets, places={n: batch.places[n] for n in names})

"""The scale of each head for each task: by the gates, the tasks that own it, and whether it was cut out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mtl.errors import InputError
from mtl.heads.gates import OPEN, Gates
from mtl.models.routes import Place, routes_of

Reassign = Callable[[Tensor], Tensor]
"""Takes the routes [task site head] and returns those of one pass, in the same shape."""
TaskScale = Float[Tensor, "site head"] | Float[Tensor, "task site head"]
"""A head scale for all tasks, or one per task in the order of the model's tasks."""


@dataclass(frozen=True, slots=True)
class Mask:
    """A mask over the heads, and the tasks that are measured under it."""

    name: str
    """The task that the mask belongs to; empty: all tasks."""
    tasks: tuple[str, ...]
    head_scale: Float[Tensor, "site head"] | None
    """`None`: all heads open."""


@dataclass(frozen=True)
class HeadScales:
    """What multiplies the heads of a joint model (`JointModel.scales`)."""

    tasks: tuple[str, ...]
    remaining: Sequence[Sequence[int]]
    """Per site the numbers of the heads that are there."""
    heads: int
    """Head numbers of a site."""
    gates: Gates | None
    routes: Float[Tensor, "task site head"] | None
    """1 where a task has a head, else 0 (`routes_of`); `None`: all tasks have all heads."""
    reassign: Reassign | None = None
    """What each pass in training does to the routes; `None`: nothing."""

    @property
    def any(self) -> bool:
        """Whether there are gates, or heads of some tasks only."""
        return self.gates is not None or self.routes is not None

    def index(self, name: str) -> int:
        """The index of a task's mask among those of the gates."""
        assert self.gates is not None
        return self.gates.masks.index(name) if name in self.gates.masks else 0

    def in_pass(self, training: bool) -> TaskScale | None:
        """The scale of a pass, drawn at random in training; `None` without gates and owners."""
        scale: Tensor | None = None
        if self.gates is not None:
            masks: Float[Tensor, "mask site head"] = self.gates()
            scale = masks[0]
            if len(masks) > 1:  # a list of numbers as the index would wait for the GPU
                scale = torch.stack([masks[self.index(name)] for name in self.tasks])
        if self.routes is None:
            return scale
        routes = self.routes
        if training and self.reassign is not None:
            routes = self.reassign(routes)
        return routes if scale is None else routes * scale

    @torch.no_grad()
    def of_task(self, name: str, gated: bool = True) -> Float[Tensor, "site head"]:
        """The scale of a task in evaluation, on the CPU: its gates, or ones with `gated=False`.

        It is 0 for heads that were cut out or that only other tasks have.
        """
        if self.routes is None:
            scale = routes_of({}, (name,), self.remaining, self.heads)[0]
        else:
            scale = self.routes[self.tasks.index(name)].cpu()
        if self.gates is None or not gated:
            return scale
        return scale * self.gates.gate()[self.index(name)].cpu()

    def masks(self, annotated: Sequence[str], gated: bool = True) -> list[Mask]:
        """The masks of evaluation, each with the annotated tasks measured under it.

        A shared mask serves all annotated tasks, also those that the model was not trained on. A task's own
        mask serves that task. If some tasks have heads that others lack, each task gets a mask that closes
        the heads it lacks. With `gated=False`, all heads that a task has are open.
        """
        gates = self.gates if gated else None
        if self.routes is None:
            if gates is None:
                return [Mask("", tuple(annotated), None)]
            if len(gates.masks) == 1:
                return [Mask("", tuple(annotated), self.of_task(gates.masks[0]))]
        names = self.tasks if self.routes is not None or gates is None else gates.masks
        return [Mask(name, (name,), self.of_task(name, gated)) for name in names if name in annotated]

    def of_one_mask(
        self, tasks: Sequence[str], chosen: bool, given: Float[Tensor, "site head"] | None = None
    ) -> Float[Tensor, "site head"]:
        """The one scale that serves all of these tasks, by the model's gates or by `given` ones.

        `chosen` says that the user chose the tasks. Raises `InputError` without masks, and for tasks that
        have masks or heads of their own.
        """
        each = f"choose one with --task ({', '.join(tasks)})"
        if given is None and not self.any:
            raise InputError(
                "the run has no masks: train with --pruning=dynamic or static, or use --mask FILE"
            )
        if self.routes is not None and len(tasks) > 1:
            raise InputError(f"every task has heads of its own: {each}")
        several = self.routes is None and self.gates is not None and len(self.gates.masks) > 1
        if given is None and several and not chosen:
            raise InputError(f"every task has a mask of its own: {each}")
        own = self.of_task(tasks[0], gated=given is None)
        return own if given is None else given * own


def open_heads(scale: Float[Tensor, "site head"]) -> list[Place]:
    """The heads that a scale leaves open, by site and number."""
    return [(int(site), int(head)) for site, head in (scale > OPEN).nonzero().tolist()]


def closed_heads(scale: Float[Tensor, "site head"]) -> dict[int, list[int]]:
    """The numbers of the heads that a scale closes, by site."""
    closed: dict[int, list[int]] = {}
    for site, head in (scale <= OPEN).nonzero().tolist():
        closed.setdefault(site, []).append(head)
    return closed

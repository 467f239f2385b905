"""The factor of each head for each task: by the gates, and by whether the head was cut out.

Nothing is multiplied here: `HeadTap.scale` (`mtl.heads.tap`) multiplies the heads' outputs by these factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mtl.errors import InputError
from mtl.heads.gates import OPEN, Gates

Place = tuple[int, int]
"""A head: its site, and its number there."""
TaskScale = Float[Tensor, "site head"] | Float[Tensor, "task site head"]
"""A head scale (a factor per head) for all tasks, or one per task in the order of the model's tasks."""


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

    def index(self, name: str) -> int:
        """The index of a task's mask among those of the gates."""
        assert self.gates is not None
        return self.gates.masks.index(name) if name in self.gates.masks else 0

    def in_pass(self) -> TaskScale | None:
        """The scale of a pass, drawn at random in training; `None` without gates."""
        if self.gates is None:
            return None
        masks: Float[Tensor, "mask site head"] = self.gates()
        if len(masks) == 1:
            return masks.squeeze(0)  # a view in the backward pass, too
        if self.gates.masks == self.tasks:
            return masks
        # a list of numbers as the index would wait for the GPU
        return torch.stack([masks[self.index(name)] for name in self.tasks])

    @torch.no_grad()
    def of_task(self, name: str, gated: bool = True) -> Float[Tensor, "site head"]:
        """The scale of a task in evaluation, on the CPU: its gates, or ones with `gated=False`.

        It is 0 for heads that were cut out.
        """
        scale = torch.zeros(len(self.remaining), self.heads)
        for site, numbers in enumerate(self.remaining):
            scale[site, list(numbers)] = 1.0
        if self.gates is None or not gated:
            return scale
        return scale * self.gates.gate()[self.index(name)].cpu()

    def masks(self, annotated: Sequence[str], gated: bool = True) -> list[Mask]:
        """The masks of evaluation, each with the annotated tasks measured under it.

        A shared mask serves all annotated tasks, also those that the model was not trained on. A task's own
        mask serves that task. With `gated=False`, all heads are open.
        """
        if self.gates is None or not gated:
            return [Mask("", tuple(annotated), None)]
        if len(self.gates.masks) == 1:
            return [Mask("", tuple(annotated), self.of_task(self.gates.masks[0]))]
        return [Mask(name, (name,), self.of_task(name)) for name in self.gates.masks if name in annotated]

    def of_one_mask(
        self, tasks: Sequence[str], given: Float[Tensor, "site head"] | None = None
    ) -> Float[Tensor, "site head"]:
        """The one scale that serves all of these tasks, by the model's gates or by `given` ones.

        Raises `InputError` without masks, and for several tasks that have masks of their own.
        """
        each = f"choose one with --task ({', '.join(tasks)})"
        if given is None and self.gates is None:
            raise InputError(
                "the run has no masks: train with --pruning=dynamic or static, use --mask FILE, or name the "
                "tasks to keep with --task"
            )
        several = self.gates is not None and len(self.gates.masks) > 1
        if given is None and several and len(tasks) > 1:
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

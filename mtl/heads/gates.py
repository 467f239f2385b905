"""Masks over attention heads: learned hard concrete gates, fixed gates, and their record in training.

`HeadScales` is the factor of each head for each task: by the gates, and by whether the head was cut out.
Nothing is multiplied here: `HeadTap.scale` (`mtl.heads.tap`) multiplies the heads' outputs by these factors.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any, Literal

import polars as pl
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from mtl.errors import InputError
from mtl.heads.gate_file import SCHEMA
from mtl.probes.sites import Site
from mtl.tasks.in_words import counted

OPEN = 1e-3
"""A head counts as open if its evaluation gate is above this."""
CLOSED = -20.0
"""Log alpha of a head closed for good: its sampled gates are 0, too (all but 5 in 10^9)."""


class Gates(nn.Module, ABC):
    """One mask per name over the same heads."""

    masks: tuple[str, ...]
    """Names of the masks: one that all tasks share, or one per task."""

    @abstractmethod
    def forward(self) -> Float[Tensor, "mask site head"]:
        """The factors of the heads' outputs; in training they may be a sample."""

    @abstractmethod
    def gate(self) -> Float[Tensor, "mask site head"]:
        """The evaluation gates."""

    @abstractmethod
    def configuration(self) -> dict[str, Any]:
        """The gates without their values: what `gates_from` takes."""

    def open(self) -> Bool[Tensor, "mask site head"]:
        """Which heads count as open."""
        return self.gate() > OPEN


class FixedGates(Gates):
    """Gates that were given: no parameters, no samples, no cost.

    Args:
        value: every gate, from 0 to 1; stored in float32.
        masks: names of the masks.

    Raises:
        ValueError: a value outside 0 to 1, or a number of masks that differs from the number of names.

    Examples:
        >>> FixedGates(torch.tensor([[[1.0, 0.0], [0.0, 0.5]]])).open().sum().item()
        2
    """

    value: Tensor

    def __init__(self, value: Float[Tensor, "mask site head"], masks: Sequence[str] = ("shared",)) -> None:
        super().__init__()
        if len(value) != len(masks):
            raise ValueError(
                f"{counted(len(value), 'mask')} for the names {', '.join(masks)}: use one for each"
            )
        if not bool(((value >= 0) & (value <= 1)).all()):
            raise ValueError("a gate is not a number from 0 to 1")
        self.masks = tuple(masks)
        self.register_buffer("value", value.float())

    def configuration(self) -> dict[str, Any]:
        """Kind, shape and names of the masks."""
        _, layers, heads = self.value.shape
        return {"kind": "fixed", "layers": layers, "heads": heads, "masks": list(self.masks)}

    def forward(self) -> Float[Tensor, "mask site head"]:
        """The gates as they were given, also in training."""
        return self.value

    def gate(self) -> Float[Tensor, "mask site head"]:
        """The gates as they were given."""
        return self.value


class HeadGates(Gates):
    """One mask per name over the same heads: hard concrete gates (Louizos et al. 2018, eq. 10-13).

    A gate z follows from its log alpha a and a uniform sample u: s = sigmoid((log u - log(1 - u) + a) /
    temperature), z = clip(s (r - l) + l, 0, 1), with (l, r) = `stretch`. In evaluation s = sigmoid(a).
    Everything is computed in float32, also under autocast.

    Args:
        layers: rows of heads: the layers, or the sites where there are several kinds of attention.
        heads: heads per row.
        masks: names of the masks: one that all tasks share, or one per task.
        temperature: temperature of the sampled gates; evaluation gates do not depend on it.
        stretch: (l, r), an interval with 0 and 1 in its interior.
        init_mean: mean of the normal distribution that log alphas start from. The default starts evaluation
            gates at 0.957: near enough to 1 not to disturb a trained encoder, and below the log alpha
            (2.398) from which evaluation gates are clipped to 1. He & Choi (2021) start around 0, gates of
            0.5.
        init_std: its standard deviation.
        init: `normal`, or `xavier`: log alphas of each row and mask from Xavier's uniform distribution over
            heads as channels (bound sqrt(6 / (heads + 1))), as published by He & Choi (2021); mean and
            deviation have no effect.
        eps: keeps u away from 0 and 1.
        absent: places (row, head) without a head: heads cut out, or numbers that only other rows have. They
            start closed and are not counted.
        ungated: rows whose heads have no gate: their factor is 1, and they are not counted.
        group: how many neighbouring heads have one gate, such as those that share keys and values. Shapes and
            counts stay per head.

    Raises:
        ValueError: a stretch, temperature or group out of range.

    Examples:
        >>> gates = HeadGates(6, 12, masks=("pos", "ner"), init_std=0.0)
        >>> gates().shape  # in training: one sample per head
        torch.Size([2, 6, 12])
        >>> gates.eval()().unique().tolist()
        [0.9569...]
        >>> gates.open().sum((1, 2)).tolist()
        [72, 72]
        >>> round(gates.closing_point, 3)
        -2.387
    """

    learned: Tensor

    def __init__(
        self,
        layers: int,
        heads: int,
        *,
        masks: Sequence[str] = ("shared",),
        temperature: float = 0.33,
        stretch: Sequence[float] = (-0.1, 1.1),
        init_mean: float = 2.0,
        init_std: float = 0.01,
        init: Literal["normal", "xavier"] = "normal",
        eps: float = 1e-6,
        absent: Sequence[Sequence[int]] = (),
        ungated: Sequence[int] = (),
        group: int = 1,
    ) -> None:
        super().__init__()
        low, high = stretch
        if group < 1 or heads % group:
            raise ValueError(f"group {group}: use a number that divides {counted(heads, 'head')}")
        if not low < 0 < 1 < high:
            raise ValueError(f"stretch {stretch}: use an interval that holds 0 and 1 inside")
        if not temperature > 0:
            raise ValueError(f"temperature {temperature}: use a number above 0")
        self.masks = tuple(masks)
        self.temperature = temperature
        self.stretch = (low, high)
        self.eps = eps
        self.log_alpha = nn.Parameter(torch.empty(len(self.masks), layers, heads))
        if init == "normal":
            nn.init.normal_(self.log_alpha, init_mean, init_std)
        else:
            # The published gates of a layer have the shape [1, heads, 1, 1].
            for row in self.log_alpha.data.flatten(0, 1):
                nn.init.xavier_uniform_(row[None, :, None, None])
        self.group = group
        self.absent = tuple((row, head) for row, head in absent)
        self.ungated = tuple(ungated)
        learned = torch.ones(layers, heads, dtype=torch.bool)
        learned[list(self.ungated)] = False
        self.register_buffer("learned", learned, persistent=False)
        with torch.no_grad():
            self.log_alpha.copy_(self.together(self.log_alpha))
            for row, head in self.absent:
                self.log_alpha[:, row, head] = CLOSED
            self.log_alpha[:, list(self.ungated)] = CLOSED

    def configuration(self) -> dict[str, Any]:
        """The constructor's arguments, without the initial values."""
        _, layers, heads = self.log_alpha.shape
        description = {
            "layers": layers,
            "heads": heads,
            "masks": list(self.masks),
            "temperature": self.temperature,
            "stretch": list(self.stretch),
            "eps": self.eps,
        }
        if self.absent:
            description["absent"] = [list(place) for place in self.absent]
        if self.ungated:
            description["ungated"] = list(self.ungated)
        if self.group > 1:
            description["group"] = self.group
        return description

    def together(self, values: Float[Tensor, "mask site head"]) -> Float[Tensor, "mask site head"]:
        """The values with each head's replaced by the mean of its group.

        Log alphas pass through it, so heads of a group start equal, get equal gradients and stay equal. What
        is computed from them does, too: vectorised functions may give equal numbers different last digits.
        """
        if self.group == 1:
            return values
        return values.unflatten(-1, (-1, self.group)).mean(-1).repeat_interleave(self.group, -1)

    @property
    def counted(self) -> Bool[Tensor, "site head"]:
        """The heads that are present and have a gate."""
        counted = self.learned.clone()
        for row, head in self.absent:
            counted[row, head] = False
        return counted

    @property
    def present(self) -> int:
        """The number of heads of one mask that are present and have a gate."""
        return int(self.counted.sum())

    def open_learned(self) -> Bool[Tensor, "mask site head"]:
        """Which heads have a gate and count as open."""
        return self.open() & self.learned

    @property
    def closing_point(self) -> float:
        """The log alpha at and below which a head counts as closed.

        With the default stretch -2.387; at and below -2.398 the evaluation gate is 0.
        """
        low, high = self.stretch
        share = (OPEN - low) / (high - low)
        return math.log(share / (1 - share))

    def forward(self) -> Float[Tensor, "mask site head"]:
        """In training one sample per head (call once per step), else the evaluation gates."""
        if not self.training:
            return self.gate()
        log_alpha = self.together(self.log_alpha.float())
        u = torch.empty_like(log_alpha[..., :: self.group], requires_grad=False)
        u = u.uniform_(self.eps, 1 - self.eps).repeat_interleave(self.group, -1)
        share = torch.sigmoid((torch.logit(u) + log_alpha) / self.temperature)
        return self._stretched(self.together(share))

    def gate(self) -> Float[Tensor, "mask site head"]:
        """The evaluation gates, neither sampled nor rounded, without the temperature (eq. 13)."""
        return self._stretched(self.together(torch.sigmoid(self.together(self.log_alpha.float()))))

    def probability_open(self) -> Float[Tensor, "mask site head"]:
        """P(z > 0) of a sampled gate (eq. 12); at the closing point it is still 0.17 (default settings)."""
        low, high = self.stretch
        shift = self.temperature * math.log(-low / high)
        return self.together(torch.sigmoid(self.together(self.log_alpha.float()) - shift))

    def expected_l0(self) -> Float[Tensor, " mask"]:
        """The expected number of sampled gates that are not 0, which is not the number of open heads."""
        return self.probability_open().sum((1, 2))

    def penalty(self) -> Float[Tensor, " mask"]:
        """`expected_l0` divided by the number of layers with gates (He & Choi 2021)."""
        return self.expected_l0() / (self.log_alpha.shape[1] - len(self.ungated))

    def _stretched(self, share: Float[Tensor, "mask site head"]) -> Float[Tensor, "mask site head"]:
        low, high = self.stretch
        gates = torch.clamp(share * (high - low) + low, 0, 1)
        return torch.where(self.learned, gates, 1.0) if self.ungated else gates


def gates_from(configuration: Mapping[str, Any]) -> Gates:
    """Gates as `Gates.configuration` describes them; load their values afterwards."""
    if configuration.get("kind") != "fixed":
        return HeadGates(**configuration)
    masks = configuration["masks"]
    return FixedGates(torch.ones(len(masks), configuration["layers"], configuration["heads"]), masks)


def gate_rows(
    gates: Gates,
    tasks: Sequence[str],
    update: int,
    sites: Sequence[Site],
    at_choice: Float[Tensor, "mask site head"] | None = None,
) -> list[dict[str, Any]]:
    """All gates as rows of `gate_table`; a mask that tasks share is repeated for each of them.

    `log_alpha` is null for gates that are not learned and for heads without a gate. `log_alpha_at_choice` is
    null where `at_choice` is NaN (a head without a target), and without `at_choice`.
    """
    with torch.no_grad():
        gate, opened = gates.gate().tolist(), gates.open().tolist()
        before = torch.full_like(gates.gate(), torch.nan) if at_choice is None else at_choice
        log_alpha = gates.log_alpha.float().tolist() if isinstance(gates, HeadGates) else None
        ungated = gates.ungated if isinstance(gates, HeadGates) else ()
    unit = "group" if isinstance(gates, HeadGates) and gates.group > 1 else "head"
    chosen_by = before.tolist()
    return [
        {
            "task": task, "step": update, "attention": site.attention, "layer": site.layer, "head": head,
            "log_alpha": None if log_alpha is None or row in ungated else log_alpha[mask][row][head],
            "gate": value, "open": opened[mask][row][head],
            "log_alpha_at_choice": None if row in ungated or isnan(chosen := chosen_by[mask][row][head])
            else chosen,
            "unit": unit,
        }
        for task in tasks
        for mask in [gates.masks.index(task) if task in gates.masks else 0]
        for row, site in enumerate(sites)
        for head, value in enumerate(gate[mask][row])
    ]  # fmt: skip


def gate_table(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """Rows of `gate_rows` as a table."""
    return pl.DataFrame(rows, schema=SCHEMA)


def gate_summary(gates: Gates) -> dict[str, dict[str, float]]:
    """Per mask, the number of open heads and, for learned gates, the expected L0 and the unweighted penalty.

    With learned gates, heads without a gate are not counted as open.
    """
    with torch.no_grad():
        numbers = {"open": gates.open().sum((1, 2))}
        if isinstance(gates, HeadGates):
            numbers = {"open": gates.open_learned().sum((1, 2))}
            numbers |= {"expected_l0": gates.expected_l0(), "penalty": gates.penalty()}
        return {
            mask: {name: float(values[index]) for name, values in numbers.items()}
            for index, mask in enumerate(gates.masks)
        }


def open_heads_text(gates: Mapping[str, Mapping[str, float]]) -> str:
    """The open heads per mask and, in brackets, the number expected under sampling, as a part of a line.

    Empty for gates that are not learned.
    """
    if not all("expected_l0" in numbers for numbers in gates.values()) or not gates:
        return ""
    counts = (
        f"{mask} {numbers['open']:.0f} ({numbers['expected_l0']:.1f})" for mask, numbers in gates.items()
    )
    return "  open (expected) " + ", ".join(counts)


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

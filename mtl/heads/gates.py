"""Masks over attention heads: hard concrete gates that are learned, and gates that are fixed."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

OPEN = 1e-3
"""A head counts as open where its evaluation gate is above this."""
CLOSED = -20.0
"""Log alpha of a head closed for good: sampled gates are 0, too (all but 5 in 10^9)."""


class Gates(nn.Module, ABC):
    """One mask per name over the same heads."""

    masks: tuple[str, ...]
    """Names of the masks: one that all tasks share, or one per task."""

    @abstractmethod
    def forward(self) -> Float[Tensor, "mask site head"]:
        """What the heads' outputs are multiplied by; in training this may be a sample."""

    @abstractmethod
    def gate(self) -> Float[Tensor, "mask site head"]:
        """The evaluation gates."""

    @abstractmethod
    def configuration(self) -> dict[str, Any]:
        """What `gates_from` makes the same gates from, but for their values."""

    def open(self) -> Bool[Tensor, "mask site head"]:
        """Which heads count as open."""
        return self.gate() > OPEN


class FixedGates(Gates):
    """Gates that were given: no parameters, no samples, no cost.

    Args:
        value: every gate, from 0 to 1; they are held in float32.
        masks: names of the masks.

    Raises:
        ValueError: a value outside of 0 to 1, or not a mask for every name.

    Examples:
        >>> FixedGates(torch.tensor([[[1.0, 0.0], [0.0, 0.5]]])).open().sum().item()
        2
    """

    value: Tensor

    def __init__(self, value: Float[Tensor, "mask site head"], masks: Sequence[str] = ("shared",)) -> None:
        super().__init__()
        if len(value) != len(masks):
            raise ValueError(f"{len(value)} masks for the names {', '.join(masks)}: give one for each")
        if not bool(((value >= 0) & (value <= 1)).all()):
            raise ValueError("a gate is not a number from 0 to 1")
        self.masks = tuple(masks)
        self.register_buffer("value", value.float())

    def configuration(self) -> dict[str, Any]:
        """Kind, shape and names of the masks."""
        _, layers, heads = self.value.shape
        return {"kind": "fixed", "layers": layers, "heads": heads, "masks": list(self.masks)}

    def forward(self) -> Float[Tensor, "mask site head"]:
        """The gates as they were given, in training, too."""
        return self.value

    def gate(self) -> Float[Tensor, "mask site head"]:
        """The gates as they were given."""
        return self.value


class HeadGates(Gates):
    """One mask per name over the same heads, a gate z from each log alpha a (Louizos et al. 2018, eq. 10-12).

    s = sigmoid((log u - log(1 - u) + a) / temperature), z = clip(s (r - l) + l, 0, 1), `stretch` = (l, r).
    Everything is computed in float32, under autocast, too.

    Args:
        layers: rows of heads: the layers, or the sites where there are several kinds of attention.
        heads: heads per row.
        masks: names of the masks: one that all tasks share, or one per task.
        temperature: of the sampled gates; evaluation gates do not depend on it.
        stretch: (l, r), an interval that holds 0 and 1 inside.
        init_mean: log alphas start from a normal distribution with this mean. The default starts evaluation
            gates at 0.957: near enough to 1 not to upset a trained encoder, and below the point (2.398) from
            which evaluation gates are clipped to 1 and `overlap` has no gradient. He & Choi start around 0,
            gates of 0.5.
        init_std: its standard deviation.
        eps: keeps the samples u of the uniform distribution away from 0 and 1.
        absent: places (row, head) without a head, of heads cut out or numbers that only other rows have; they
            start closed and do not count as heads.
        ungated: rows whose heads have no gate of their own: theirs is 1, and they do not count as heads.
        group: heads side by side that have one gate, such as those that share keys and values. Every figure
            is still one per head, and heads are counted.

    Raises:
        ValueError: a stretch, temperature or group that cannot be.

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
        eps: float = 1e-6,
        absent: Sequence[Sequence[int]] = (),
        ungated: Sequence[int] = (),
        group: int = 1,
    ) -> None:
        super().__init__()
        low, high = stretch
        if group < 1 or heads % group:
            raise ValueError(f"group {group}: give a number that divides {heads} heads")
        if not low < 0 < 1 < high:
            raise ValueError(f"stretch {stretch}: give an interval that holds 0 and 1 inside")
        if not temperature > 0:
            raise ValueError(f"temperature {temperature}: give a number above 0")
        self.masks = tuple(masks)
        self.temperature = temperature
        self.stretch = (low, high)
        self.eps = eps
        self.log_alpha = nn.Parameter(torch.empty(len(self.masks), layers, heads))
        nn.init.normal_(self.log_alpha, init_mean, init_std)
        self.group = group
        with torch.no_grad():
            self.log_alpha.copy_(self.together(self.log_alpha))
        self.absent = tuple((row, head) for row, head in absent)
        self.ungated = tuple(ungated)
        learned = torch.ones(layers, heads, dtype=torch.bool)
        learned[list(self.ungated)] = False
        self.register_buffer("learned", learned, persistent=False)
        with torch.no_grad():
            for row, head in self.absent:
                self.log_alpha[:, row, head] = CLOSED
            self.log_alpha[:, list(self.ungated)] = CLOSED

    def configuration(self) -> dict[str, Any]:
        """The constructor's arguments, but for the initial values."""
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
        """The mean over each group, at every head of it.

        Heads of a group begin alike and get the same gradient by this, so that their log alphas stay alike.
        """
        if self.group == 1:
            return values
        return values.unflatten(-1, (-1, self.group)).mean(-1).repeat_interleave(self.group, -1)

    @property
    def counted(self) -> Bool[Tensor, "site head"]:
        """The heads that are there and have a gate."""
        counted = self.learned.clone()
        for row, head in self.absent:
            counted[row, head] = False
        return counted

    @property
    def present(self) -> int:
        """The number of heads of one mask that are there and have a gate."""
        return int(self.counted.sum())

    def open_learned(self) -> Bool[Tensor, "mask site head"]:
        """Which heads count as open, of those with a gate."""
        return self.open() & self.learned

    @property
    def closing_point(self) -> float:
        """The log alpha at and below which a head counts as closed (-2.387; from -2.398 the gate is 0)."""
        low, high = self.stretch
        share = (OPEN - low) / (high - low)
        return math.log(share / (1 - share))

    def forward(self) -> Float[Tensor, "mask site head"]:
        """Gates: in training one sample per head (draw once per step), else those of `gate`."""
        if not self.training:
            return self.gate()
        log_alpha = self.together(self.log_alpha.float())
        u = torch.empty_like(log_alpha[..., :: self.group], requires_grad=False)
        u = u.uniform_(self.eps, 1 - self.eps).repeat_interleave(self.group, -1)
        return self._with_ungated(torch.sigmoid((torch.logit(u) + log_alpha) / self.temperature))

    def gate(self) -> Float[Tensor, "mask site head"]:
        """The evaluation gates: neither sampled nor rounded, and without the temperature."""
        return self._with_ungated(torch.sigmoid(self.together(self.log_alpha.float())))

    def probability_open(self) -> Float[Tensor, "mask site head"]:
        """P(z > 0) of a sampled gate; still 0.17 for a head at the closing point."""
        low, high = self.stretch
        return torch.sigmoid(self.together(self.log_alpha.float()) - self.temperature * math.log(-low / high))

    def expected_l0(self) -> Float[Tensor, " mask"]:
        """The expected number of sampled gates that are not 0; not the number of heads that are open."""
        return self.probability_open().sum((1, 2))

    def penalty(self) -> Float[Tensor, " mask"]:
        """The expected number of gates that are not 0 over that of layers with gates (He & Choi 2021)."""
        return self.expected_l0() / (self.log_alpha.shape[1] - len(self.ungated))

    def overlap(self) -> Float[Tensor, ""]:
        """The sum over pairs of masks of z_t * z_u, evaluation gates.

        Its gradient is that of the sum over t of z_t * (the other masks held constant), which is how
        implementations that detach one side have it.
        """
        gate = self.gate()
        return (gate.sum(0).square() - gate.square().sum(0)).sum() / 2

    def _with_ungated(self, share: Float[Tensor, "mask site head"]) -> Float[Tensor, "mask site head"]:
        gates = self._clip(share)
        return torch.where(self.learned, gates, 1.0) if self.ungated else gates

    def _clip(self, share: Float[Tensor, "mask site head"]) -> Float[Tensor, "mask site head"]:
        low, high = self.stretch
        return torch.clamp(share * (high - low) + low, 0, 1)


def gates_from(configuration: Mapping[str, Any]) -> Gates:
    """Gates as `Gates.configuration` describes them; their values are to be loaded."""
    if configuration.get("kind") != "fixed":
        return HeadGates(**configuration)
    masks = configuration["masks"]
    return FixedGates(torch.ones(len(masks), configuration["layers"], configuration["heads"]), masks)

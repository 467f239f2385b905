"""Head gates in training: what they cost, and what their pruning regime freezes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mtl.config.schema import COMPARING, KIND_NAMES, ByPart, Freeze, GatesConfig, PruningRegime
from mtl.errors import InputError, as_input_error
from mtl.heads.families import heads_per_group
from mtl.heads.gates import CLOSED, FixedGates, HeadGates
from mtl.heads.target import Budget, HeadTarget, MaskChoice, Penalty, membership, sum_within
from mtl.heads.wanted import DEFAULT_TARGET
from mtl.models.derived import fixed_gates
from mtl.models.joint import JointModel
from mtl.models.tapped import TappedModel
from mtl.probes.sites import Site
from mtl.tasks.in_words import counted
from mtl.training.check import check_kinds

RATE_TIMES_UPDATES = 10.0
"""Default of the rate times the planned updates. Adam moves a log alpha by about its rate per update, so this
is the farthest that it can move: about twice the distance from the default start to the closing point."""
FORCED_WARNING = 0.1
"""A warning is printed if a target's choice forced more than this share of the wanted heads to change."""


class GateLoss(nn.Module):
    """L0 penalties with their warm-up, and the price of a target.

    It is added to the balanced losses, so that the balancer does not scale it.

    Args:
        gates: The masks.
        updates: Number of updates planned for the run.
        penalties: Weights of the expected number of open heads per layer, each with its sites (L0 of Louizos
            et al. 2018); a weight for all masks, or one for each.
        warmup: Share of the updates in which the penalties rise linearly from zero.
        target: Brings the masks to a number of open heads.
    """

    member: Tensor
    weights: Tensor

    def __init__(
        self,
        gates: HeadGates,
        updates: int,
        *,
        penalties: Sequence[Penalty] = (),
        warmup: float = 0.0,
        target: HeadTarget | None = None,
    ) -> None:
        super().__init__()
        self.gates, self.target, self.updates = gates, target, updates
        self.penalties, self.warmup = tuple(penalties), warmup
        member = membership(self.penalties, gates.log_alpha.shape[1])
        self.layers: list[int] = (member & gates.learned.any(1).cpu()).sum(1).tolist()
        """Per penalty, the number of its layers that have heads with gates."""
        self.register_buffer("member", member, persistent=False)
        weights = [torch.tensor(penalty.weight).expand(len(gates.masks)) for penalty in self.penalties]
        self.register_buffer("weights", torch.stack(weights) if weights else member, persistent=False)

    def forward(self, update: int, losses: Float[Tensor, " task"]) -> Float[Tensor, ""]:
        """The cost of this update, in the unit of `losses`, which are the tasks' losses as balanced."""
        progress = update / self.updates
        cost = self.gates.log_alpha.new_zeros(())
        if self.target is not None:
            per_mask = losses if len(losses) == len(self.gates.masks) else losses.sum()[None]
            cost = cost + self.target(self.gates, progress, per_mask).sum()
        if self.penalties:
            share = min(1.0, (update + 1) / (self.warmup * self.updates)) if self.warmup else 1.0
            expected = sum_within(self.gates.probability_open(), self.member)
            for number, weights in enumerate(self.weights):
                cost = cost + share * (weights * (expected[:, number] / self.layers[number])).sum()
        return cost

    @property
    def settled(self) -> bool:
        """Whether scores count for the best model and patience: with a target, only after its choice."""
        return self.target is None or bool(self.target.chosen)

    @property
    def choices(self) -> dict[str, MaskChoice]:
        """The record of a target's choice of heads (`HeadTarget.choices`); empty before it or without one."""
        return {} if self.target is None else self.target.choices(self.gates)

    @property
    def log_alpha_at_choice(self) -> Float[Tensor, "mask site head"] | None:
        """The log alphas by which a target's choice was made; `None` before it or without a target.

        They are NaN for heads without a target.
        """
        if self.target is None or not self.target.chosen:
            return None
        return self.target.log_alpha_at_choice.masked_fill(~self.target.budgeted, torch.nan)

    def after_update(self, updates_done: int) -> None:
        """Hold the gates to the target's choice of heads in the last part of the run."""
        if self.target is not None:
            self.target.project(self.gates, updates_done / self.updates)


def new_gates_of(config: GatesConfig, encoder: TappedModel, tasks: Sequence[str]) -> HeadGates:
    """New gates for the heads that an encoder has, with one mask for all tasks or a mask per task.

    Raises `InputError` for settings that do not fit the encoder or the tasks.
    """
    absent = [
        (site, head)
        for site, remaining in enumerate(encoder.tap.remaining)
        for head in range(encoder.heads)
        if head not in remaining
    ]
    group = heads_per_group(encoder.transformer) if config.unit == "group" else 1
    if config.unit == "group" and group == 1:
        raise InputError(
            "gates.unit=group: no heads of the encoder share keys and values; use gates.unit=head"
        )
    if config.unit == "group" and absent:
        raise InputError(
            "gates.unit=group: heads of the encoder were cut out, so that its groups differ in "
            "size; use gates.unit=head"
        )
    with as_input_error("gates"):
        return HeadGates(
            encoder.layers, encoder.heads,
            masks=tuple(tasks) if config.scope == "per_task" else ("shared",), temperature=config.temperature,
            init=config.init, init_mean=config.init_mean, init_std=config.init_std, absent=absent,
            ungated=ungated_sites(config.kinds, encoder.tap.sites), group=group,
        )  # fmt: skip


def fixed_gates_of(config: GatesConfig, encoder: TappedModel, tasks: Sequence[str]) -> FixedGates:
    """The masks in the file `gates.masks`, for an encoder; see `fixed_gates`."""
    assert config.masks is not None
    return fixed_gates(Path(config.masks), config.scope, tasks, (encoder.layers, encoder.heads))


def ungated_sites(kinds: Sequence[str] | None, sites: Sequence[Site]) -> tuple[int, ...]:
    """The numbers of the sites whose kind of attention is not in `kinds`; none if `kinds` is `None`.

    Raises `InputError` for a kind that the model does not have.
    """
    check_kinds(kinds, tuple(dict.fromkeys(site.attention for site in sites)))
    if kinds is None:
        return ()
    return tuple(number for number, site in enumerate(sites) if site.attention not in kinds)


def gate_loss(gates: HeadGates, config: GatesConfig, updates: int, sites: Sequence[Site] = ()) -> GateLoss:
    """The cost of the gates as configured, for a run of `updates` updates; `sites` are the gates' rows.

    With one target and one penalty for all heads, the penalty is ignored; with neither, the target is
    `DEFAULT_TARGET`. Numbers by task are those of the tasks' masks, or of the only task's.
    """
    targets, penalties = config.target_open, config.penalty
    if targets is None and penalties is None:
        targets = DEFAULT_TARGET
    if targets is not None and not isinstance(penalties, Mapping):
        penalties = None
    places = {
        kind: tuple(number for number, site in enumerate(sites) if site.attention == kind)
        for kind in {site.attention for site in sites}
    }
    wanted, weights = (_by_mask(values, gates.masks) for values in (targets, penalties))
    budgets = [Budget(target, where, kind) for target, where, kind in _by_kind(wanted, places)]
    return GateLoss(
        gates,
        updates,
        penalties=[Penalty(weight, where) for weight, where, _ in _by_kind(weights, places)],
        warmup=config.penalty_warmup,
        target=HeadTarget(gates, budgets, at_least=config.at_least) if budgets else None,
    )


def _by_mask(values: ByPart | None, masks: Sequence[str]) -> ByPart | tuple[float, ...] | None:
    """Values by task as one for each mask; others as they are."""
    if not isinstance(values, Mapping) or not {*values}.difference(KIND_NAMES):
        return values
    if len(masks) == 1 and masks[0] not in values:  # the shared mask of a run of one task
        (value,) = values.values()
        return value
    return tuple(values[mask] for mask in masks)


def _by_kind(
    values: ByPart | tuple[float, ...] | None, places: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[float | tuple[float, ...], tuple[int, ...] | None, str]]:
    """Each value, or one for each mask, with its sites (`None`: all) and their kind (empty: all)."""
    if isinstance(values, Mapping):
        yield from ((value, places[kind], kind) for kind, value in values.items())
    elif values is not None:
        yield values, None, ""


def freeze_for(regime: PruningRegime, model: JointModel) -> None:
    """Freeze what the pruning regime does not train: decoders (static), encoder and decoders (gates_only).

    In an encoder-decoder model, the decoder stack and all embeddings count as decoders.
    """
    if regime in ("static", "gates_only"):
        model.decoders.requires_grad_(False).eval()
        model.encoder.freeze_decoder()
    if regime == "gates_only":
        model.encoder.requires_grad_(False).eval()


def frozen_parts(freeze: Freeze, encoder: TappedModel) -> list[nn.Module]:
    """The parts of an encoder that `encoder.freeze` names.

    Raises `InputError` for layers that the encoder does not have, or that share their weights.
    """
    if freeze is None:
        return []
    if freeze == "all":
        return [encoder.transformer]
    layers, wanted = encoder.layer_modules(), [each for each in freeze if isinstance(each, int)]
    if wanted and len(layers) != encoder.transformer.config.num_hidden_layers:
        raise InputError("encoder.freeze: the encoder's layers share their weights: use all")
    for number in wanted:
        if number >= len(layers):
            raise InputError(
                f"encoder.freeze: there is no layer {number}: the encoder has {len(layers)}, from 0"
            )
    return [
        *(layers[number] for number in wanted),
        *(encoder.before_layers() if "embeddings" in freeze else []),
    ]


def freeze_encoder(freeze: Freeze, encoder: TappedModel) -> None:
    """Freeze what `encoder.freeze` names: it gets no gradients and has no dropout. Word dropout stays.

    A mix of layers (`encoder.layers=mix`) is trained, too, where the layers are not.
    """
    for module in frozen_parts(freeze, encoder):
        module.requires_grad_(False).eval()


def refuse_frozen(balancer: str, freeze: Freeze, encoder: TappedModel) -> None:
    """Raise `InputError` if all that a balancer compares gradients in is frozen, or cannot be frozen."""
    frozen = {parameter for part in frozen_parts(freeze, encoder) for parameter in part.parameters()}
    compared: nn.Module = encoder.last_layer() if balancer == "gradnorm" else encoder.transformer
    if balancer in COMPARING and frozen.issuperset(compared.parameters()):
        raise InputError(
            f"encoder.freeze freezes all in which balancer {balancer} compares the tasks' gradients: use "
            "uniform, moving_average or uncertainty"
        )


def gate_rate(config: GatesConfig, updates: int, tasks: Sequence[str] = ()) -> float | tuple[float, ...]:
    """The learning rate of log alpha in a run of `updates` updates, or one for each task's mask."""
    default = RATE_TIMES_UPDATES / updates
    if not isinstance(config.lr, Mapping):
        return default if config.lr is None else config.lr
    rates = tuple(config.lr.get(task, default) for task in tasks)
    return rates[0] if len(rates) == 1 else rates


def reach_warning(
    gates: HeadGates, rate: float | Sequence[float], updates: int, warmup: float = 0.0
) -> str | None:
    """A warning if a gate cannot move from the mean start to the closing point in this run, else `None`.

    In the first share `warmup` of the updates the rate rises, so that gates move half as far.
    """
    start = gates.log_alpha[gates.log_alpha > CLOSED].mean().item()
    rate = rate if isinstance(rate, int | float) else min(rate)
    distance, full = start - gates.closing_point, 1 - warmup / 2
    needed = distance / (rate * full)
    if needed <= updates:
        return None
    enough = max(RATE_TIMES_UPDATES, 2 * distance) / (updates * full)
    return (
        f"warning: at gates.lr={rate:g} a gate needs about {counted(round(needed), 'update')} to "
        f"close, and the run has {updates}: raise gates.lr to {enough:.2g}, or train longer"
    )


def choice_warnings(loss: GateLoss) -> list[str]:
    """A warning for each mask in which a target's choice forced many heads, so that it was hardly learned."""
    if loss.target is None:
        return []
    lines = []
    for name, choice in loss.choices.items():
        mask, _, kind = name.partition("/")
        wanted = choice.open_at_choice + choice.forced_open - choice.forced_closed
        if choice.forced_open + choice.forced_closed > FORCED_WARNING * wanted:
            of_kind, key = (f", {kind}", f".{kind}") if kind else ("", "")
            lines.append(
                f"warning: mask {mask}{of_kind}: training left {counted(choice.open_at_choice, 'head')} "
                f"open, but gates.target_open{key} wants {wanted}: {choice.forced_open} were opened and "
                f"{choice.forced_closed} closed by force; raise max_epochs"
                f"{', or lower gates.at_least' if loss.target.at_least else ''}"
            )
    return lines

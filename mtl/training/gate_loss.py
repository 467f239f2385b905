"""Head gates in training: the regime and what the gates cost."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn

from mtl.config.schema import GatesConfig, PruningRegime
from mtl.errors import InputError
from mtl.heads.gates import CLOSED, HeadGates
from mtl.heads.target import Choice, HeadTarget
from mtl.models.joint import JointModel
from mtl.models.seq2seq import Seq2Seq
from probes.heads_table import Site

RATE_TIMES_UPDATES = 10.0
"""Default of rate x planned updates. Adam moves a log alpha by about its rate per update, so this is the
farthest it can move: some twice the distance from the default start to the closing point."""
DEFAULT_TARGET = 1 / 3
"""Share of heads that stay open where neither a target nor a penalty is given (docs/masks.md says why)."""
FORCED_WARNING = 0.1
"""A warning is printed where a target's choice moved more than this share of the heads wanted."""


class GateLoss(nn.Module):
    """The L0 penalty with its warm-up or the price of a target, and the overlap penalty.

    Added outside of the balanced losses, so that the balancer does not scale it.

    Args:
        gates: the masks.
        updates: updates planned for the run.
        penalty: weight of the expected number of open heads per layer, without a target.
        overlap_penalty: weight of the sum over pairs of masks of z_t * z_u; negative rewards sharing.
        warmup: share of the updates in which the penalty rises linearly from zero.
        target: brings the masks to a number of open heads, instead of the penalty.
    """

    def __init__(
        self,
        gates: HeadGates,
        updates: int,
        *,
        penalty: float = 0.0,
        overlap_penalty: float = 0.0,
        warmup: float = 0.0,
        target: HeadTarget | None = None,
    ) -> None:
        super().__init__()
        self.gates, self.target, self.updates = gates, target, updates
        self.penalty, self.overlap_penalty, self.warmup = penalty, overlap_penalty, warmup

    def forward(self, update: int, losses: Float[Tensor, " task"]) -> Float[Tensor, ""]:
        """The cost of this update, in the unit of `losses`: per task, as the balancer weighs them."""
        progress = update / self.updates
        if self.target is not None:
            per_mask = losses if len(losses) == len(self.gates.masks) else losses.sum()[None]
            cost = self.target(self.gates, progress, per_mask).sum()
        else:
            share = min(1.0, (update + 1) / (self.warmup * self.updates)) if self.warmup else 1.0
            cost = share * self.penalty * self.gates.penalty().sum()
        if self.overlap_penalty:
            cost = cost + self.overlap_penalty * self.gates.overlap()
        return cost

    @property
    def settled(self) -> bool:
        """Whether scores count: with a target, once its heads are chosen."""
        return self.target is None or bool(self.target.chosen)

    @property
    def choices(self) -> dict[str, Choice]:
        """Per mask what a target's choice of heads did; empty before it, and without a target."""
        return {} if self.target is None else self.target.choices(self.gates)

    @property
    def log_alpha_at_choice(self) -> Float[Tensor, "mask site head"] | None:
        """The log alphas by which a target's choice was made; `None` before it, and without a target."""
        return None if self.target is None or not self.target.chosen else self.target.log_alpha_at_choice

    def after_update(self, updates_done: int) -> None:
        """Hold the gates to the target's choice of heads, in the run's final part."""
        if self.target is not None:
            self.target.project(self.gates, updates_done / self.updates)


def new_gates(
    config: GatesConfig,
    layers: int,
    heads: int,
    tasks: Sequence[str],
    absent: Sequence[Sequence[int]] = (),
    group: int = 1,
    sites: Sequence[Site] = (),
) -> HeadGates:
    """Fresh gates for an encoder, one mask for all tasks or one each; none for `absent` heads.

    `group` heads of the encoder share keys and values. `sites` are the rows' kinds of attention and layers.
    """
    if config.unit == "head":
        group = 1
    elif group == 1:
        raise InputError(
            "gates.unit=group: no heads of the encoder share keys and values; give gates.unit=head"
        )
    elif absent:
        raise InputError(
            "gates.unit=group: heads of the encoder were cut out or copied, so that its groups are not "
            "alike; give gates.unit=head"
        )
    per_task = config.scope == "per_task" and len(tasks) > 1
    if config.overlap_penalty and not per_task:
        raise InputError("gates.overlap_penalty needs gates.scope=per_task and at least two tasks")
    try:
        masks = tuple(tasks) if config.scope == "per_task" else ("shared",)
        return HeadGates(
            layers, heads, masks=masks, temperature=config.temperature,
            init_mean=config.init_mean, init_std=config.init_std, absent=absent,
            ungated=ungated_sites(config.kinds, sites), group=group,
        )  # fmt: skip
    except ValueError as error:
        raise InputError(f"gates: {error}") from error


def ungated_sites(kinds: Sequence[str] | None, sites: Sequence[Site]) -> tuple[int, ...]:
    """The numbers of the sites without gates, where only some kinds of attention have them.

    Raises `InputError` for a kind that the model has not.
    """
    if kinds is None:
        return ()
    there = tuple(dict.fromkeys(site.attention for site in sites))
    for kind in kinds:
        if kind not in there:
            raise InputError(
                f"gates.kinds={','.join(kinds)}: the model has no attention of kind {kind}: it has "
                f"{', '.join(there)}"
            )
    if not kinds:
        raise InputError(f"gates.kinds is empty: give at least one of {', '.join(there)}")
    return tuple(number for number, site in enumerate(sites) if site.attention not in kinds)


def gate_loss(gates: HeadGates, config: GatesConfig, updates: int) -> GateLoss:
    """The cost of the gates as configured, for a run of `updates` updates."""
    wanted = config.target_open
    if wanted is None and config.penalty is None:
        wanted = DEFAULT_TARGET
    return GateLoss(
        gates,
        updates,
        penalty=config.penalty or 0.0,
        overlap_penalty=config.overlap_penalty,
        warmup=config.penalty_warmup,
        target=None if wanted is None else HeadTarget(gates, wanted, at_most=config.at_most),
    )


def freeze_for(regime: PruningRegime, model: JointModel) -> None:
    """Freeze what the regime does not train: decoders (static), encoder and decoders (gates_only).

    Of a translation model that is its decoder, with all embeddings.
    """
    if regime in ("static", "gates_only"):
        model.decoders.requires_grad_(False).eval()
        if isinstance(model.encoder, Seq2Seq):
            model.encoder.freeze_decoder()
    if regime == "gates_only":
        model.encoder.requires_grad_(False).eval()


def gate_rate(config: GatesConfig, updates: int) -> float:
    """The learning rate of log alpha."""
    return RATE_TIMES_UPDATES / updates if config.lr is None else config.lr


def reach_warning(gates: HeadGates, rate: float, updates: int) -> str | None:
    """A warning if no gate can move from its start to the closing point in this run."""
    start = gates.log_alpha[gates.log_alpha > CLOSED].mean().item()
    needed = (start - gates.closing_point) / rate
    if needed <= updates:
        return None
    return (
        f"warning: at gates.lr={rate:g} a gate needs about {needed:.0f} updates to close, and the run has "
        f"{updates}: raise gates.lr to {RATE_TIMES_UPDATES / updates:.2g}, or train longer"
    )


def choice_warnings(loss: GateLoss) -> list[str]:
    """A warning for every mask in which a target's choice moved many heads: it was hardly learned."""
    if loss.target is None:
        return []
    wanted, at_most = loss.target.wanted, loss.target.at_most
    mend = "train longer"
    if at_most is not None:
        mend = f"gates.at_most={at_most} takes heads from masks that want the same; or train longer"
    return [
        f"warning: mask {mask}: training had {choice.open_at_choice} heads open, gates.target_open wants "
        f"{wanted}: {choice.forced_open} were opened and {choice.forced_closed} closed by force; {mend}"
        for mask, choice in loss.choices.items()
        if choice.forced_open + choice.forced_closed > FORCED_WARNING * wanted
    ]
